"""Datasets at a URL: their files through fsspec, and the pieces of them that are kept on a local disk."""
