"""Names of files in the output of the command: no control character reaches the terminal."""

from __future__ import annotations

import logging
import os
import unicodedata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from damage import flip_payload
from tars import png

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.cli._streams import say, say_lines
from lmdbloader.errors import LmdbloaderError

HOSTILE = "a\x1b[2J\x1b]0;x\x07\x9b1m\r\nskipped: all is well\t\u202egnp"


def harmless(text: str) -> bool:
    return all(c.isprintable() or unicodedata.category(c) == "Zs" for c in text.replace("\n", ""))


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str]:
    status = main(list(map(str, words)))
    said = capsys.readouterr()
    assert harmless(said.out) and harmless(said.err)
    assert "\nskipped: all is well" not in said.out + said.err
    return status, said.out + said.err


def test_lines_are_shown_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb\x1b[2J 漢")
    say("told", error=True)
    say_lines("a\n b\r")
    assert capsys.readouterr() == ("a\\nb\\x1b[2J 漢\na\n b\\r\n", "told\n")


def test_a_conversion_names_files_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src, out = tmp_path / f"src {HOSTILE}", tmp_path / f"out {HOSTILE}"
    src.mkdir()
    (src / f"{HOSTILE}.png").write_bytes(png(1))
    (src / f"bad {HOSTILE}.png").write_bytes(b"no image\x1b[2J")
    (src / os.fsdecode(b"bytes \xff\x9b.png")).write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\1\x1b[2J")
    os.mkfifo(src / f"pipe {HOSTILE}.png")
    status, said = run(capsys, "convert", src, out, "--on-error", "skip", "--workers", 1)
    assert status == 0
    assert (
        "skipped: bad a\\x1b[2J\\x1b]0;x\\x07\\x9b1m\\r\\nskipped: all is well\\t\\u202egnp.png: not an image" in said
    )
    assert "left out: pipe a\\x1b[2J" in said
    notes = (out / "skipped.tsv").read_text("utf-8").split("\n")
    assert len(notes) == 4 and notes[0] == "name\treason" and notes[3] == ""
    assert all(harmless(line.replace("\t", "", 1)) for line in notes)
    assert run(capsys, "convert", src, tmp_path / "out 2", "--workers", 1)[0] == 1
    assert run(capsys, "convert", src, out)[0] == 1
    assert run(capsys, "estimate", src, "--workers", 1)[0] == 0
    for words in (["info", out], ["verify", out], ["extract", out, tmp_path / HOSTILE]):
        assert run(capsys, *words)[0] == 0


def test_what_is_damaged_is_named_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    src, out = tmp_path / "src", tmp_path / f"out {HOSTILE}"
    (src / HOSTILE).mkdir(parents=True)
    (src / "b").mkdir()
    for name in (HOSTILE, "b"):
        (src / name / f"{HOSTILE}.png").write_bytes(png(1))
    lmdbloader.convert(src, out, workers=1, codec="raw")
    source = flip_payload(out, "image", 0)
    assert not harmless(source)  # in the dataset it has its real name
    status, said = run(capsys, "verify", out)
    assert status == 1 and "from a\\x1b[2J" in said
    assert run(capsys, "info", out)[0] == 0
    with caplog.at_level(logging.WARNING, "lmdbloader"):
        assert [
            len(b.image) for b in lmdbloader.Loader(lmdbloader.LMDBDataset(out), 4, shuffle=True, on_corrupt="skip")
        ] == [1]
    assert "left out" in caplog.text and all(harmless(record.getMessage()) for record in caplog.records)
    with pytest.raises(LmdbloaderError) as error:
        lmdbloader.LMDBDataset(out)[0]
    assert harmless(str(error.value)) and harmless(repr(error.value)) and harmless(repr(lmdbloader.LMDBDataset(out)))
    status, said = run(capsys, "repair", out, tmp_path / "mended")
    assert status == 0
    lines = (tmp_path / "mended" / "left_out.tsv").read_text("utf-8").split("\n")
    assert len(lines) == 3 and all(harmless(line.replace("\t", "")) for line in lines)


def test_a_script_gets_the_path_as_it_is_and_a_terminal_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.write([{"x": np.zeros(3)}], tmp_path / "d\x9b")
    (tmp_path / "to").mkdir()
    assert main(["stage", str(tmp_path / "d\x9b"), str(tmp_path / "to"), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'to' / 'd'}\x9b\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(capsys, "stage", tmp_path / "d\x9b", tmp_path / "to") == (0, mock.ANY)
