"""Resizing in compiled code."""
