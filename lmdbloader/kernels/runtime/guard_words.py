"""The words of a memory map's guard, which kernels read before they touch a page; no compiler is imported."""

# The file's descriptor; its length when last seen, and whether the system reports changes of it at once; the advice of
# madvise that maps pages for reading, negative if there is none; whether mincore reports which pages are in memory; the
# logarithm of a page's bytes; the number of words of marks that follow; room for one byte. The marks have one bit for
# each page of the file, set when the page was read.
DESCRIPTOR, LENGTH, LOOKS, POPULATE, TELLS, PAGE_BITS, NUM_MARKS, BYTE = range(8)
NUM_HEAD = 8

# Several files, one after another in one map, have a directory instead: as NUM_MARKS the number of files, negated;
# as LENGTH the bytes of the map; as TURN how often some payloads were read. After the head comes a row for no file, and
# then one for each: where it begins in the map, its bytes when it was opened, the address of its own guard, whose pages
# count from the file's first byte, its descriptor, and the turn when its length was last looked at. Files begin at
# multiples of 2^UNIT_BITS bytes, and after the rows comes a table of these units: where the row of its file begins, in
# words after the head.
BEGIN, NBYTES, GUARD, FILE, LOOKED = range(5)
NUM_ENTRY = 5
TURN = BYTE
UNIT_BITS = 21
# What stands for the descriptor where files are read by the descriptors of a directory.
BY_DIRECTORY = -2
