"""The numbers of the polynomial hash, which kernels and the functions that join its values share."""

from __future__ import annotations

# A prime; the remainder of a division by it takes two additions.
PRIME = 2**61 - 1
# The first primitive roots from the leading bits of pi and e on: no power below PRIME - 1 of them is 1, so that two
# values that change places change the hash, however far apart they are.
BASES = (0x487ED5110B4612C, 0x16FC2A2C515DA557)
