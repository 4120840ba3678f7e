"""Which modules commands and the first samples load: an unneeded library would cost every process its import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmdbloader

# Printed at the end: which of these libraries are loaded, and which modules of torch that only some of its users need.
_HEAVY = ("numpy", "torch", "pyarrow", "lmdb", "numba", "PIL", "pandas", "tqdm")
_TORCH_PARTS = ("torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.onnx", "torch.fx")


def loaded_by(code: str, *arguments: str | Path, before: str = "") -> set[str]:
    """Return the names among _HEAVY and _TORCH_PARTS that a piece of code loads, beyond those that `before` loads."""
    child = subprocess.run(
        [
            sys.executable, "-c",
            f"import sys\n{before}\nbefore = set(sys.modules)\n{code}\n"
            f"print('loaded:', *(n for n in {_HEAVY + _TORCH_PARTS} if n in sys.modules and n not in before))",
            *map(str, arguments),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return set(child.stdout.splitlines()[-1].split()[1:])


def test_the_loader_is_few_files() -> None:
    """So that a reader of the code can hold it: at most 60 files and 12,000 lines are behind the import."""
    code = (
        "import sys; from lmdbloader import Loader\n"
        "files = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'lmdbloader' and m.__file__}\n"
        "files = [file for file in files if file.endswith('.py')]\n"
        "print(len(files), sum(open(file).read().count(chr(10)) for file in files))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    num_files, num_lines = map(int, child.stdout.split())
    assert 40 < num_files <= 60 and 8000 < num_lines <= 12_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of every kind of field, and one of JPEGs with sources."""
    path = tmp_path_factory.mktemp("start-up")
    rng = np.random.default_rng(0)
    items = (
        {
            "image": rng.integers(0, 256, (24, 24, 3), np.uint8),
            "mask": np.full((2, 3), i, np.float32),
            "label": i,
            "score": i / 3,
            "caption": "ü" * i,
            "raw": b"bytes",
            "notes": {"i": i},
        }
        for i in range(8)
    )
    lmdbloader.write(items, path / "all", codec="lz4")
    (path / "photos").mkdir()
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(path / "photos" / f"{i}.jpg")
    lmdbloader.convert(path / "photos", path / "jpegs", workers=1, progress=False)
    return path


def commands(*lines: Sequence[str | Path]) -> set[str]:
    """Return what commands load, one after the other."""
    code = "import json\nfrom lmdbloader.cli import main\nassert not any(map(main, json.loads(sys.argv[1])))"
    return loaded_by(code, json.dumps([[str(word) for word in line] for line in lines]))


def test_the_help_loads_nothing() -> None:
    code = "import contextlib\nfrom lmdbloader.cli import main\nwith contextlib.suppress(SystemExit): main(['--help'])"
    assert loaded_by(code) == set()


def test_a_plan_loads_nothing() -> None:
    assert commands(["plan", "--batch-size", "8", "--step-seconds", "0.1"]) == set()


@pytest.mark.parametrize("name", ["all", "jpegs"])
def test_info_loads_numpy_only(folder: Path, name: str) -> None:
    assert commands(["info", folder / name]) == {"numpy"}


def test_datasets_are_converted_verified_merged_and_repaired_without_torch(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "torch" not in commands(
        ["convert", folder / "photos", out, "--workers", "1"],
        ["verify", out],
        ["merge", out, out, "-o", tmp_path / "merged"],
        ["subset", out, "image.width > 8", "-o", tmp_path / "subset"],
    )
    (out / "index.arrow").unlink()
    assert "torch" not in commands(["repair", out])


_FIRST_SAMPLES = """
import lmdbloader
from lmdbloader.transforms import RandomDihedral, ToDtype
ds = lmdbloader.LMDBDataset(sys.argv[1])
sample = ds[0]
half, _ = ds.split([0.5, 0.5])
steps = [RandomDihedral(), ToDtype(torch.float32, scale=True)]
batch = next(iter(lmdbloader.Loader(half, 2, shuffle=True, transforms=steps)))
assert len(batch.image) == 2
"""


@pytest.mark.parametrize("name", ["all", "jpegs"])
def test_the_first_samples_and_batches_load_nothing_beyond_torch(folder: Path, name: str) -> None:
    assert loaded_by(_FIRST_SAMPLES, folder / name, before="import torch, torch.utils.data") == set()


def test_arrow_is_loaded_by_who_asks_for_a_table(folder: Path) -> None:
    code = "import lmdbloader\nassert lmdbloader.LMDBDataset(sys.argv[1]).table.num_rows == 8"
    assert "pyarrow" in loaded_by(code, folder / "all")
