"""Libraries give the same bits for every processor; after an edit only what may have changed is lowered again."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.kernels.building.targets import targets_here
from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.entries import all_entries

pytest.importorskip("numba")
pytest.importorskip("ziglang")
linking = pytest.importorskip("lmdbloader.kernels.building.linking")
PACKAGE = Path(__file__).resolve().parent.parent / "lmdbloader"

# To build one takes ten seconds.
COMPARED = sorted({targets_here()[0], targets_here()[-1]}, key=targets_here().index)
# Lowers one entry point, into units of a folder, and prints how many kernels were lowered and kept.
LOWER = """
import gc, hashlib, sys
gc.disable()
from pathlib import Path
from lmdbloader.kernels.building.lowering import Lowering
from lmdbloader.kernels import entries
lowering = Lowering(Path(sys.argv[1]))
text = lowering.lower(list(entries.permute.variants.items()))
print(lowering.num_lowered, lowering.num_kept, hashlib.sha256(text.encode()).hexdigest())
"""
CHAINS = [
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4), T.ToDtype(torch.float16, True)],
    [T.RandomCrop(32, padding=4), T.RandomDihedral(), T.ToDtype(torch.float32, True), T.Normalize(0.5, 0.2),
     T.RandomErasing()],
    [T.Resize((40, 20), "bicubic"), T.ToDtype(torch.bfloat16, True)],
]  # fmt: skip


def run(code: str, *arguments: str, root: Path = PACKAGE.parent) -> list[str]:
    """Run code in a process of its own and return the words that it prints."""
    settings = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=settings, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def datasets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A dataset of each kind of payload."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "jpegs").mkdir()
    images = [Image.open(path) for path in sorted(photos.iterdir())[:4]]
    for number, image in enumerate(images):
        image.save(folder / "jpegs" / f"{number}.jpg", quality=90)
    small = [{"image": np.asarray(image)[:64, :80]} for image in images]
    large = [{"image": np.asarray(image.resize((700, 500)))} for image in images]
    lmdbloader.write(small, folder / "raw", codec="raw")
    lmdbloader.write(small, folder / "lz4", codec="lz4")
    lmdbloader.write(large, folder / "tiles", codec="lz4")
    lmdbloader.convert(folder / "jpegs", folder / "jpeg", workers=1)
    return [folder / name for name in ("raw", "lz4", "tiles", "jpeg")]


def of_the_set_up() -> list[Path]:
    """Return the libraries of this clone for processors of this system, which need not be built again."""
    if not libraries.is_checkout():
        return []
    return [path for target in COMPARED if (path := libraries.BUILT / target.file_name).exists()]


@pytest.fixture(scope="session")
def levels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries of the oldest and the best kind of processor of this system."""
    base = tmp_path_factory.getbasetemp()
    # The folders of processes that test side by side have the same parent: one of them builds, the others wait.
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "levels"
    if (libraries.BUILT / "units").is_dir():
        shutil.copytree(libraries.BUILT / "units", folder / "units", dirs_exist_ok=True)
    if not (folder / libraries.INVENTORY).exists():
        folder.mkdir(exist_ok=True)
        for path in (*of_the_set_up(), libraries.BUILT / libraries.INVENTORY):
            shutil.copy2(path, folder)
    command = [sys.executable, "-m", "lmdbloader.kernels.building", "--if-changed", "--out", str(folder)]
    command += [word for target in COMPARED for word in ("--target", target.name)]
    subprocess.run(command, check=True, capture_output=True, cwd=PACKAGE.parent)
    return folder


