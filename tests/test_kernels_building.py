"""Libraries give the JIT's results, for every processor; after an edit only changed kernels are lowered again."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmdbloader.base import system
from lmdbloader.kernels.building.targets import TARGETS, targets_here, targets_of_wheel
from lmdbloader.kernels.calls import libraries
from lmdbloader.kernels.entries import all_entries

pytest.importorskip("numba")
pytest.importorskip("ziglang")
linking = pytest.importorskip("lmdbloader.kernels.building.linking")
PACKAGE = Path(__file__).resolve().parent.parent / "lmdbloader"

# Lowers two entry points, into units of a folder, and prints how many kernels were lowered and kept.
LOWER = """
import gc, sys
gc.disable()
from pathlib import Path
from lmdbloader.kernels.building.lowering import Lowering
from lmdbloader.kernels import entries
lowering = Lowering(Path(sys.argv[1]))
chosen = [item for entry in (entries.permute, entries.xxh64) for item in entry.variants.items()]
text = lowering.lower(chosen)
import hashlib
print(lowering.num_lowered, lowering.num_kept, hashlib.sha256(text.encode()).hexdigest())
"""

# Prints a digest of batches that reach every kind of payload and of transform.
READ = """
import gc, hashlib, sys
gc.disable()  # to look for garbage in what Numba makes takes a third of the time
from pathlib import Path
import numpy as np, torch
from lmdbloader.kernels.calls import libraries
if sys.argv[2]:
    libraries.BUILT = Path(sys.argv[2])
    libraries.is_checkout = lambda: False
import lmdbloader
from lmdbloader import transforms as T
digest = hashlib.sha256()
folder = Path(sys.argv[1])
chains = [
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4), T.ToDtype(torch.float16, True)],
    [T.RandomCrop(32, padding=4), T.RandomDihedral(), T.ToDtype(torch.float32, True), T.Normalize(0.5, 0.2),
     T.RandomErasing()],
    [T.Resize((40, 20), "bicubic"), T.ToDtype(torch.bfloat16, True)],
]
for name in ("raw", "lz4", "tiles", "jpeg"):
    dataset = lmdbloader.LMDBDataset(folder / name)
    for number, chain in enumerate(chains):
        for batch in lmdbloader.Loader(dataset, 4, shuffle=True, transforms=chain, seed=7, num_threads=1):
            digest.update(batch[0].contiguous().view(torch.uint8).numpy().tobytes())
print(digest.hexdigest(), "numba" in sys.modules)
"""


def run(code: str, *arguments: str, root: Path = PACKAGE.parent, **environment: str) -> list[str]:
    """Run code in a process of its own and return the words that it prints."""
    settings = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=settings, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def datasets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets with each kind of payload."""
    import numpy as np
    from PIL import Image

    import lmdbloader

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
    return folder


def copy_units(folder: Path) -> None:
    """Copy the lowered kernels of this clone; where it has none, as with libraries from elsewhere, all are lowered."""
    if (libraries.BUILT / "units").is_dir():
        shutil.copytree(libraries.BUILT / "units", folder / "units", dirs_exist_ok=True)


def of_the_set_up() -> list[Path]:
    """Return the libraries of this clone for processors of this system, which need not be built again."""
    if not libraries.is_checkout():
        return []
    return [path for target in targets_here() if (path := libraries.BUILT / target.file_name).exists()]


@pytest.fixture(scope="session")
def levels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries of every kind of processor of this system."""
    base = tmp_path_factory.getbasetemp()
    # The folders of processes that test side by side have the same parent: one of them builds, the others wait.
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "levels"
    copy_units(folder)
    if not (folder / libraries.INVENTORY).exists():
        for path in (*of_the_set_up(), libraries.BUILT / libraries.INVENTORY):
            shutil.copy2(path, folder)
    command = [sys.executable, "-m", "lmdbloader.kernels.building", "--all-here", "--if-changed", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=PACKAGE.parent)
    return folder


def test_every_kind_of_processor_gives_the_bits_of_the_jit(datasets: Path, levels: Path) -> None:
    # Without LLVM's optimisations, which no bit may depend on; they would take a third of the test's time.
    digest, has_numba = run(READ, str(datasets), "", LMDBLOADER_KERNELS="jit", NUMBA_OPT="0")
    assert has_numba == "True"
    runnable = libraries.load().lmdbloader_level()
    for target in targets_here():
        if target.kind.startswith("x86-64-v") and int(target.kind[-1]) > runnable:
            continue
        found = run(READ, str(datasets), str(levels), LMDBLOADER_KERNELS=target.kind)
        assert found == [digest, "False"], target.name


def test_an_inventory_names_exactly_its_libraries(levels: Path) -> None:
    inventory = json.loads((levels / libraries.INVENTORY).read_text("utf-8"))
    assert sorted(inventory["libraries"]) == sorted(target.file_name for target in targets_here())
    assert inventory["sources"] == libraries.source_digest()
    for path in of_the_set_up():  # one that is there and whole is not built again
        assert (levels / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns


@pytest.mark.skipif(platform.system() != "Linux", reason="reads the symbols of an ELF file")
def test_a_library_needs_the_c_library_only_and_shows_its_entries_only(levels: Path) -> None:
    expected = {f"lmdbloader_{name}" for entry in all_entries() for name in entry.variants} | {"lmdbloader_level"}
    for target in targets_here():
        data = (levels / target.file_name).read_bytes()
        shown = set(re.findall(rb"lmdbloader_\w+", data))
        assert shown == {name.encode() for name in expected}, target.name
        for foreign in (b"NRT_", b"PyErr_", b"Py_", b"PyObject", b"numba", b"libpython", b"GLIBC_2.3", b"GLIBC_2.18"):
            assert foreign not in data, (target.name, foreign)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited, lowered once."""
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "built")
    shutil.copytree(PACKAGE, root / "lmdbloader", ignore=ignored)
    (root / "units").mkdir()
    lowered, kept, _ = run(LOWER, str(root / "units"), root=root)
    assert int(lowered) > 4
    assert kept == "0"
    return root


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / "lmdbloader" / "kernels" / name
    source = path.read_text("utf-8")
    assert before in source
    path.write_text(source.replace(before, after), "utf-8")
    # Python takes a source of the same size, changed within the same second, for the one that it has compiled.
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def test_what_is_not_changed_is_not_lowered_again(tree: Path) -> None:
    units = str(tree / "units")
    lowered, _, digest = run(LOWER, units, root=tree)
    assert lowered == "0"
    fresh = tree / "fresh"
    fresh.mkdir()
    assert run(LOWER, str(fresh), root=tree)[2] == digest  # kept or not, the code is the same
    edit(tree, "orders.py", '"""Write the numbers at some positions of a', '"""Put the numbers at some positions of a')
    assert run(LOWER, units, root=tree)[::2] == ["0", digest]
    edit(tree, "orders.py", "% n, n, bits, pairs, key), n", "% n, n, bits, pairs + 1, key), n")
    changed = run(LOWER, units, root=tree)
    assert changed[0] == "1"
    assert changed[2] != digest
    edit(tree, "orders.py", "% n, n, bits, pairs + 1, key), n", "% n, n, bits, pairs, key), n")
    assert run(LOWER, units, root=tree)[::2] == ["0", digest]


