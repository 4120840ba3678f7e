"""Needs nothing else of this package: text, units, files, cores, threads, checked arguments, clocks."""
