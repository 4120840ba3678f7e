"""Runs the tests in a Debian chroot in `.chroots`: with Python 3.13, or on emulated aarch64.

The first call makes it with debootstrap, from Debian's packages and PyPI; later calls reuse it. The tests run on a copy
of the files that git lists here, with the kernel libraries that were built here, so the chroot builds none. Only root
can run this, because the files in a chroot belong to root.

    python scripts/chroots.py python313 --built lmdbloader/kernels/built                  # make test-python313
    python scripts/chroots.py python313 --built lmdbloader/kernels/built tests/test_cli.py -x

Other options and names of tests are passed on to pytest.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from namespaces import Emulator, NamespaceError, find_emulator, run_in
from setup_env import telling_line

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".chroots"
MIRROR = "http://deb.debian.org/debian"
TREE, VENV = Path("/lmdbloader"), Path("/opt/venv")  # inside
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# What pip may need to know about this machine's network.
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
# What Debian's torch and pip's need; `pip install torch` itself would bring another build.
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")


class ChrootError(Exception):
    """The Debian cannot be made or used; the message is for the person who ran make."""


@dataclass(frozen=True, slots=True)
class Debian:
    """One Debian to test in.

    Attributes:
        name: Of its folder, and on the command line.
        suite: Debian's release.
        processor: As `platform.machine()` names it; empty for this machine's.
        packages: Debian's packages that are installed.
        torch: What pip takes as torch for CPUs; empty to use Debian's package python3-torch.
        requirements: What pip installs besides the package's own requirements and TORCH_NEEDS.
        extras: Extras of setup.cfg that are installed too.
        options: Of pytest; those on the command line come after them.
        tests: Names of tests, tests/test_NAME.py, that run unless others are named; empty for all.
    """

    name: str
    suite: str
    processor: str
    packages: tuple[str, ...]
    torch: str
    requirements: tuple[str, ...]
    extras: tuple[str, ...]
    options: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def root(self) -> Path:
        return HOME / self.name

    @property
    def emulated(self) -> bool:
        return self.processor not in ("", platform.machine())


# Tests of what QEMU, which runs the programs of another processor, does differently from Linux.
NOT_EMULATED = (
    # It accepts any advice on memory and does nothing.
    "test_kernels_runtime_paging.py::test_a_page_that_was_touched_is_in_memory_and_a_far_one_is_not",
    "test_kernels_runtime_paging.py::test_load_past_the_end_says_so[22]",  # 22: MADV_POPULATE_READ
    "test_kernels_runtime_paging.py::test_advise_has_the_system_read_its_ranges",
    "test_kernels_runtime_paging.py::test_load_brings_in_its_ranges_and_no_others",
    "test_kernels_runtime_presence.py::test_pages_behind_the_end_are_not_there_though_the_length_is_not_looked_at",
    "test_store_readahead.py::test_load_brings_in_all_samples_before_the_ticket_is_done",
    "test_store_readahead.py::test_will_need_brings_samples_in_but_no_large_tiled_image",
    # The store at which torchrun's processes meet does not answer; other tests there fork the processes.
    "test_loader_ranks.py::test_an_epoch_goes_through_groups_of_all_sizes",
    # It has less address space.
    "test_conversion_from_python.py::test_samples_of_every_origin_keep_their_order[too long]",
)

DEBIANS = (
    Debian(
        name="python313",
        suite="trixie",
        processor="",
        # For x86-64, PyPI has torch with gigabytes of CUDA only.
        packages=("ca-certificates", "make", "procps", "python3", "python3-venv", "python3-torch"),
        torch="",
        requirements=(),
        extras=("demo", "test", "bench", "docs", "kernels"),
        # Debian's torch lacks libuv, which torchrun asks for.
        options=(
            "--deselect", "tests/test_train_classifier.py::test_two_processes_share_the_data_and_end_with_one_model",
            "--deselect", "tests/test_loader_ranks.py::test_an_epoch_goes_through_groups_of_all_sizes",
        ),
        tests=(),
    ),
    Debian(
        name="aarch64",
        suite="bookworm",
        processor="aarch64",
        packages=("ca-certificates", "procps", "python3", "python3-venv"),
        # The last one that is known to come without CUDA for this processor.
        torch="torch==2.9.1",
        requirements=(
            "aiohttp", "h5py", "hypothesis", "matplotlib", "numba", "psutil", "pytest", "pytest-xdist",
            "s3fs", "scikit-image",
        ),
        extras=(),
        options=("-o", "faulthandler_timeout=3600", *(f"--deselect=tests/{name}" for name in NOT_EMULATED)),
        # What depends on the processor: kernels, files, reading and writing.
        tests=(
            "base_files", "batch_*", "conversion_from_*", "conversion_storage", "format_*", "images*", "kernels_*",
            "loader*", "store_*", "transforms*", "versions",
        ),
    ),
)  # fmt: skip


def say(text: str) -> None:
    """Print a line for the person at the terminal."""
    print(text, flush=True)


def check_machine(debian: Debian) -> Emulator | None:
    """Return the emulator that is needed, if one is.

    Raises:
        ChrootError: This machine lacks something; the message says what.
    """
    if platform.system() != "Linux":
        raise ChrootError(f"a Debian can be made on Linux only; this is {platform.system()}")
    if os.geteuid() != 0:
        raise ChrootError("run it as root: the files of a Debian belong to root")
    if shutil.which("debootstrap") is None:
        raise ChrootError("debootstrap is not installed; it makes the Debian (apt install debootstrap)")
    if (debian.processor or platform.machine()) not in ARCHITECTURES:
        raise ChrootError(f"expected a processor of {' or '.join(ARCHITECTURES)}, found {platform.machine()}")
    if not debian.emulated:
        return None
    emulator = find_emulator(debian.processor)
    if emulator is None:
        raise ChrootError(
            f"qemu-{debian.processor}-static is not installed; it emulates {debian.processor} "
            "(apt install qemu-user-static)"
        )
    return emulator


@dataclass(frozen=True, slots=True)
class Inside:
    """Runs commands in a Debian."""

    debian: Debian
    root: Path
    emulator: Emulator | None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands: of this machine's, only what the network needs."""
        passed = {name: os.environ[name] for name in (*PASSED_ON, "CI", "TERM") if name in os.environ}
        passed |= {name.upper(): os.environ[name.upper()] for name in PASSED_ON if name.upper() in os.environ}
        return passed | {
            "PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            "PIP_CERT": str(CERTIFICATES),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",  # torch's threads would take more than some tests leave to a process
        }

    def step(self, *command: str, more: Mapping[str, str] | None = None) -> None:
        """Run one step of the set-up, with its output in the log; raise ChrootError if it fails."""
        quiet_step(self.debian, self.root, command, self.environment | dict(more or {}), self.emulator)


