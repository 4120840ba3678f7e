"""One damaged value of a dataset, as `verify` finds it and a Loader skips it."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.base.text import plain


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged value.

    Attributes:
        sample: The sample's number.
        field: The field that cannot be read.
        source: Relative path of the file that it was made from, None if the dataset has no sources.
        reason: The damage.
    """

    sample: int
    field: str
    source: str | None
    reason: str

    def __str__(self) -> str:
        return plain(f"sample {self.sample}, field {self.field}, from {self.source or 'no file'}: {self.reason}")
