"""The parts of the demo, one for each kind of training."""
