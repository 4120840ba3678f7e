"""One module per kind of image file: each reads a header and decodes pixels exactly as stored, without any policy."""
