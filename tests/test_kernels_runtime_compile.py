"""Kernels are compiled once and cached in a safe folder, by several processes at once, and never used stale."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache, IndexDataCacheFile

from lmdbloader.kernels.runtime import compile

DTYPES = ("uint8", "uint16", "int32", "float64")

# A package that is compiled in no time, with a kernel that calls another module's.
FILES = {
    "tiny/__init__.py": "",
    "tiny/kernels/__init__.py": "",
    "tiny/kernels/runtime/__init__.py": "",
    "tiny/constants.py": "STEP = 1\n",
    "tiny/kernels/inner.py": """
from tiny.constants import STEP
from tiny.kernels.runtime.compile import kernel

@kernel
def add_step(values, out):
    for i in range(values.shape[0]):
        out[i] = values[i] + STEP
""",
    "tiny/kernels/outer.py": """
from tiny.kernels import (
    inner,
)
from tiny.kernels.runtime.compile import kernel

add_step = inner.add_step

@kernel
def add_to_all(values, out):
    add_step(values, out)
    return values.itemsize
""",
    # A separate process, which prints the number of kernels it compiled and the modules it imported.
    "run.py": """
import json, sys
import numpy as np
from tiny.kernels.outer import add_to_all

code, *dtypes = sys.argv[1:]
exec(code)
for dtype in dtypes:
    values, out = np.arange(100, dtype=dtype), np.zeros(100)
    assert add_to_all(values, out) == values.itemsize
    assert (out == values + 1).all()
print(json.dumps({
    "compiled": sum(add_to_all.stats.cache_misses.values()),
    "heavy": [name for name in ("numba.np.arraymath", "scipy.linalg") if name in sys.modules],
}))
""",
}


@pytest.fixture(autouse=True)
def numbas_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Numba choose the cache's folder, independent of the environment of the tests."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The small package, importable, with nothing compiled; home and temporary folder are next to it."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    shutil.copy(compile.__file__, tmp_path / "tiny" / "kernels" / "runtime" / "compile.py")
    for variable, folder in {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": "temporary"}.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # sources that change within a second
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny"]:
        del sys.modules[name]


def load() -> Any:
    """Return the kernel as a new process has it: nothing is compiled, nothing was said."""
    forget()
    importlib.invalidate_caches()
    return importlib.import_module("tiny.kernels.outer").add_to_all


def run(*dtypes: str, step: int = 1) -> int:
    """Run the kernel as a new process would; return how often it was compiled."""
    add_to_all = load()
    for dtype in dtypes:
        values, out = np.arange(100, dtype=dtype), np.zeros(100)
        assert add_to_all(values, out) == values.itemsize
        np.testing.assert_array_equal(out, values.astype(np.float64) + step)
    return sum(add_to_all.stats.cache_misses.values())


def start(package: Path, *dtypes: str, code: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, str(package / "run.py"), code, *dtypes]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """Return the standard output and the standard error of a process."""
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return json.loads(printed), said


def beside_the_module(package: Path) -> Path:
    return package / "tiny" / "kernels" / "__pycache__"


def private(package: Path) -> Path:
    return package / "temporary" / f"lmdbloader-{os.geteuid()}"


def forbid_writing(package: Path) -> None:
    # A file in the way stops root, too, unlike permissions.
    beside_the_module(package).write_text("", "utf-8")


def forbid_writing_at_home(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_writing(package)
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(package / "run.py" / "folder"))


def test_the_first_process_says_once_that_it_compiles_the_next_one_nothing(package: Path) -> None:
    found, said = finish(start(package, *DTYPES[:2]))
    assert found["compiled"] == 2
    assert said.count("\n") == said.count("compiling the kernels") == 1
    assert "this is done once" in said
    assert str(beside_the_module(package)) in said
    found, said = finish(start(package, *DTYPES[:2]))
    assert found["compiled"] == 0
    assert said == ""
    # It does not import the modules that only compiling needs, unless this Numba is newer than the tested ones.
    assert (found["heavy"] == []) == (numba.version_info.short <= compile._NEWEST_KNOWN)


def test_an_unknown_numba_loads_kept_kernels_its_own_way(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("uint8") == 1
    calls, slowly = [], FunctionCache.load_overload
    monkeypatch.setattr(FunctionCache, "load_overload", lambda *args: calls.append(args) or slowly(*args))
    assert run("uint8") == len(calls) == 0
    with monkeypatch.context() as patch:
        patch.setattr(numba, "version_info", numba.version_info._replace(short=(9, 0)))
        assert run("uint8") == 0
        assert len(calls) == 1
    # Something that is used of it was renamed.
    for owner, name in ((FunctionCache, "_load_overload"), (type(compile.rtsys), "initialize")):
        calls.clear()
        original = getattr(owner, name)

        def renamed(self: Any, *args: Any, original: Any = original) -> Any:
            if not calls:
                raise AttributeError("renamed")
            return original(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, renamed)
            assert run("uint8") == 0
        assert len(calls) == 1


def test_another_type_is_compiled_and_cached_in_addition(package: Path) -> None:
    assert run("uint8") == 1
    assert run("uint8", "uint16") == 1
    assert run("uint8", "uint16") == 0


def test_in_a_folder_that_cannot_be_written_to_kernels_are_kept_in_the_user_s_cache(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forbid_writing(package)
    assert run("uint8") == 1
    folder = load().stats.cache_path
    assert Path(folder).is_relative_to(package / "cache" / "numba")
    assert [folder in message for message in caplog.messages] == [True]
    assert run("uint8") == 0


def test_without_a_home_kernels_are_kept_in_a_private_temporary_folder(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forbid_writing_at_home(package, monkeypatch)
    (package / "temporary").chmod(0o1777)  # shared, but nobody can rename the files of others
    before = numba.config.CACHE_DIR
    assert run("uint8") == 1
    folder = load().stats.cache_path
    assert Path(folder).is_relative_to(private(package))
    assert stat.S_IMODE(private(package).stat().st_mode) == 0o700
    assert [folder in message for message in caplog.messages] == [True]
    assert run("uint8") == 0
    assert before == numba.config.CACHE_DIR  # other packages' kernels stay where they are


def test_without_a_writable_folder_every_process_compiles_and_warns(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forbid_writing_at_home(package, monkeypatch)
    private(package).write_text("", "utf-8")
    assert [run("uint8"), run("uint8")] == [1, 1]
    assert ["in every process" in m and "NUMBA_CACHE_DIR" in m for m in caplog.messages] == [True, True]


@pytest.mark.parametrize("trap", ["open to others", "a link", "another user's", "replaceable", "another user's parent"])
def test_a_folder_that_others_may_have_planted_is_not_used(
    package: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    if "another user's" in trap and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    forbid_writing_at_home(package, monkeypatch)
    inside = private(package)
    if trap == "a link":
        inside = package / "elsewhere"
        private(package).symlink_to(inside)
    inside.mkdir(mode=0o700)
    assert load().stats.cache_path == (None if trap == "a link" else str(next(inside.iterdir())))
    shutil.rmtree(inside)
    inside.mkdir(mode=0o700)
    if trap == "open to others":
        inside.chmod(0o770)
    elif trap == "another user's":
        os.chown(inside, 12345, 12345)
    elif trap == "replaceable":  # by users who may rename entries of the temporary folder
        (package / "temporary").chmod(0o777)
    elif trap == "another user's parent":
        os.chown(package / "temporary", 12345, 12345)
    assert load().stats.cache_path is None
    assert list(inside.iterdir()) == []


def test_processes_that_compile_at_the_same_time_keep_all_of_their_kernels(package: Path) -> None:
    # They meet at the critical place: between reading the list of cached kernels and replacing it.
    code = """
