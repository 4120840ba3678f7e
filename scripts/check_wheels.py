"""Checks wheels without running them: the tag, the files, and what each kernel library needs from the system.

    python scripts/check_wheels.py dist/*.whl

Prints a line about each wheel, and below it what is wrong with it; the exit status is 1 if anything is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lmdbloader.kernels.building.targets import TARGETS, Target, targets_of_wheel  # noqa: E402
from lmdbloader.kernels.entries import all_entries  # noqa: E402

MIB = 2**20
MOST_MIB = 6.0
BUILT = "lmdbloader/kernels/built"
MODULES = "lmdbloader/"
LEVEL = "lmdbloader_level"
# The oldest C library, which a manylinux wheel promises.
GLIBC = (2, 17)
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Part of Windows since version 10.
WINDOWS_LIBRARIES = re.compile(r"(kernel32|ntdll|ucrtbase|api-ms-win-crt-[a-z]+-l1-1-0)\.dll", re.IGNORECASE)
MACOS_LIBRARIES = {"/usr/lib/libSystem.B.dylib"}
# The linker names the start of a library itself; no other library sees these.
MACOS_OWN = {"__mh_dylib_header", "___dso_handle", "dyld_stub_binder"}
# Parts of paths on a build machine.
BUILDERS = (b"site-packages", b"/tmp/", b".cache/zig", b"system.c")


def expected_exports() -> set[str]:
    """Return the names of all functions that Python calls."""
    return {f"lmdbloader_{name}" for entry in all_entries() for name in entry.variants} | {LEVEL}


def check_wheel(path: Path) -> list[str]:
    """Return what is wrong with a wheel, one sentence each."""
    wrong = []
    tag = path.name.removesuffix(".whl").split("-", 2)[-1]
    platform = tag.removeprefix("py3-none-")
    targets = targets_of_wheel(platform)
    if tag == platform or not targets:
        known = ", ".join(sorted({target.wheel for target in TARGETS}))
        return [f"the tag is {tag}; py3-none-PLATFORM was expected, with one of {known}"]
    if path.stat().st_size > MOST_MIB * MIB:
        wrong.append(f"it has {path.stat().st_size / MIB:.1f} MiB; at most {MOST_MIB:g} are allowed")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        wrong += check_names(names, targets)
        for name in names:
            if name.endswith(".dist-info/WHEEL"):
                wrong += check_tags(archive.read(name).decode("utf-8"), platform)
        libraries = {target: f"{BUILT}/{target.file_name}" for target in targets}
        data = {target: archive.read(name) for target, name in libraries.items() if name in names}
        if f"{BUILT}/libraries.json" in names:
            digests = json.loads(archive.read(f"{BUILT}/libraries.json"))["libraries"]
            if digests != {t.file_name: hashlib.sha256(content).hexdigest() for t, content in data.items()}:
                wrong.append("libraries.json does not hold the digests of exactly these libraries")
    for target, content in data.items():
        wrong += [f"{target.file_name}: {what}" for what in check_library(content, target)]
    return wrong


def check_names(names: Sequence[str], targets: Sequence[Target]) -> list[str]:
    """Return what is wrong with the names of a wheel's files: all modules, the targets' libraries, and no more."""
    built = {name.removeprefix(f"{BUILT}/") for name in names if name.startswith(f"{BUILT}/")}
    wanted = {"libraries.json", *(target.file_name for target in targets)}
    wrong = [f"{BUILT} lacks {name}" for name in sorted(wanted - built)]
    wrong += [f"{BUILT} holds {name}, which is not for users" for name in sorted(built - wanted)]
    wrong += [
        f"{name} does not belong in a wheel"
        for name in names
        if not name.startswith(MODULES) and ".dist-info/" not in name
    ]
    return wrong


def check_tags(text: str, platform: str) -> list[str]:
    """Return what is wrong with a WHEEL file: its tags are those in the wheel's name, and it holds machine code."""
    found = re.findall(r"(?m)^Tag: (.+)$", text)
    wanted = [f"py3-none-{part}" for part in platform.split(".")]
    wrong = [] if sorted(found) == sorted(wanted) else [f"WHEEL has the tags {found}; expected {wanted}"]
    return wrong if "Root-Is-Purelib: false" in text else [*wrong, "WHEEL says that it holds no machine code"]


def check_library(data: bytes, target: Target) -> list[str]:
    """Return what is wrong with a library of kernels for a target."""
    import lief  # the other checks need nothing but Python

    lief.logging.disable()  # it reports optional parts that a linker left out
    check = {"Linux": _check_elf, "Windows": _check_pe, "Darwin": _check_macho}[target.system]
    kind = {"Linux": lief.ELF, "Windows": lief.PE, "Darwin": lief.MachO}[target.system].Binary
    found = lief.parse(list(data))
    if not isinstance(found, kind):
        return [f"this is not a library for {target.system}"]
    wrong = list(check(found, target, data))
    if there := [name.decode() for name in BUILDERS if name in data]:
        wrong.append(f"it holds {', '.join(there)}, which is part of a path of the machine that built it")
    return wrong


def _check_exports(found: set[str]) -> Iterator[str]:
    wanted = expected_exports()
    if wanted - found:
        yield f"it lacks {', '.join(sorted(wanted - found))}"
    if found - wanted:
        yield f"it exports {', '.join(sorted(found - wanted))}, which nothing calls"


