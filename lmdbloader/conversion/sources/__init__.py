"""The inputs of a conversion: folders, buckets, LMDBs and tars become ordered lists of sources, and sources bytes."""