def test_a_constant_in_another_module_counts(tree: Path) -> None:
    units = str(tree / "units")
    before = run(LOWER, units, root=tree)[2]
    edit(tree, "runtime/philox.py", "_ROUNDS = 10", "_ROUNDS = 9")
    lowered, _, digest = run(LOWER, units, root=tree)
    assert lowered == "1"  # philox itself, not the kernels that call it
    assert digest != before


def test_callers_are_lowered_again_if_a_result_has_another_type(tree: Path) -> None:
    units = str(tree / "units")
    edit(tree, "orders.py", "return np.int64(x)", "return np.int32(x)")
    lowered, _, _ = run(LOWER, units, root=tree)
    assert int(lowered) >= 2  # `_permuted`, and `permute`, which calls it


@pytest.mark.parametrize("damage", ["", "cut"])
def test_a_damaged_unit_is_lowered_again(tree: Path, damage: str) -> None:
    units = tree / "units"
    before = run(LOWER, str(units), root=tree)
    for path in units.glob("*.bc"):
        path.write_bytes(path.read_bytes()[:100] if damage else b"")
    again = run(LOWER, str(units), root=tree)
    assert int(again[0]) > 4
    assert again[2] == before[2]


def test_a_kernel_that_may_raise_is_not_built(tree: Path) -> None:
    line = "\n    bits = _num_bits(n)\n"
    edit(tree, "orders.py", line, f"\n    if n == 7:\n        raise ValueError{line}")
    code = """
import sys
from pathlib import Path
from lmdbloader.kernels import entries
from lmdbloader.kernels.building import linking
linking.all_entries = lambda: [entries.permute, entries.xxh64]  # to optimise all takes ten seconds
try:
    linking.build([linking.best_here()], Path(sys.argv[1]))
except linking.BuildError as error:
    print(error)
"""
    out = tree / "out"
    said = " ".join(run(code, str(out), root=tree))
    assert re.match(r"a kernel may raise an exception, .*permute.*\. Return a status\.$", said)
    assert not list(out.glob("kernels-*"))


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A copy of the folder of libraries, without units: nothing can be built into it quickly."""
    if not libraries.is_checkout() or libraries.built_from(libraries.BUILT) != libraries.source_digest():
        pytest.skip("the kernels are not built in a clone")
    shutil.copytree(libraries.BUILT, tmp_path / "built", ignore=shutil.ignore_patterns("units"))
    return tmp_path / "built"


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


def test_what_a_killed_build_left_is_removed(built: Path) -> None:
    there = sorted(path.name for path in built.iterdir() if path.name != "stamp")  # one level, or all
    (built / "building-abc").mkdir()
    (built / "building-abc" / "kernels.o").write_bytes(b"half")
    linking.build([linking.best_here()], built, if_changed=True)
    assert sorted(path.name for path in built.iterdir() if path.name != "stamp") == there


def test_a_file_system_without_locks_is_built_on(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(system, "lock", refuse)
    (built / "building-abc").mkdir()  # perhaps another process is at work in there
    linking.build([linking.best_here()], built, if_changed=True)
    assert (built / "building-abc").is_dir()


@pytest.mark.skipif(platform.system() == "Windows", reason="zig keeps its files elsewhere")
def test_the_linker_needs_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ZIG_GLOBAL_CACHE_DIR"
    for other in (name, "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert name not in linking.zig_environment(tmp_path)
    (tmp_path / "file").write_text("")
    for home in ("", str(tmp_path / "file")):
        monkeypatch.setenv("HOME", home)
        assert linking.zig_environment(tmp_path)[name] == str(tmp_path / "zig")
    monkeypatch.delenv("HOME")
    assert linking.zig_environment(tmp_path)[name] == str(tmp_path / "zig")
    monkeypatch.setenv(name, "chosen")
    assert linking.zig_environment(tmp_path)[name] == "chosen"


def test_every_target_is_in_one_wheel() -> None:
    wheels = {target.wheel for target in TARGETS}
    assert sorted(t.name for wheel in wheels for t in targets_of_wheel(wheel)) == sorted(t.name for t in TARGETS)
    assert {target.system for target in TARGETS} == {"Linux", "Windows", "Darwin"}
    assert set(targets_here()) <= set(TARGETS)
