"""The format on disk: keys, columns, field types, codecs, digests, and the manifest."""
