"""The base of all kernels: compilation, memory, C functions, clocks, random numbers, unreadable pages."""
