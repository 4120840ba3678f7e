"""Deliberate faults, with the property that must hold: quick versions are tests, `make faults` runs the full ones."""
