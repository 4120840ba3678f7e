"""From LLVM code to shared libraries: optimized for each target by LLVM, linked by zig's linker."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import llvmlite.binding as llvm

from lmdbloader.kernels.building.lowering import BuildError, Lowering
from lmdbloader.kernels.building.targets import TARGETS, Target, targets_here
from lmdbloader.kernels.calls.libraries import INVENTORY, built_from, source_digest
from lmdbloader.kernels.entries import all_entries
from lmdbloader.kernels.runtime import half

_SYSTEM = Path(__file__).with_name("system.c")
# LLVM's names of what each level of x86-64 adds.
_FEATURES = {
    2: ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"),
    3: ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    4: ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}
# Numba's messages for exceptions. Kernels raise none, so nothing may refer to them once unused code is removed.
_EXCEPTION = ".const.picklebuf"
_BY_SIZE = "lmdbloader.kernels.jpeg."


def build(
    targets: Iterable[Target],
    out: Path,
    *,
    units: Path | None = None,
    if_changed: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Build the library of each target into a folder, and the inventory of them.

    Args:
        targets: One for each library.
        out: Created if necessary; libraries of other targets are removed.
        units: Where lowered kernels are kept for the next build; by default in the folder.
        if_changed: Whether to keep the folder's libraries of these targets that are undamaged and from the present
            sources; where all are, nothing is done.
        report: Called with a line about each step.

    Raises:
        BuildError: A kernel or a library cannot be built.
    """
    out.mkdir(parents=True, exist_ok=True)
    targets = tuple(targets)
    with _locked(out):
        sources = source_digest()
        digests = _kept(targets, out) if if_changed and built_from(out) == sources else {}
        missing = [target for target in targets if target.file_name not in digests]
        if not missing:
            return
        units = units or out / "units"
        units.mkdir(parents=True, exist_ok=True)
        lowering = Lowering(units)
        entries = [(name, s) for entry in all_entries() for name, s in entry.variants.items()]
        with _without_collections():
            text = lowering.lower(entries)
        lowering.prune()
        report(f"lowered {lowering.num_lowered}, kept {lowering.num_kept} unchanged")
        for target in missing:
            with tempfile.TemporaryDirectory(dir=out, prefix="building-") as folder:
                compiled, library = Path(folder, "kernels.o"), Path(folder, target.file_name)
                compiled.write_bytes(optimized(text, target))
                _link(library, compiled, target)
                digests[target.file_name] = hashlib.sha256(library.read_bytes()).hexdigest()
                report(f"{target.file_name}: {library.stat().st_size:,} bytes")
                os.replace(library, out / target.file_name)
        _finish(out, digests, sources)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Leave what Numba makes to the end: to look for garbage in it takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _kept(targets: Iterable[Target], out: Path) -> dict[str, str]:
    """Return the digests of a folder's undamaged libraries of these targets."""
    try:
        digests = json.loads((out / INVENTORY).read_text("utf-8"))["libraries"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {}
    for target in targets:
        with contextlib.suppress(OSError):
            found[target.file_name] = hashlib.sha256((out / target.file_name).read_bytes()).hexdigest()
    return {name: digest for name, digest in found.items() if digests.get(name) == digest}


def _finish(out: Path, digests: dict[str, str], sources: str) -> None:
    """Write the inventory and remove other libraries."""
    partial = out / f"{INVENTORY}.partial"
    partial.write_text(json.dumps({"libraries": digests, "sources": sources}, indent=1, sort_keys=True) + "\n", "utf-8")
    os.replace(partial, out / INVENTORY)
    for path in out.glob("kernels-*"):
        if path.name not in digests:
            path.unlink()


def best_here() -> Target:
    """Return the target for this machine's processor; raise BuildError if there is none."""
    has = llvm.get_host_cpu_features()
    # All that `lmdbloader_level` in system.c asks for: what is built here has to be loaded here.
    missing = [level for level, names in _FEATURES.items() if not all(has.get(name) for name in names)]
    fitting = [t for t in targets_here() if "x86" not in t.kind or int(t.kind[-1]) < min(missing, default=5)]
    if not fitting:
        known = ", ".join(t.name for t in TARGETS)
        raise BuildError(f"kernels cannot be built for {platform.system()} on {platform.machine()}; known: {known}")
    return fitting[-1]


def optimized(text: str, target: Target) -> bytes:
    """Return the object file of a module's text for one target."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(target.processor, "", 3, "pic", "default")
    # All targets have 64 bits and are little-endian, and lay out Numba's types in the same way.
    for name, value in (("triple", target.triple), ("datalayout", machine.target_data)):
        text = re.sub(rf'^target {name} = ".*"$', f'target {name} = "{value}"', text, flags=re.MULTILINE)
    module = llvm.parse_assembly(text)
    module.link_in(llvm.parse_assembly(half.half_bits_body(target.converts_to_half)))
    module.get_function(half.NAME).linkage = "internal"
    if target.system == "Windows":  # where a library exports only functions that are marked
        for function in module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.storage_class = llvm.StorageClass.dllexport
    # An internal function that is called once is inlined whatever its size. The JPEG decoder's loops then have too few
    # registers, which costs 4 % of its speed; as functions that others might call, too, they are inlined by size.
    for function in module.functions:
        if not function.is_declaration and function.name.startswith(_BY_SIZE):
            function.linkage = "linkonce_odr"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization, options.slp_vectorization = True, False  # as in Numba
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    raising = [v.name for v in module.global_variables if v.name.startswith(_EXCEPTION)]
    if raising:
        bodies = {f.name: str(f) for f in module.functions if not f.is_declaration}
        users = [name for name, body in bodies.items() if any(message in body for message in raising)]
        raise BuildError(f"a kernel may raise an exception, which nobody would see, in {users}. Return a status.")
    for function in module.functions:
        if not function.is_declaration and function.linkage == llvm.Linkage.linkonce_odr:
            function.linkage = "internal"
    for value in module.global_variables:
        if not value.is_declaration:
            value.linkage = "private"  # or Mach-O keeps its name, which depends on the kernels lowered before
    return bytes(machine.emit_object(module))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time build into a folder; without locks several may, which replace whole files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _link(library: Path, compiled: Path, target: Target) -> None:
    """Link an object file with its functions of the system; nothing may stay undefined."""
    command = [
        sys.executable, "-m", "ziglang", "cc", "-target", target.linked_for,
        # The kernels are compiled already. The rest, such as Windows' start-up code, runs on any processor, and is
        # compiled once for all levels.
        "-mcpu=baseline", "-shared", "-O2", "-s", "-g0", "-fvisibility=hidden",
        "-ffp-contract=off", "-Wall", str(_SYSTEM), str(compiled), "-o", str(library),
    ]  # fmt: skip
    if target.system == "Linux":
        command.append("-Wl,--no-undefined")
    if target.system == "Darwin":  # the name in the library is otherwise the path of a temporary folder
        command.append(f"-Wl,-install_name,@rpath/{target.file_name}")
    done = subprocess.run(
        command, env=zig_environment(library.parent), capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"{target.name} was not linked: {done.stderr.strip() or done.stdout.strip()}")


def zig_environment(temporary: Path) -> dict[str, str]:
    """Return zig's environment; where a user has no home to write to, as in a container, it keeps nothing."""
    found = dict(os.environ)
    if not os.access(found.get("HOME", ""), os.W_OK):
        found.setdefault("ZIG_GLOBAL_CACHE_DIR", str(temporary / "zig"))
    return found
