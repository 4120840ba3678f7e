"""The progress bar: an interrupt during its construction prints nothing."""

from __future__ import annotations

import gc
import sys

import pytest

from lmdbloader.base.progress import ProgressBar


def test_a_bar_that_was_interrupted_while_it_was_made_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    bar = ProgressBar.__new__(ProgressBar)
    assert bar.disable, "what tqdm's __del__ asks for"
    del bar
    gc.collect()
    assert said == []


def test_a_bar_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(total=3, disable=False) as bar:
        bar.update(3)
    assert "3/3" in capsys.readouterr().err
