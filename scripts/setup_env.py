"""Makes `.venv`: the pinned packages, with pillow-simd instead of Pillow if it builds; runs no pip if it is current.

`make` calls this before every target that needs Python packages. Pillow and pillow-simd are the same importable package
under two names, and every requirement of Pillow reinstalls Pillow over pillow-simd. So the swap comes last, from wheels
in `.venv-cache`, and works offline from then on.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:
    sys.exit(
        "setup_env: `make` and its environment need Linux or macOS. On Windows make one by hand: py -m venv .venv, "
        "then .venv\\Scripts\\pip install -c constraints.txt -e .[test]"
    )

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "demo,test,dev,bench,docs"
PILLOW, SIMD = "pillow", "pillow-simd"
INPUTS = ("setup.cfg", "pyproject.toml", "constraints.txt", "scripts/setup_env.py")

# Run in a fresh interpreter: the PIL in place must import, and write and read the two formats that matter most.
CHECK = """
import io
from PIL import Image
image = Image.merge("RGB", [Image.linear_gradient("L").rotate(turn) for turn in (0, 90, 180)]).resize((64, 48))
for kind, tolerance in (("PNG", 0), ("JPEG", 48)):
    stored = io.BytesIO()
    image.save(stored, kind, **({"quality": 95} if kind == "JPEG" else {}))
    found = Image.open(io.BytesIO(stored.getvalue()))
    found.load()
    assert found.size == image.size and found.mode == image.mode, f"{kind}: another size or mode came back"
    apart = max(abs(a - b) for a, b in zip(found.tobytes(), image.tobytes()))
    assert apart <= tolerance, f"{kind}: pixels came back {apart} levels apart"
"""

# As `python -m lmdbloader.kernels.building`, in a clone that is not the current folder.
BUILD_KERNELS = """
import runpy, sys
sys.path.insert(0, sys.argv.pop())
runpy.run_module("lmdbloader.kernels.building", run_name="__main__", alter_sys=True)
"""


class SetupError(Exception):
    """The environment, or the PIL that was asked for, cannot be made; the message is for the person who ran make."""


def run(command: Sequence[str], log: Path | None = None) -> None:
    """Run a command, its output to the terminal or into `log`; raise SetupError when it fails."""
    if log is None:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, close_fds=False).returncode
    else:
        with log.open("wb") as output:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, close_fds=False
            ).returncode
    if code and log:
        raise SetupError(f"{telling_line(log.read_text('utf-8', 'replace'))} (the whole story: {log})")
    if code:
        raise SetupError(f"`{textwrap.shorten(' '.join(command), 100)}` failed with status {code}; it said why above")


def telling_line(output: str) -> str:
    """Return the line of a failed build's or import's output that says why.

    >>> telling_line("copying\\nerror: command '/bin/cc' failed with exit code 1\\nERROR: Failed building wheel for x")
    "error: command '/bin/cc' failed with exit code 1"
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    for pattern in (
        r"headers or library files",
        r"^error: command",
        r"fatal error",
        r"^\w*(Error|Exception)\b",
        r"^ERROR",
    ):
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return textwrap.shorten(line, 120, placeholder=" ...")
    return textwrap.shorten(lines[-1], 120, placeholder=" ...")


@dataclass(frozen=True, slots=True)
class Stamp:
    """The inputs of a finished set-up and the chosen PIL; on disk only while the environment is complete.

    Attributes:
        digest: Of the files in INPUTS.
        interpreter: The Python that the environment stands on.
        folder: Where the environment was made; its scripts name that place.
        wanted: PILLOW or SIMD.
        note: Why Pillow is in place although pillow-simd was wanted; empty otherwise.
    """

    digest: str
    interpreter: str
    folder: str
    wanted: str
    note: str


@dataclass(frozen=True, slots=True)
class Environment:
    """One folder's environment and how commands are run for it."""

    root: Path
    run: Callable[..., None] = run

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def cache(self) -> Path:
        return self.root / ".venv-cache"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def pip(self, *arguments: str, log: Path | None = None) -> None:
        """Run pip, quietly unless somebody watches."""
        quiet = [] if log or sys.stdout.isatty() else ["--quiet"]
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", *quiet, *arguments]
        self.run(command, log)


