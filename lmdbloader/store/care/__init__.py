"""Checks and mends datasets: verify, repair, and the salvage of what is sound."""
