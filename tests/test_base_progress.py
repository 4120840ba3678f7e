"""The progress bar: an interrupt during its construction prints nothing, and it needs no thread."""

from __future__ import annotations

import gc
import sys
import threading

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


def test_a_bar_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with ProgressBar(total=3, disable=True) as bar:  # a warning would be an error
        bar.update(3)


def test_a_bar_shows_slow_items_after_fast_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(total=1001, disable=False, mininterval=0) as bar:
        bar.update(1000)
        bar.update(1)
        assert "1001/1001" in capsys.readouterr().err
