"""Every byte that lies on disk: keys, columns, field types, codecs, digests, and the manifest."""
