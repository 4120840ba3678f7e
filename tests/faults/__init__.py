"""Faults made on purpose, and what must hold: quick versions run as tests, the full ones by `make faults`."""
