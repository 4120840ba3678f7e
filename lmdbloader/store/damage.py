"""One damaged value of a dataset, as `verify` finds it and a Loader skips it."""

from __future__ import annotations

from dataclasses import dataclass

from lmdbloader.base.text import plain

#: The field of damage to a whole sample.
ALL_FIELDS = "all"


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged value.

    Attributes:
        sample: The sample's number.
        field: The field that cannot be read; "all" if the whole sample is lost.
        source: Relative path of the file that it was made from, None if the dataset has no sources.
        reason: The damage.
    """

    sample: int
    field: str
    source: str | None
    reason: str

    def __str__(self) -> str:
        return plain(f"sample {self.sample}, field {self.field}, from {self.source or 'no file'}: {self.reason}")
