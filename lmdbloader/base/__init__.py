"""Needs nothing else of this package: text, units, files, disk errors, cores, threads, checked arguments, clocks."""
