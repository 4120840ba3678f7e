"""SIGTERM in a training run: noted where the run can save first, Ctrl-C everywhere else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from training.command import exit_status
from training.stopping import Stopping


def end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_noted_until_the_block_has_saved() -> None:
    saved = False
    with pytest.raises(KeyboardInterrupt), Stopping(can_save=True) as stopping, stopping.saving_first():
        end()
        assert stopping.is_requested
        saved = True
    assert saved


@pytest.mark.parametrize("can_save", [True, False])
def test_elsewhere_a_run_stops_at_once(can_save: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), Stopping(can_save=can_save) as stopping:
        if not can_save:
            with stopping.saving_first():
                end()
        end()
        pytest.fail("it went on")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_that_misses_a_stopped_one_is_stopped_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.pt").touch()

    def train(stopping: Stopping) -> None:
        with stopping.saving_first():
            if is_asked:
                end()
            raise RuntimeError("Connection closed by peer")

    is_asked = True
    assert exit_status("train", train, tmp_path / "run.pt") == 130
    assert capsys.readouterr().err == "\ntrain: stopped; continue with --resume.\n"
    is_asked = False
    with pytest.raises(RuntimeError, match="closed by peer"):
        exit_status("train", train, tmp_path / "run.pt")
