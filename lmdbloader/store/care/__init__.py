"""Checks and repairs datasets, and saves the intact samples of damaged ones."""
