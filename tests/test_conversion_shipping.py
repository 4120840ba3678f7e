"""Datasets and functions that worker processes get: what pickle cannot take is named, and where it is defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmdbloader import LMDBDataset, write
from lmdbloader.errors import OptionError


def number(sample: Any) -> dict[str, int]:
    return {"number": sample}


class Numbers:
    """A dataset with an attribute of any kind."""

    def __init__(self, attribute: Any = None) -> None:
        self.attribute = attribute

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("what", ["prepare", "the dataset"])
def test_what_cannot_be_pickled_is_named(out: Path, what: str) -> None:
    samples: Any = range(200) if what == "prepare" else Numbers(lambda: 0)
    prepare: Any = (lambda sample: {"number": sample}) if what == "prepare" else number
    with pytest.raises(OptionError, match=rf"^{what} .*cannot be pickled.*threads=True"):
        write(samples, out, prepare=prepare, workers=2)
    assert os.listdir(out.parent) == []
    write(samples, out, prepare=prepare, workers=2, threads=True)
    assert [s.number for s in LMDBDataset(out)] == list(range(200))


def test_the_sample_of_a_list_that_is_to_blame_is_named(out: Path, tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        samples = [{"number": i, "more": file if i == 150 else None} for i in range(300)]
        with pytest.raises(OptionError, match=r"sample 150 .*cannot be pickled.*threads=True"):
            write(samples, out, workers=2, prepare=number_of)
        assert write(samples, out, workers=2, threads=True, prepare=number_of).num_samples == 300


def number_of(sample: Any) -> dict[str, int]:
    return {"number": sample["number"]}


SCRIPT = """
import sys
import lmdbloader

class Squares:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return index * index

def prepare(number):
    return {{"number": number}}

{guard}lmdbloader.write(Squares(), sys.argv[1], prepare=prepare, workers=2)
"""


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )


def test_a_script_may_define_the_dataset_if_it_guards_its_main_part(out: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard='if __name__ == "__main__":\n    '))
    done = run(str(script), str(out))
    assert done.returncode == 0, done.stderr
    assert [s.number for s in LMDBDataset(out)][:3] == [0, 1, 4]


def test_a_script_without_a_guard_is_told_to_have_one(out: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=""))
    done = run(str(script), str(out))
    assert done.returncode == 1
    assert "Put that call below `if __name__ == '__main__':`" in done.stderr
    assert not out.exists()
