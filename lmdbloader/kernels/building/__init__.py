"""Compiles the kernels ahead of time, into one shared library for each kind of processor and system."""

import os

# Numba reads them once, on import: bounds checks, debugging and the like must not get into a library.
for setting in [name for name in os.environ if name.startswith("NUMBA_")]:
    del os.environ[setting]
os.environ["NUMBA_DISABLE_INTEL_SVML"] = "1"  # Intel's library of vector mathematics, which users do not have
