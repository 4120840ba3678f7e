"""LZ4's block format: a kernel that decompresses, and one that compresses."""
