"""The words of a memory map's guard, which kernels ask before they touch a page; no compiler is imported."""

# The file's descriptor; its length as it was last seen, and whether the system tells that at once; the advice of
# madvise that maps pages for reading, negative where there is none; whether mincore tells what is in memory; the
# logarithm of a page's bytes; how many words of marks follow; room for one byte. The marks are a bit for each page of
# the file, set once the page was read.
DESCRIPTOR, LENGTH, LOOKS, POPULATE, TELLS, PAGE_BITS, NUM_MARKS, BYTE = range(8)
NUM_HEAD = 8
