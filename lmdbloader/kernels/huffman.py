"""Lengths of Huffman codes from the counts of their symbols, the rarest first.

Sources: Huffman's algorithm with two queues (van Leeuwen, 1976); too long codes are shortened as zlib does it.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel


@kernel
def merge(used, weights, parents):
    """Make the tree of `used` symbols: nodes are the symbols in order, and then pairs of nodes, the root last.

    Args:
        used: At least 2.
        weights: (2 * used,), whose first ones are the counts, ascending.
        parents: (2 * used,) int64, filled: of each node.
    """
    leaf, pair = np.int64(0), used
    for node in range(used, 2 * used - 1):
        weights[node] = 0
        for _ in range(2):
            if leaf < used and (pair >= node or weights[leaf] <= weights[pair]):
                child, leaf = leaf, leaf + 1
            else:
                child, pair = pair, pair + 1
            parents[child] = node
            weights[node] += weights[child]


@kernel
def measure(used, parents, depths, of_length, most_bits):
    """Write how many codes have each length of at most `most_bits`; depths: room for 2 * used."""
    for length in range(most_bits + 1):
        of_length[length] = 0
    depths[2 * used - 2] = 0
    too_long = np.int64(0)
    for node in range(2 * used - 3, -1, -1):
        depth = depths[parents[node]] + 1
        if depth > most_bits:
            depth = np.int64(most_bits)
            too_long += 1
        depths[node] = depth
        if node < used:
            of_length[depth] += 1
    while too_long > 0:  # a shorter code becomes two longer ones: its own and that of a too long one
        length = most_bits - 1
        while of_length[length] == 0:
            length -= 1
        of_length[length] -= 1
        of_length[length + 1] += 2
        of_length[most_bits] -= 1
        too_long -= 2