import sys, time
sys.modules["scipy.linalg"] = None  # Numba would import it to compile, which takes longer than all else here
from numba.core.caching import IndexDataCacheFile
save_index = IndexDataCacheFile._save_index
def save_later(self, overloads):
    time.sleep(0.1)
    save_index(self, overloads)
IndexDataCacheFile._save_index = save_later
"""
    for process in [start(package, dtype, code=code) for dtype in DTYPES]:
        assert finish(process)[0]["compiled"] == 1
    assert run(*DTYPES) == 0


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("length", [0, 100])
def test_damaged_files_are_made_again(
    package: Path, caplog: pytest.LogCaptureFixture, ending: str, length: int
) -> None:
    run("uint8")
    caplog.clear()
    for file in beside_the_module(package).glob(f"*.{ending}"):
        file.write_bytes(file.read_bytes()[:length])
    assert run("uint8") == 1
    assert len(caplog.messages) == 1
    assert run("uint8") == 0
    assert len(caplog.messages) == 1


def test_kernels_in_each_other_s_files_are_not_run(package: Path) -> None:
    assert run("uint8", "uint16") == 2
    one, other = beside_the_module(package).glob("outer*.nbc")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert run("uint8", "uint16") == 2
    assert run("uint8", "uint16") == 0


def test_a_full_disk_stops_nobody_from_reading(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def save(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", save)
    assert run("uint8", "uint16") == 2
    compiling, failing = caplog.messages
    assert "compiling the kernels" in compiling
    assert "No space left on device" in failing
    assert str(beside_the_module(package)) in failing


@pytest.mark.parametrize(
    ("file", "old", "new", "step"),
    [("constants.py", "1", "3", 3), ("kernels/inner.py", "+ STEP", "+ STEP + 1", 2)],
)
def test_a_change_of_an_imported_module_compiles_a_kernel_again(
    package: Path, file: str, old: str, new: str, step: int
) -> None:
    assert [run("uint8"), run("uint8")] == [1, 0]
    path = package / "tiny" / file
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    assert run("uint8", step=step) == 1
    assert run("uint8", step=step) == 0


def test_without_jit_kernels_are_plain_functions(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import numpy as np; from tiny.kernels.outer import add_to_all as f; out = np.zeros(2)"
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    ran = [sys.executable, "-c", f"{code}; print(type(f).__name__, f(np.ones(2), out), *out)"]
    assert subprocess.run(ran, capture_output=True, text=True, check=True).stdout == "function 8 2.0 2.0\n"
