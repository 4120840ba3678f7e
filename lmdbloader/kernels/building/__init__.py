"""Compiles the kernels ahead of time, into one shared library for each kind of processor and system."""
