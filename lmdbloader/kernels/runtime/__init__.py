"""What every kernel stands on: compilation, memory, C functions, clocks, random numbers, unreadable pages."""
