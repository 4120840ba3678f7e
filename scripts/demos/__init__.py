"""The parts of the demo, each the whole way of one kind of training."""
