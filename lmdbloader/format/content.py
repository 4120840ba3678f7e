"""The content digest that can be joined from those of parts: digests of columns, and the dataset's, made from them.

It reveals damage and mistakes, not forgery: anybody can construct other samples with the same digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmdbloader.errors import FormatError
from lmdbloader.format.digests import DEFAULT_DIGEST, JOINABLE, digest_of_text
from lmdbloader.kernels.polynomial_numbers import BASES, PRIME

TEXT = "text"
_A_COLUMN = re.compile(r"([a-z][a-z0-9]*)\[(0|[1-9][0-9]{0,18})\]:([0-9a-f]{16})([0-9a-f]{16})")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ColumnDigest:
    """The digest of one column of an index.

    Attributes:
        kind: The dtype of its numbers, such as "uint32", or TEXT.
        num_rows: Its rows.
        hashes: The two polynomial hashes of its values (see docs/reference/format.md).
    """

    kind: str
    num_rows: int
    hashes: tuple[int, int]

    def __str__(self) -> str:
        """Return it as in the manifest.

        >>> str(ColumnDigest("uint32", 5, (1, 255)))
        'uint32[5]:000000000000000100000000000000ff'
        """
        first, second = self.hashes
        return f"{self.kind}[{self.num_rows}]:{first:016x}{second:016x}"

    def joined(self, after: ColumnDigest) -> ColumnDigest:
        """Return the digest of this column's rows and then those of another of the same kind."""
        num_values = after.num_rows * (2 if self.kind == TEXT else 1)
        first, second = (
            (mine * pow(base, num_values, PRIME) + other) % PRIME
            for base, mine, other in zip(BASES, self.hashes, after.hashes, strict=True)
        )
        return ColumnDigest(self.kind, self.num_rows + after.num_rows, (first, second))


def parse_column_digest(text: str) -> ColumnDigest:
    """Return the digest from its text in a manifest.

    >>> parse_column_digest("uint32[5]:000000000000000100000000000000ff")
    ColumnDigest(kind='uint32', num_rows=5, hashes=(1, 255))

    Raises:
        FormatError: It is not such a text.
    """
    found = _A_COLUMN.fullmatch(text)
    hashes = (int(found[3], 16), int(found[4], 16)) if found else (PRIME, PRIME)
    if not found or max(hashes) >= PRIME:
        raise FormatError(f"column digest {text!r:.80}: expected something like 'uint32[5]:' and two hashes")
    return ColumnDigest(found[1], int(found[2]), hashes)


def join_columns(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the column digests of datasets one after the other, given those of each.

    >>> whole = join_columns([{"n": "int64[0]:" + "0" * 32}, {"n": "int64[5]:000000000000000100000000000000ff"}])
    >>> whole, digest_of_columns(whole)
    ({'n': 'int64[5]:000000000000000100000000000000ff'}, 'poly61:eadaa7d6fdeaa04e68793b5ded338145')

    Args:
        parts: The `column_digests` of each part's manifest, at least one.

    Raises:
        FormatError: They do not have the same columns in the same order, or are not column digests.
    """
    if not parts:
        raise FormatError("digests of no parts: expected those of at least one")
    whole = {name: parse_column_digest(text) for name, text in parts[0].items()}
    for number, part in enumerate(parts[1:], 1):
        columns = {name: parse_column_digest(text) for name, text in part.items()}
        expected, found = ([(name, c.kind) for name, c in some.items()] for some in (whole, columns))
        if found != expected:
            raise FormatError(
                f"part {number} has the columns {_described(found)}, part 0 {_described(expected)}: digests are joined "
                "of datasets with the same fields only."
            )
        whole = {name: column.joined(columns[name]) for name, column in whole.items()}
    return {name: str(column) for name, column in whole.items()}


def digest_of_columns(columns: Mapping[str, str]) -> str:
    """Return the content digest of a dataset with these column digests, by name in the index's order."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in columns.items())
    _, _, digits = digest_of_text(lines.encode("utf-8", "surrogatepass"), DEFAULT_DIGEST).partition(":")
    return f"{JOINABLE}:{digits}"


def _described(columns: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{name} ({kind})" for name, kind in columns[:_SHOWN])
    return f"{shown} and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else shown
