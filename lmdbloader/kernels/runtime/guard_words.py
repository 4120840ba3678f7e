"""The words of a memory map's guard, which kernels read before they touch a page; no compiler is imported."""

# The file's descriptor; its length when last seen, and whether the system reports changes of it at once; the advice of
# madvise that maps pages for reading, negative if there is none; whether mincore reports which pages are in memory; the
# logarithm of a page's bytes; the number of words of marks that follow; room for one byte. The marks have one bit for
# each page of the file, set when the page was read.
DESCRIPTOR, LENGTH, LOOKS, POPULATE, TELLS, PAGE_BITS, NUM_MARKS, BYTE = range(8)
NUM_HEAD = 8