def digest_of(root: Path) -> str:
    """Return a digest of all inputs of the installation."""
    digest = hashlib.sha256()
    for name in INPUTS:
        data = (root / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def read_stamp(env: Environment) -> Stamp | None:
    """Return the stamp of a finished set-up, or None when there is none that is whole."""
    try:
        return Stamp(**json.loads((env.venv / "setup.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(env: Environment, stamp: Stamp) -> None:
    """Put the stamp in place whole."""
    partial = env.venv / "setup.json.partial"
    partial.write_text(json.dumps(asdict(stamp), indent=2) + "\n", "utf-8")
    partial.replace(env.venv / "setup.json")


def pil_in_place(env: Environment) -> tuple[str, str] | None:
    """Return the distribution and the version that `import PIL` finds, or None; reads one line, imports nothing."""
    for path in env.venv.glob("lib/python3*/site-packages/PIL/_version.py"):
        match = re.search(r'^__version__ = "(.+)"', path.read_text("utf-8"), re.MULTILINE)
        if match:
            return (SIMD if ".post" in match[1] else PILLOW), match[1]
    return None


@contextlib.contextmanager
def locked(env: Environment, say: Callable[[str], None]) -> Iterator[None]:
    """Let one set-up at a time work on the folder; a pip that outlives its set-up keeps the lock too."""
    env.cache.mkdir(exist_ok=True)
    with (env.cache / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up is at work in this folder; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wheel_of(env: Environment, name: str, say: Callable[[str], None]) -> Path:
    """Return the cached wheel of PILLOW or SIMD at its pinned version, fetched or built when it is not there yet."""
    flags = {key: os.environ[key] for key in ("CC", "CFLAGS", "LDFLAGS") if os.environ.get(key)}
    pins = (env.root / "constraints.txt").read_text("utf-8")
    key = hashlib.sha256(json.dumps([flags, re.findall(r"(?m)^pillow.*$", pins)]).encode()).hexdigest()[:12]
    folder = env.cache / "wheels" / f"{sys.version_info[0]}.{sys.version_info[1]}-{key}"
    pattern = f"{name.replace('-', '_')}-*.whl"
    if not list(folder.glob(pattern)):
        if name == SIMD:
            say(f"Building {SIMD} (about a minute; it needs a C compiler and the libjpeg and zlib headers).")
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        # pip's own cache knows nothing of compiler flags: with flags given, build for them.
        own_build = ["--no-cache-dir"] if flags else []
        constraints = str(env.root / "constraints.txt")
        arguments = ["wheel", *own_build, "--no-deps", "--wheel-dir", str(partial), "--constraint", constraints, name]
        env.pip(*arguments, log=env.cache / f"{name}.log")
        folder.mkdir(exist_ok=True)
        for wheel in partial.glob(pattern):
            wheel.replace(folder / wheel.name)
        shutil.rmtree(partial)
    return next(iter(folder.glob(pattern)))


def check_pil(env: Environment, name: str) -> None:
    """Raise SetupError unless the PIL in place is `name` and works in a fresh interpreter."""
    found = pil_in_place(env)
    if found is None or found[0] != name:
        raise SetupError(f"after installing {name}, PIL is {' '.join(found) if found else 'missing'}")
    env.run([str(env.python), "-I", "-c", CHECK], env.cache / "check.log")


def exchange(env: Environment, name: str, say: Callable[[str], None]) -> None:
    """Put `name` in the other PIL's place and check it; nothing is taken away before both wheels are at hand."""
    wheel = wheel_of(env, name, say)
    wheel_of(env, PILLOW, say)
    env.pip("uninstall", "--yes", PILLOW, SIMD, log=env.cache / "uninstall.log")
    env.pip("install", "--no-deps", "--no-index", str(wheel), log=env.cache / "install.log")
    check_pil(env, name)


def settle_pil(env: Environment, wanted: str, say: Callable[[str], None]) -> str:
    """Put the wanted PIL in place, or Pillow where pillow-simd cannot be; return why not, or an empty string."""
    reason = ""
    for name in (SIMD, PILLOW) if wanted == SIMD else (PILLOW,):
        found = pil_in_place(env)
        try:
            if found is None or found[0] != name:
                exchange(env, name, say)
            else:
                check_pil(env, name)
        except SetupError as error:
            reason = str(error)
        else:
            return reason
    raise SetupError(reason)


@contextlib.contextmanager
def installation(
    env: Environment, *, anew: bool, torch_index: str | None, say: Callable[[str], None]
) -> Iterator[None]:
    """Make the environment, or update the existing one to the current files; it is complete at the end of the block.

    The kernels are built at the same time: that and installing packages keep one core busy each.
    """
    if anew:
        say(f"Making {env.venv} with Python {sys.version.split()[0]}; this takes a few minutes and happens once.")
        # Not from inside another environment: that one may be the very folder that is being replaced.
        base = getattr(sys, "_base_executable", None) or sys.executable
        try:
            env.run([base, "-m", "venv", "--clear", str(env.venv)])
        except SetupError as error:
            raise SetupError(f"{error} (on Debian and Ubuntu: apt install python3-venv)") from None
    else:
        say(f"The requirements changed: bringing {env.venv} up to date.")
        env.pip("uninstall", "--yes", SIMD, log=env.cache / "uninstall.log")
    index = ["--extra-index-url", torch_index] if torch_index else []
    pinned = ["--no-compile", *index, "--constraint", str(env.root / "constraints.txt")]
    # The tools that build the kernels stay in the environment: they rebuild them after a change to their sources.
    env.pip("install", *pinned, *build_tools(env.root))
    say("Installing packages, and building the compiled kernels for this processor (about a minute).")
    with ThreadPoolExecutor(1) as thread:
        kernels = thread.submit(
            env.run, [str(env.python), "-c", BUILD_KERNELS, "--if-changed", str(env.root)], env.cache / "kernels.log"
        )
        env.pip("install", *pinned, *requirements(env.root))
        yield
        kernels.result()
    env.pip("install", *pinned, "--no-build-isolation", "--no-deps", "--editable", str(env.root))


def requirements(root: Path) -> list[str]:
    """Return what the package and its EXTRAS require."""
    parser = configparser.ConfigParser()
    parser.read(root / "setup.cfg", "utf-8")
    found = [parser.get("options", "install_requires", fallback="")]
    found += [parser.get("options.extras_require", name, fallback="") for name in EXTRAS.split(",")]
    return sorted({line for text in found for line in text.split("\n") if line})


def build_tools(root: Path) -> list[str]:
    """Return what the build of the package requires."""
    found = re.search(r"(?ms)^\[build-system\].*?^requires = \[(.*?)\]", (root / "pyproject.toml").read_text("utf-8"))
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def set_up(
    env: Environment, *, pil: str | None = None, torch_index: str | None = None, say: Callable[[str], None]
) -> None:
    """Make the environment whole, with the PIL that was asked for.

    Args:
        env: The folder to work in.
        pil: PILLOW or SIMD to insist on one of them; None for the one in place, at first pillow-simd if it builds.
        torch_index: One more package index, for a build of torch other than the default one.
        say: Where lines for the person at the terminal go.

    Raises:
        SetupError: pip failed, or `pil` is pillow-simd and it cannot be built or used here; the environment is then
            whole with Pillow, unless pip itself failed.
    """
    with locked(env, say):
        old = read_stamp(env)
        now = Stamp(
            digest=digest_of(env.root),
            interpreter=f"{sys.version_info[0]}.{sys.version_info[1]} in {os.path.realpath(sys.base_prefix)}",
            folder=str(env.root),
            wanted=pil or (old.wanted if old else SIMD),
            note="",
        )
        in_place = pil_in_place(env)
        anew = old is None or (old.interpreter, old.folder) != (now.interpreter, now.folder) or not env.python.exists()
        outdated = anew or old is None or old.digest != now.digest
        if outdated or in_place is None or (pil is not None and in_place[0] != pil):
            (env.venv / "setup.json").unlink(missing_ok=True)
            with contextlib.ExitStack() as stack:
                if outdated:
                    stack.enter_context(installation(env, anew=anew, torch_index=torch_index, say=say))
                note = settle_pil(env, now.wanted, say)
            now = Stamp(now.digest, now.interpreter, now.folder, now.wanted, note)
            write_stamp(env, now)
        elif old is not None:
            now = old
        name, version = pil_in_place(env) or ("no PIL", "")
        say(f"PIL is {name} {version}" + (f", for {SIMD} could not be used: {now.note}" if now.note else "."))
        if pil == SIMD and name != SIMD:
            raise SetupError(f"PIL={SIMD} was asked for, and it cannot be had here; {name} is in place.")


def main() -> None:
    """Parse the options and make the environment; exits with status 2 when that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pil", choices=(PILLOW, SIMD), help="insist on one of the two (default: the one in place)")
    parser.add_argument("--torch-index", metavar="URL", help="one more package index, for another build of torch")
    options = parser.parse_args()
    try:
        say = functools.partial(print, flush=True)
        set_up(Environment(ROOT), pil=options.pil, torch_index=options.torch_index, say=say)
    except SetupError as error:
        print(f"setup_env: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("setup_env: interrupted; the next make starts it again.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
