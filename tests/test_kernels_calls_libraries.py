"""The library of kernels suits the processor and is checked before it is loaded; errors are one clear sentence."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmdbloader.errors import KernelError
from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.calls.libraries import BUILT, INVENTORY, file_name, processor_kinds

HERE = platform.system()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the one of an installation, with this machine's library under every name of a level."""
    inventory = json.loads((BUILT / INVENTORY).read_text("utf-8"))["libraries"]
    name = max(inventory)
    data = (BUILT / name).read_bytes()
    names = [file_name(kind, HERE) for kind in processor_kinds()]
    for name in names:
        (tmp_path / name).write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name in names}
    (tmp_path / INVENTORY).write_text(json.dumps({"libraries": digests, "sources": "some"}))
    monkeypatch.setattr(libraries, "BUILT", tmp_path)
    monkeypatch.setattr(libraries, "is_checkout", lambda: False)
    monkeypatch.delenv(libraries.CHOICE, raising=False)
    return tmp_path


def loaded(monkeypatch: pytest.MonkeyPatch, level: int) -> str:
    """Return the kind of processor whose library is loaded where the processor has a level."""
    names: list[str] = []

    def load(path: str) -> Any:
        names.append(Path(path).name)
        return SimpleNamespace(lmdbloader_level=lambda: level, name=Path(path).name)

    with monkeypatch.context() as patch:
        patch.setattr(libraries.ctypes, "CDLL", load)
        found = libraries.load.__wrapped__()
    assert found.name == names[-1]
    return names[-1]


@pytest.mark.skipif(len(processor_kinds()) < 2, reason="only x86-64 has levels")
@pytest.mark.parametrize("level", [2, 3, 4])
def test_the_best_level_that_the_processor_has_is_loaded(
    built: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    assert loaded(monkeypatch, level) == file_name(f"x86-64-v{level}", HERE)


@pytest.mark.skipif(len(processor_kinds()) < 2, reason="only x86-64 has levels")
def test_one_level_may_be_asked_for(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.CHOICE, "x86-64-v3")
    assert loaded(monkeypatch, 4) == file_name("x86-64-v3", HERE)
    with pytest.raises(KernelError, match="the kernels here are for x86-64-v3, and this processor has only x86-64-v2"):
        loaded(monkeypatch, 2)
    monkeypatch.setenv(libraries.CHOICE, "v3")
    with pytest.raises(KernelError, match="LMDBLOADER_KERNELS=v3: expected 'x86-64-v2'"):
        loaded(monkeypatch, 4)


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_a_damaged_library_is_not_loaded(built: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    path = built / file_name(processor_kinds()[-1], HERE)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:5000], "bit": data}[damage])
    with pytest.raises(KernelError, match=rf"{path} is damaged"):
        libraries.load.__wrapped__()


def test_a_missing_library_is_named(built: Path) -> None:
    path = built / file_name(processor_kinds()[-1], HERE)
    path.unlink()
    with pytest.raises(KernelError, match=rf"{path} cannot be read"):
        libraries.load.__wrapped__()
    (built / INVENTORY).unlink()
    with pytest.raises(KernelError, match="no kernels for this machine"):
        libraries.load.__wrapped__()


@pytest.mark.parametrize("content", ["{", "[]", '{"libraries": 3}', "{}"])
def test_a_damaged_inventory_is_named(built: Path, content: str) -> None:
    (built / INVENTORY).write_text(content)
    with pytest.raises(KernelError, match=rf"{built / INVENTORY} cannot be read"):
        libraries.load.__wrapped__()


def test_neither_numba_nor_llvm_is_imported_by_reading(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
import lmdbloader
from lmdbloader.transforms import RandomResizedCrop
image = np.zeros((40, 40, 3), np.uint8)
lmdbloader.write([{{"image": image}}] * 4, r"{tmp_path / "ds"}", codec="lz4")
dataset = lmdbloader.LMDBDataset(r"{tmp_path / "ds"}")
dataset[0], dataset[[1, 2]]
list(lmdbloader.Loader(dataset, 2, shuffle=True, transforms=[RandomResizedCrop(8)]))
assert lmdbloader.verify(r"{tmp_path / "ds"}").is_sound
print(sorted({{"numba", "llvmlite", "ziglang"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr


# Stands for the builder: writes the inventory as if it had built what the environment says.
BUILDER = """
import json, os, sys
from pathlib import Path
assert sys.argv[1:] == ["--if-changed"]
out = Path(__file__).parents[1] / "built"
out.mkdir(exist_ok=True)
(out / "libraries.json").write_text(json.dumps({"libraries": {}, "sources": os.environ["SOURCES"]}))
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose kernels are not built yet."""
    root = tmp_path / "clone"
    for name in ("lmdbloader/__init__.py", "lmdbloader/kernels/__init__.py", "lmdbloader/kernels/orders.py",
                 "lmdbloader/kernels/building/__init__.py", "lmdbloader/base/clock_words.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    (root / "lmdbloader" / "kernels" / "building" / "__main__.py").write_text(BUILDER)
    (root / "setup.cfg").write_text("[metadata]\nname = lmdbloader\n")
    (root / "pyproject.toml").write_text("")
    monkeypatch.setattr(libraries, "BUILT", root / "lmdbloader" / "kernels" / "built")
    monkeypatch.setattr(libraries, "_CHECKOUT", root)
    monkeypatch.setenv("SOURCES", libraries.source_digest())
    return root


def test_a_clone_is_told_from_a_project_that_has_a_copy_of_the_package(clone: Path) -> None:
    assert libraries.is_checkout()
    (clone / "setup.cfg").write_text("[metadata]\nname = somebody-elses\n")
    assert not libraries.is_checkout()
    (clone / "setup.cfg").unlink()
    assert not libraries.is_checkout()


def test_a_clone_builds_its_own_kernels_wherever_a_program_is_started(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python looks in the current folder first.
    another = tmp_path / "another"
    shutil.copytree(clone, another)
    for module in ("json.py", "queue.py"):
        (another / module).write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(another)
    libraries.refresh()
    assert libraries.built_from(libraries.BUILT) == libraries.source_digest()
    assert not (another / "lmdbloader" / "kernels" / "built").exists()


def test_a_build_that_leaves_other_kernels_is_an_error_each_time(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCES", "of another time")
    for _ in range(2):
        with pytest.raises(KernelError, match=r"building them failed: a source was written meanwhile"):
            libraries.refresh()
    monkeypatch.setenv("SOURCES", libraries.source_digest())
    libraries.refresh()
