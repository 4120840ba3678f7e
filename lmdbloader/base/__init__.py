"""Needs nothing else of this package: text, units, files, disks, cores, threads, arguments, clocks, systems."""