def _check_elf(library: Any, target: Target, data: bytes) -> Iterator[str]:
    import lief

    machine = lief.ELF.ARCH.AARCH64 if target.kind == "aarch64" else lief.ELF.ARCH.X86_64
    if library.header.machine_type != machine:
        yield f"it is for {library.header.machine_type.name}"
    if others := set(library.libraries) - LIBRARIES:
        yield f"it needs {', '.join(sorted(others))}"
    tags = {entry.tag for entry in library.dynamic_entries}
    if tags & {lief.ELF.DynamicEntry.TAG.RPATH, lief.ELF.DynamicEntry.TAG.RUNPATH}:
        yield "it has a path to look for libraries (RPATH)"
    if lief.ELF.DynamicEntry.TAG.TEXTREL in tags:
        yield "its code is changed while it is loaded (TEXTREL)"
    stacks = [segment for segment in library.segments if segment.type == lief.ELF.Segment.TYPE.GNU_STACK]
    if not stacks or any(lief.ELF.Segment.FLAGS.X in segment for segment in stacks):
        yield "it asks for a stack that can be executed"
    yield from _check_exports({symbol.name for symbol in library.exported_symbols})
    for symbol in library.imported_symbols:
        version = _version(symbol)
        numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
        if symbol.binding != lief.ELF.Symbol.BINDING.WEAK and not version:
            yield f"{symbol.name} is undefined: none of the libraries that it needs has it"
        elif version and (numbers is None or (int(numbers[1]), int(numbers[2])) > GLIBC):
            yield f"{symbol.name} needs {version}; the newest allowed is GLIBC_{GLIBC[0]}.{GLIBC[1]}"


def _version(symbol: Any) -> str:
    """Return the version that an imported symbol is bound to, "" if none."""
    if symbol.has_version and symbol.symbol_version.has_auxiliary_version:
        return str(symbol.symbol_version.symbol_version_auxiliary.name)
    return ""


def _check_pe(library: Any, target: Target, data: bytes) -> Iterator[str]:
    import lief

    if library.header.machine != lief.PE.Header.MACHINE_TYPES.AMD64:
        yield f"it is for {library.header.machine.name}"
    if others := [name for name in (part.name for part in library.imports) if not WINDOWS_LIBRARIES.fullmatch(name)]:
        yield f"it needs {', '.join(sorted(others))}"
    flags = lief.PE.OptionalHeader.DLL_CHARACTERISTICS
    for flag in (flags.DYNAMIC_BASE, flags.NX_COMPAT, flags.HIGH_ENTROPY_VA):
        if not library.optional_header.has(flag):
            yield f"it is not marked {flag.name}"
    yield from _check_exports({function.name for function in library.exported_functions})


def _check_macho(library: Any, target: Target, data: bytes) -> Iterator[str]:
    import lief

    is_arm = target.kind == "aarch64"
    if library.header.cpu_type != (lief.MachO.Header.CPU_TYPE.ARM64 if is_arm else lief.MachO.Header.CPU_TYPE.X86_64):
        yield f"it is for {library.header.cpu_type.name}"
    needed = {part.name for part in library.libraries if part.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB}
    if needed - MACOS_LIBRARIES:
        yield f"it needs {', '.join(sorted(needed - MACOS_LIBRARIES))}"
    names = [part.name for part in library.libraries if part.command == lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    if names != [f"@rpath/{target.file_name}"]:
        yield f"its own name is {names}; a path of the machine that built it means nothing elsewhere"
    if library.has_rpath:
        yield "it has a path to look for libraries (RPATH)"
    wanted = tuple(map(int, target.wheel.split("_")[1:3]))
    oldest = tuple(library.build_version.minos[:2]) if library.has_build_version else None
    if oldest != wanted:
        yield f"it needs macOS {oldest}; its wheel promises {wanted}"
    yield from _check_exports({s.name[1:] for s in library.exported_symbols if s.name not in MACOS_OWN})
    if is_arm:
        yield from _check_signature(data, library)


def _check_signature(data: bytes, library: Any) -> Iterator[str]:
    """Compare the digests of an ad hoc signature with the file: macOS ends a process that loads other arm64 code."""
    if not library.has_code_signature:
        yield "it has no signature, and macOS runs no unsigned arm64 code"
        return
    at, nbytes = library.code_signature.data_offset, library.code_signature.data_size
    signature = data[at : at + nbytes]
    magic, _, count = struct.unpack(">3I", signature[:12])
    slots = dict(struct.iter_unpack(">2I", signature[12 : 12 + 8 * count])) if magic == 0xFADE0CC0 else {}
    directory = signature[slots.get(0, len(signature)) :]
    if len(directory) < 44 or directory[:4] != b"\xfa\xde\x0c\x02":
        yield "its signature has no code directory"
        return
    flags, hashes, _, _, num_pages, limit = struct.unpack(">6I", directory[12:36])
    size, kind, _, page_bits = directory[36:40]
    if not flags & 2:
        yield "its signature is not an ad hoc one"
    page_nbytes = 1 << page_bits
    if (size, kind, limit, num_pages) != (32, 2, at, -(-at // page_nbytes)):
        yield "its signature does not cover the file in SHA-256 digests of pages"
        return
    for page in range(num_pages):
        content = data[page * page_nbytes : min(limit, (page + 1) * page_nbytes)]
        if hashlib.sha256(content).digest() != directory[hashes + 32 * page :][:32]:
            yield f"page {page} is not what was signed"
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Check wheels and print a line about each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL", help="a wheel of lmdbloader, for any platform")
    options = parser.parse_args(arguments)
    failed = 0
    for path in options.wheels:
        wrong = check_wheel(path)
        failed += bool(wrong)
        print(f"{path.name}: {path.stat().st_size:,} bytes, {'defects:' if wrong else 'sound'}")
        print("".join(f"  {what}\n" for what in wrong), end="")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