def digest_of_batches(datasets: list[Path]) -> str:
    """Return a digest of batches that reach every kind of payload and of transform."""
    digest = hashlib.sha256()
    for path in datasets:
        dataset = lmdbloader.LMDBDataset(path)
        for chain in CHAINS:
            for batch in lmdbloader.Loader(dataset, 4, shuffle=True, transforms=chain, seed=7, num_threads=1):
                digest.update(batch[0].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_every_kind_of_processor_gives_the_same_bits(datasets: list[Path], levels: Path) -> None:
    expected = digest_of_batches(datasets)
    runnable = libraries.load().lmdbloader_level()
    for target in COMPARED:
        if target.kind.startswith("x86-64-v") and int(target.kind[-1]) > runnable:
            continue
        library = ctypes.CDLL(str(levels / target.file_name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(libraries, "load", lambda library=library: library)
            for entry in all_entries():
                patch.delitem(entry.__dict__, "_functions", raising=False)
            assert digest_of_batches(datasets) == expected, target.name
            for entry in all_entries():
                entry.__dict__.pop("_functions", None)


def test_an_inventory_names_exactly_its_libraries(levels: Path) -> None:
    inventory = json.loads((levels / libraries.INVENTORY).read_text("utf-8"))
    assert sorted(inventory["libraries"]) == sorted(target.file_name for target in COMPARED)
    assert inventory["sources"] == libraries.source_digest()
    for path in of_the_set_up():  # one that is there and whole is not built again
        assert (levels / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns


@pytest.mark.skipif(platform.system() != "Linux", reason="reads the symbols of an ELF file")
def test_a_library_needs_the_c_library_only_and_shows_its_entries_only(levels: Path) -> None:
    expected = {f"lmdbloader_{name}" for entry in all_entries() for name in entry.variants} | {"lmdbloader_level"}
    for target in COMPARED:
        data = (levels / target.file_name).read_bytes()
        shown = set(re.findall(rb"lmdbloader_\w+", data))
        assert shown == {name.encode() for name in expected}, target.name
        for foreign in (b"NRT_", b"PyErr_", b"Py_", b"PyObject", b"numba", b"libpython", b"GLIBC_2.3", b"GLIBC_2.18"):
            assert foreign not in data, (target.name, foreign)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited, lowered once."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, root / "lmdbloader", ignore=shutil.ignore_patterns("__pycache__", "built"))
    (root / "units").mkdir()
    return root


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / "lmdbloader" / "kernels" / name
    source = path.read_text("utf-8")
    assert before in source
    path.write_text(source.replace(before, after), "utf-8")
    # Python takes a source of the same size, changed within the same second, for the one that it has compiled.
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def test_only_what_may_have_changed_is_lowered_again(tree: Path) -> None:
    units = str(tree / "units")
    lowered, kept, digest = run(LOWER, units, root=tree)
    assert int(lowered) > 4 and kept == "0"
    assert run(LOWER, units, root=tree) == ["0", lowered, digest]
    edit(tree, "orders.py", "% n, n, bits, pairs, key), n", "% n, n, bits, pairs + 1, key), n")
    again, kept, changed = run(LOWER, units, root=tree)
    assert int(again) > 0 and int(kept) > 0 and int(again) + int(kept) == int(lowered)
    assert changed != digest
    edit(tree, "runtime/philox.py", "_ROUNDS = 10", "_ROUNDS = 9")  # a constant in a module that the kernel's imports
    again, _, other = run(LOWER, units, root=tree)
    assert again == lowered and other not in (digest, changed)


def test_a_kernel_that_may_raise_is_not_built(tree: Path) -> None:
    line = "\n    bits = _num_bits(n)\n"
    edit(tree, "orders.py", line, f"\n    if n == 7:\n        raise ValueError{line}")
    code = """
import sys
from pathlib import Path
from lmdbloader.kernels import entries
from lmdbloader.kernels.building import linking
linking.all_entries = lambda: [entries.permute, entries.xxh3]  # to optimize all takes ten seconds
try:
    linking.build([linking.best_here()], Path(sys.argv[1]))
except linking.BuildError as error:
    print(error)
"""
    out = tree / "out"
    said = " ".join(run(code, str(out), root=tree))
    assert re.match(r"a kernel may raise an exception, .*permute.*\. Return a status\.$", said)
    assert not list(out.glob("kernels-*"))


@pytest.mark.skipif(not linking.best_here().kind.startswith("x86-64"), reason="only x86-64 has levels")
@pytest.mark.parametrize(("absent", "level"), [("movbe", 2), ("lzcnt", 2), ("avx512dq", 3), ("avx2", 2), (None, 4)])
def test_no_library_is_built_that_this_machine_would_not_load(
    monkeypatch: pytest.MonkeyPatch, absent: str | None, level: int
) -> None:
    """Virtual machines hide single features; system.c asks for all of a level."""
    features = {
        name: name != absent
        for name in (
            "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt",
            "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
        )
    }  # fmt: skip
    monkeypatch.setattr(linking.llvm, "get_host_cpu_features", lambda: features)
    highest = max(int(target.kind[-1]) for target in targets_here())
    assert linking.best_here().kind == f"x86-64-v{min(level, highest)}"
