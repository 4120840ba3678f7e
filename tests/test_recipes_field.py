"""The recipe for a kind of field in CONTRIBUTING, followed with two toys: no other file of the package changes."""

from __future__ import annotations

import datetime
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader import fields
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.fields import FieldKind, FieldType


@dataclass(frozen=True, slots=True)
class Complex(FieldType):
    """A complex number, stored as a payload of 16 bytes."""


@dataclass(frozen=True, slots=True)
class Date(FieldType):
    """A date, stored as its number of days in a column of the index."""


def to_complex(data: bytes) -> complex:
    if len(data) != 16:
        raise ValueError(f"{len(data)} bytes, expected 16")
    return complex(*struct.unpack("<dd", data))


KINDS = {
    "complex": FieldKind(
        Complex,
        lambda value: isinstance(value, complex),
        encode=lambda value: struct.pack("<dd", complex(value).real, complex(value).imag),
        decode=to_complex,
    ),
    "date": FieldKind(
        Date,
        lambda value: isinstance(value, datetime.date),
        column="int64",
        encode=lambda value: datetime.date.toordinal(value),
        decode=datetime.date.fromordinal,
    ),
}
SAMPLES: list[dict[str, Any]] = [
    {"image": np.full((4, 4, 3), i, np.uint8), "when": datetime.date(2026, 1, 1 + i), "value": complex(i, -i)}
    for i in range(5)
]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "TABLE", {**fields.TABLE, **KINDS})


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("given", [{}, {"when": Date(), "value": Complex()}])
def test_a_dataset_of_them_is_written_verified_read_and_shown(tmp_path: Path, given: dict[str, Any]) -> None:
    lmdbloader.write(SAMPLES, tmp_path / "toys", fields=given or None)
    assert lmdbloader.verify(tmp_path / "toys").is_sound
    kinds = {f.name: (f.kind, f.length, f.values) for f in lmdbloader.info(tmp_path / "toys").fields}
    assert kinds["value"] == ("complex", (16, 16), None)
    assert kinds["when"][0] == "date"
    dataset = lmdbloader.LMDBDataset(tmp_path / "toys")
    assert [(s.when, s.value) for s in dataset] == [(s["when"], s["value"]) for s in SAMPLES]
    (batch,) = lmdbloader.Loader(dataset, 5, order="sequential")
    assert (batch.when, batch.value) == ([s["when"] for s in SAMPLES], [s["value"] for s in SAMPLES])


@pytest.mark.usefixtures("registered")
def test_it_is_extracted_as_files_and_lines(tmp_path: Path) -> None:
    lmdbloader.write(SAMPLES, tmp_path / "toys")
    lmdbloader.extract(tmp_path / "toys", tmp_path / "files")
    found = sorted(path.read_bytes() for path in (tmp_path / "files" / "value").iterdir())
    assert found == sorted(struct.pack("<dd", s["value"].real, s["value"].imag) for s in SAMPLES)


def test_a_payload_that_does_not_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = FieldKind(Complex, KINDS["complex"].is_value, encode=lambda value: bytes(17), decode=to_complex)
    monkeypatch.setattr(fields, "TABLE", {**fields.TABLE, "complex": longer})
    lmdbloader.write([{"value": 1j}], tmp_path / "toys")
    with pytest.raises(CorruptError, match=r"'value' of sample 0: cannot be read as complex \(17 bytes, expected 16\)"):
        lmdbloader.LMDBDataset(tmp_path / "toys")[0]


def test_without_its_row_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fields, "TABLE", {**fields.TABLE, **KINDS})
        lmdbloader.write(SAMPLES, tmp_path / "toys")
    for reading in (lmdbloader.LMDBDataset, lmdbloader.info, lmdbloader.verify, lmdbloader.repair):
        with pytest.raises(FormatError, match="of kind 'date', expected one of mask, image, "):
            reading(tmp_path / "toys")
