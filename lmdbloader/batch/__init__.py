"""Makes samples and batches of stored images: the torch Dataset, its pipeline, and the memory of batches."""
