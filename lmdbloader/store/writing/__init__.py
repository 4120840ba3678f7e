"""Writes a dataset: the hidden folder OUT.partial, transactions, and the step that publishes it."""
