"""Writes datasets: the folder OUT.partial, transactions, and the step that puts a dataset in place."""
