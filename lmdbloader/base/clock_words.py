"""The words of a thread's clock, in which kernels and Python add up the time of each stage; no compiler is imported."""

# Where `clock_gettime` puts its answer (seconds, then nanoseconds), and the last time that was read, in nanoseconds.
SECONDS, NANOSECONDS, LAST = range(3)
# Nanoseconds that each stage has taken, see `lmdbloader.base.stage_times`.
READ, VERIFY, DECODE, TRANSFORM, FUNCTION, BUFFER = range(3, 9)
# What was counted: samples, batches, bytes of the file that were read.
NUM_SAMPLES, NUM_BATCHES, NBYTES = range(9, 12)
NUM_WORDS = 12
