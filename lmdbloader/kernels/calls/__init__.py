"""How Python calls the kernels: signatures, packed arguments, and the library that holds the compiled code."""
