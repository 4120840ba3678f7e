"""SIGTERM in a training run: noted where the run can save first, Ctrl-C everywhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demos.class_folders import make_class_folders
from training.command import exit_status
from training.stopping import Stopping

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent


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


def test_an_error_of_the_block_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), Stopping(can_save=True) as stopping, stopping.saving_first():
        end()
        raise ValueError("mine")


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


def test_of_two_processes_the_first_one_saves(tmp_path: Path) -> None:
    make_class_folders(tmp_path / "train", num_train=12, num_val=1, sides=(64, 64), num_classes=4)
    lmdbloader.convert(tmp_path / "train" / "train", tmp_path / "train.lmdb", layout="classes", workers=1)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
        str(ROOT / "scripts" / "train_classifier.py"), str(tmp_path / "train.lmdb"), "--model", "tiny", "--size", "32",
        "--batch-size", "4", "--epochs", "10000", "--device", "cpu", "--num-threads", "1",
        "--log-json", str(tmp_path / "log"), "--checkpoint", str(tmp_path / "run.pt"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with open(tmp_path / "said", "w") as said:
        run = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
    until = time.monotonic() + 120
    while not (tmp_path / "log").exists():
        assert run.poll() is None and time.monotonic() < until, (tmp_path / "said").read_text()
        time.sleep(0.05)
    before = (tmp_path / "run.pt").stat().st_mtime_ns
    run.terminate()
    assert run.wait(60) != 0
    assert "train_classifier: stopped; continue with --resume." in (tmp_path / "said").read_text()
    assert (tmp_path / "run.pt").stat().st_mtime_ns > before
    assert not (tmp_path / "run.pt.partial").exists()
