"""Deliberate faults and the promises that must hold: quick versions run as tests, the full ones by `make faults`."""
