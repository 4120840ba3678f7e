"""The recipe "Add a source": one module and one line in a table, and its images can be converted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.conversion.sources.layouts import LAYOUTS, Layout, layout_names

# PGM images one after the other in a .strip file, with the length of each before it.
STRIP = '''
"""Strips: PGM images one after the other in one file, each behind its length in four bytes."""

import numpy as np

from lmdbloader.conversion.sources.listing import Listing, Names, Sources, Spans
from lmdbloader.errors import SourceError


def holds(place):
    return str(place).endswith(".strip")


def list_samples(src, layout, prefer_images):
    data, starts, lengths = src.read_bytes(), [], []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        starts.append(at + 4)
        lengths.append(length)
        at += 4 + length
    if not starts:
        raise SourceError(f"{src}: no images in it")
    nbytes = np.array(lengths, np.int64)
    which = np.zeros(len(starts), np.int32)
    spans = Spans((str(src).encode(),), which, np.array(starts, np.int64), nbytes)
    names = Names.join(b"", (b"%04d" % number for number in range(len(starts))))
    return Listing("strip", Sources(names, nbytes, spans=spans))
'''


@pytest.fixture
def strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register the toy source as a developer would, and return a file for it."""
    (tmp_path / "strips.py").write_text(STRIP, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(LAYOUTS, "strip", "strips")
    monkeypatch.delitem(sys.modules, "strips", raising=False)
    images = [b"P5 8 4 255 " + bytes([value]) * 32 for value in (10, 20, 30)]
    path = tmp_path / "photos.strip"
    path.write_bytes(b"".join(len(image).to_bytes(4, "big") + image for image in images))
    return path


@pytest.mark.parametrize("layout", ["auto", "strip"])
def test_a_new_source_is_converted(strip: Path, tmp_path: Path, layout: str) -> None:
    report = lmdbloader.convert(strip, tmp_path / "out", layout=layout)  # type: ignore[arg-type]
    assert report.layout == "strip"
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert [int(np.asarray(dataset[i].image).max()) for i in range(3)] == [10, 20, 30]
    assert lmdbloader.convert(strip, tmp_path / "out", layout=layout).was_finished  # type: ignore[arg-type]


def test_a_new_source_is_converted_by_the_command(
    strip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(strip), str(tmp_path / "out"), "--layout", "strip", "--workers", "2"]) == 0
    assert "3 images, layout strip" in capsys.readouterr().out


def test_the_type_of_layouts_names_those_in_the_table() -> None:
    assert get_args(Layout) == layout_names()
