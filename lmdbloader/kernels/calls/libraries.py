"""Finds, checks and loads the library of compiled kernels that suits this processor best.

`built/` holds one library for each kind of processor, and `libraries.json` with their digests. A wheel contains them.
In a clone the set-up builds them, and they are rebuilt automatically when a kernel's source has changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import platform
import sys
from functools import cache
from pathlib import Path

from lmdbloader.errors import KernelError

BUILT = Path(__file__).parents[1] / "built"
INVENTORY = "libraries.json"
# The environment variable may ask for one kind of processor, to compare.
CHOICE = "LMDBLOADER_KERNELS"
_MACHINES = {"AMD64": "x86-64", "x86_64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64", "ARM64": "aarch64"}
_SYSTEMS = {"Linux": ".so", "Windows": ".dll", "Darwin": ".dylib"}
_CHECKOUT = BUILT.parents[2]
_PACKAGE = __name__.split(".")[0]


def processor_kinds() -> tuple[str, ...]:
    """Return the kinds of processor that libraries are built for and this one may be, the best last; empty if none."""
    machine = _MACHINES.get(platform.machine(), "")
    return tuple(f"x86-64-v{level}" for level in (2, 3, 4)) if machine == "x86-64" else (machine,) * bool(machine)


def file_name(kind: str, system: str) -> str:
    """Return the name of a library.

    >>> file_name("x86-64-v3", "Linux")
    'kernels-linux-x86-64-v3.so'
    """
    return f"kernels-{system.lower()}-{kind}{_SYSTEMS.get(system, '')}"


@cache
def load() -> ctypes.CDLL:
    """Return the library for this processor; in a clone, build it first if a source has changed.

    Raises:
        KernelError: There is none, it is damaged, or the system does not let it be loaded.
    """
    if is_checkout():
        refresh()
    inventory = _inventory()
    kinds = [kind for kind in processor_kinds() if file_name(kind, platform.system()) in inventory]
    if not kinds:
        there = ", ".join(inventory) or "none"
        raise KernelError(
            f"no kernels for this machine ({platform.system()} on {platform.machine()}) are installed in {BUILT} "
            f"(found: {there}). {_remedy()}"
        )
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen not in kinds:
        raise KernelError(f"{CHOICE}={chosen}: expected {', '.join(map(repr, kinds))}, or nothing")
    library = _load(kinds[-1], inventory)  # probably the right one; whichever it is, it knows this processor's level
    level = library.lmdbloader_level()
    fitting = [kind for kind in kinds if not kind.startswith("x86-64-v") or int(kind[-1]) <= level]
    if not fitting or (chosen and chosen not in fitting):
        raise KernelError(
            f"the kernels here are for {chosen or kinds[0]}, and this processor has only x86-64-v{level}. {_remedy()}"
        )
    best = chosen or fitting[-1]
    return library if best == kinds[-1] else _load(best, inventory)


def _inventory() -> dict[str, str]:
    """Return the digests of the libraries by name."""
    try:
        found = json.loads((BUILT / INVENTORY).read_text("utf-8"))["libraries"]
        return {str(name): str(digest) for name, digest in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KernelError(f"{BUILT / INVENTORY} cannot be read ({error}). {_remedy()}") from error


def _load(kind: str, inventory: dict[str, str]) -> ctypes.CDLL:
    path = BUILT / file_name(kind, platform.system())
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KernelError(f"{path} cannot be read ({error.strerror}). {_remedy()}") from error
    if hashlib.sha256(data).hexdigest() != inventory[path.name]:  # loading a truncated library can end the process
        raise KernelError(f"{path} is damaged: its SHA-256 is not the one in {INVENTORY}. {_remedy()}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"{path} was not loaded ({error}). Code in that folder must be allowed to run.") from error


def _remedy() -> str:
    if is_checkout():
        return "In this clone run `make kernels`."
    return "Reinstall the package: pip install --force-reinstall --no-deps lmdbloader"


def is_checkout() -> bool:
    """Return whether the package is in a clone, where its sources may change.

    A project that has a copy of the package among its own files does not count, nor do installed packages.
    """
    with contextlib.suppress(OSError):
        return f"\nname = {_PACKAGE}\n" in (_CHECKOUT / "setup.cfg").read_text("utf-8", "replace")
    return False


def _sources() -> list[Path]:
    """Return the files that the libraries are made of, in order."""
    folder = BUILT.parent
    found = {path for ending in ("py", "c") for path in folder.rglob(f"*.{ending}")}
    found = {path for path in found if not path.name.startswith(".")}  # an editor's locks, or what macOS adds to copies
    # How a library is found and called does not change it, and users' functions are not in it.
    found -= {Path(__file__), Path(__file__).with_name("entry.py"), Path(__file__).with_name("functions.py")}
    return sorted([*found, folder.parent / "base" / "clock_words.py"])


def source_digest() -> str:
    """Return a digest of the sources of the kernels."""
    digest = hashlib.sha256()
    for path in _sources():
        data = path.read_bytes()
        digest.update(f"{path.relative_to(BUILT.parents[1]).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def built_from(folder: Path) -> str | None:
    """Return the digest of the sources that a folder's libraries were built from; None if there are none."""
    try:
        return str(json.loads((folder / INVENTORY).read_text("utf-8"))["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refresh() -> None:
    """In a clone, build this machine's library if a source has changed since.

    Raises:
        KernelError: The sources have changed and cannot be built; the message says why.
    """
    if built_from(BUILT) == source_digest():
        return
    logging.getLogger("lmdbloader").warning(
        "lmdbloader: building this clone's kernels, which are missing or outdated; the first build takes a minute"
    )
    said = _build()
    if not said and built_from(BUILT) != source_digest():
        said = "a source was written meanwhile, so start again"
    if said:
        raise KernelError(
            f"the clone in {_CHECKOUT} has no kernels of its present sources, and building them failed: {said}. "
            "To use an installed lmdbloader instead, run Python in another folder."
        )


def _build() -> str:
    """Build the library of this clone in a process of its own; return why that failed, "" if it did not."""
    import subprocess

    # The process starts in this clone, and looks for modules here first: the current folder may be another clone.
    folders = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    done = subprocess.run(
        [sys.executable, "-m", f"{_PACKAGE}.kernels.building", "--if-changed"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_CHECKOUT), *folders])}, cwd=_CHECKOUT,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines()[-1:] or [f"it ended with status {done.returncode}"])[0]