def quiet_step(
    debian: Debian, root: Path, command: Sequence[str], environment: Mapping[str, str], emulator: Emulator | None = None
) -> None:
    """Run a command, with its output in the log; raise ChrootError with the line that says why if it fails."""
    log = HOME / f"{debian.name}.log"
    code = run_in(root, command, environment=environment, emulator=emulator, log=log)
    if code:
        why = telling_line(log.read_text("utf-8", "replace"))
        short = textwrap.shorten(" ".join(command), 60, placeholder=" ...")
        raise ChrootError(f"`{short}` ended with status {code}: {why} (the whole story: {log})")


def make_root(debian: Debian, emulator: Emulator | None) -> None:
    """Make the Debian's root folder; it appears under its name when it is complete."""
    partial = debian.root.with_name(f"{debian.name}.partial")
    for folder in (partial, debian.root):
        remove(folder)
    say(f"Making a Debian {debian.suite} in {debian.root}; this takes a few minutes and happens once.")
    environment = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    architecture = ARCHITECTURES[debian.processor or platform.machine()]
    options = ["--variant=minbase", "--include=ca-certificates", f"--arch={architecture}"]
    if emulator:
        options.append("--foreign")
    quiet_step(debian, Path("/"), ["debootstrap", *options, debian.suite, str(partial), MIRROR], environment)
    inside = Inside(debian, partial, emulator)
    if emulator:
        # No devices can be made in a user namespace; debootstrap does not try if `container` is set.
        inside.step("/debootstrap/debootstrap", "--second-stage", more={"container": "lxc"})
    for path in (CERTIFICATES, Path("/etc/resolv.conf")):
        if path.exists():
            shutil.copyfile(path, partial / path.relative_to("/"))
    inside.step("apt-get", "-qq", "update")
    inside.step("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *debian.packages)
    inside.step("apt-get", "clean")
    partial.rename(debian.root)


def make_environment(inside: Inside, torch_index: str | None) -> None:
    """Make the Python environment inside, with the versions of constraints.txt."""
    debian, root = inside.debian, inside.root
    torch = debian.torch or ("torch" if torch_index else "")
    say(f"Installing the packages that the tests need in {root}.")
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    if not torch_index:
        constraints = re.sub(r"(?m)^torch==.*\n", "", constraints)
    (root / "opt/constraints.txt").write_text(constraints, "utf-8")
    pip = [f"{VENV}/bin/pip", "install", "--no-compile", "--no-cache-dir", "--progress-bar", "off"]
    pip += ["--constraint", "/opt/constraints.txt"]
    inside.step("python3", "-m", "venv", "--clear", str(VENV))
    (site,) = (root / VENV.relative_to("/")).glob("lib/python3*/site-packages")
    index = ["--extra-index-url", torch_index] if torch_index else []
    inside.step(*pip, *index, *requirements(debian), *([torch] if torch else []))
    if not torch:
        packages = Path("usr/lib/python3/dist-packages")
        for path in (root / packages).glob("*torch*"):
            (site / path.name).symlink_to("/" / packages / path.name)
    (site / "lmdbloader.pth").write_text(f"{TREE}\n", "utf-8")
    program = root / VENV.relative_to("/") / "bin/lmdbloader"
    program.write_text(f"#!{VENV}/bin/python\nimport sys\nfrom lmdbloader.cli import main\nsys.exit(main())\n", "utf-8")
    program.chmod(0o755)


def requirements(debian: Debian) -> list[str]:
    """Return what pip installs, except torch."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", "utf-8")
    texts = [parser["options"]["install_requires"], *(parser["options.extras_require"][e] for e in debian.extras)]
    declared = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    names = {line: re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0].lower() for line in declared}
    kept = [line for line in declared if names[line] != "torch"]
    return list(dict.fromkeys([*kept, *TORCH_NEEDS, *debian.requirements]))


def copy_tree(to: Path, built: Path | None) -> None:
    """Update the copy of this folder: files that git tracks or would add, and the kernel libraries in `built`.

    Raises:
        ChrootError: This folder is not a clone.
    """
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ChrootError(f"{ROOT} is not a clone: git does not list its files ({done.stderr.decode().strip()})")
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    files = {name: ROOT / name for name in names if (ROOT / name).is_file()}
    if built:
        libraries = [*built.glob("kernels-*"), built / "libraries.json"]
        files |= {f"lmdbloader/kernels/built/{path.name}": path for path in libraries}
    known = to / ".copied"
    before = set(known.read_text("utf-8").split("\0")) if known.exists() else set()
    for name in before - files.keys() - {""}:
        (to / name).unlink(missing_ok=True)
    for name, path in files.items():
        there, here = to / name, path.stat()
        if there.exists() and (there.stat().st_size, there.stat().st_mtime_ns) == (here.st_size, here.st_mtime_ns):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)
    known.write_text("\0".join(sorted(files)), "utf-8")


def remove(folder: Path) -> None:
    """Remove a root folder, if it is there.

    Raises:
        ChrootError: Something is mounted in it, and removing it would reach into that.
    """
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines()]
    if inner := [place for place in mounted if Path(place).is_relative_to(folder)]:
        raise ChrootError(f"{inner[0]} is mounted inside {folder}; unmount it first (umount {inner[0]})")
    if folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def locked(debian: Debian) -> Iterator[None]:
    """Let one process at a time work in a Debian."""
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{debian.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is using {debian.root}; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refresh(place: Path, inputs: Iterable[str]) -> bool:
    """Return whether a stamp differs from a digest of these texts, and remove it if so."""
    digest = digest_of(inputs)
    if place.exists() and place.read_text("utf-8") == digest:
        return False
    place.unlink(missing_ok=True)
    return True


def digest_of(texts: Iterable[str]) -> str:
    """Return a digest of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def test_in(debian: Debian, arguments: Sequence[str], *, torch_index: str | None = None, built: Path | None) -> int:
    """Make the Debian unless it is there, and run tests in it; return pytest's exit status.

    Raises:
        ChrootError: It cannot be made or used.
    """
    emulator = check_machine(debian)
    with locked(debian):
        stamps = {name: HOME / f"{debian.name}.{name}" for name in ("debian", "environment")}
        # The inputs of the root folder and the environment; if they change, both are made again.
        base = [debian.suite, debian.processor or platform.machine(), *debian.packages]
        files = [(ROOT / name).read_text("utf-8") for name in ("setup.cfg", "constraints.txt")]
        more = [*base, *files, repr(replace(debian, options=(), tests=())), torch_index or ""]
        if refresh(stamps["debian"], base) or not debian.root.exists():
            stamps["environment"].unlink(missing_ok=True)
            make_root(debian, emulator)
            stamps["debian"].write_text(digest_of(base), "utf-8")
        inside = Inside(debian, debian.root, emulator)
        if refresh(stamps["environment"], more):
            make_environment(inside, torch_index)
            stamps["environment"].write_text(digest_of(more), "utf-8")
        tree = debian.root / TREE.relative_to("/")
        copy_tree(tree, built)
        shutil.rmtree(debian.root / "tmp/pytest-of-root", ignore_errors=True)
        command = [f"{VENV}/bin/python", "-m", "pytest", *debian.options, *arguments]
        if not any(".py" in argument for argument in arguments):
            found = [sorted(tree.glob(f"tests/test_{name}.py")) for name in debian.tests]
            if missing := [name for name, paths in zip(debian.tests, found, strict=True) if not paths]:
                raise ChrootError(f"no tests/test_{missing[0]}.py; bring `tests` in {__file__} up to date")
            command += ["--numprocesses", "2", "--dist", "worksteal"]
            command += [str(path.relative_to(tree)) for paths in found for path in paths]
        return run_in(debian.root, command, environment=inside.environment, emulator=emulator, folder=TREE)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("debian", choices=[debian.name for debian in DEBIANS], help="which chroot")
    parser.add_argument("--torch-index", metavar="URL", help="one more package index, for another build of torch")
    parser.add_argument("--built", metavar="DIR", type=Path, help="the kernel libraries for it (default: it has none)")
    options, others = parser.parse_known_args()
    (debian,) = (debian for debian in DEBIANS if debian.name == options.debian)
    try:
        return test_in(debian, others, torch_index=options.torch_index, built=options.built)
    except (ChrootError, NamespaceError) as error:
        print(f"chroots: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("chroots: interrupted; nothing is left running or mounted.", file=sys.stderr)
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
