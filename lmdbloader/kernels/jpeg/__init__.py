"""JPEG in compiled code: whole files or windows of them to pixels."""
