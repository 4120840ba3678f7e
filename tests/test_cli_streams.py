"""The command where its standard streams are closed or cannot be written to: nothing is lost, the blame is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lmdbloader


def run(words: list[str], redirections: str) -> subprocess.CompletedProcess[str]:
    """Run the command by a shell that closes or redirects its streams."""
    script = f'exec "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "lmdbloader", *words],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-"])
def test_closed_streams_are_no_error_and_no_file_of_a_dataset_takes_their_place(
    photos: Path, tmp_path: Path, redirections: str
) -> None:
    out = tmp_path / "out.lmdb"
    done = run(["convert", str(photos), str(out), "--workers", "1"], redirections)

    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (0, False), done.stderr
    assert lmdbloader.verify(out).is_sound
    assert [path.name for path in tmp_path.iterdir()] == ["out.lmdb"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_under_standard_output_is_not_blamed_on_the_dataset(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    done = run(["convert", str(photos), str(out), "--workers", "1"], "> /dev/full")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "lmdbloader: standard output cannot be written to: No space left on device."
    assert "disk full" not in done.stderr
