"""Compiled inner loops: arrays in, arrays out, a status back, without the GIL."""
