"""Two conversions to one OUT on hosts that see no lock of each other: whole datasets are published, or none."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .cases import Case, Wrong, run_cases
from .material import photographs
from .outcome import Outcome

# For a host that looks for signs of life; a real one has ten times as much patience and more.
_BEAT_SECONDS, _PATIENCE_SECONDS = 0.05, 0.6
_HUNG_SECONDS = 60.0
_KINDS = ("at once", "at once", "later", "killed", "paused", "paused", "taken over", "taken over")
_DONE, _REFUSED, _FAILED = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Host:
    """A stand-in for a host: a process with a name and a boot of its own, and without locks.

    Attributes:
        name: Its own.
        begin: After so many seconds it begins.
        pace: Seconds that each part takes longer.
        options: Of its conversion.
    """

    name: str
    begin: float = 0.0
    pace: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, src: Path, out: Path) -> int:
        """Convert in a fork; return its number. It exits with 0, 3 (an error of ours) or 4, and writes why."""
        if child := os.fork():
            return child
        status = _FAILED
        try:
            self.become()
            time.sleep(self.begin)
            status = _convert(src, out, out.parent.parent / f"said-{self.name}", self.options)
        finally:
            os._exit(status)

    def become(self) -> None:
        """Make this process one of the host."""
        import fcntl
        import socket

        from lmdbloader.base import system
        from lmdbloader.conversion import pool
        from lmdbloader.store.writing import claim, writer

        fcntl.flock = lambda descriptor, operation: None  # type: ignore[assignment]
        socket.gethostname = lambda: self.name  # type: ignore[assignment]
        system.boot_id = lambda: f"boot of {self.name}"
        claim.BEAT_SECONDS, claim.PATIENCE_SECONDS = _BEAT_SECONDS, _PATIENCE_SECONDS
        writer.TRANSACTION_NBYTES = pool.TASK_NBYTES = 1
        add = writer.Writer.add

        def slow(*arguments: Any) -> None:
            time.sleep(self.pace)
            add(*arguments)

        writer.Writer.add = slow  # type: ignore[method-assign]


def _convert(src: Path, out: Path, said: Path, options: dict[str, Any]) -> int:
    import traceback

    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    try:
        lmdbloader.convert(src, out, workers=1, **options)
    except LmdbloaderError as error:
        said.write_text(f"{type(error).__name__}: {error}")
        return _REFUSED
    except BaseException:
        said.write_text(traceback.format_exc()[-2000:])
        return _FAILED
    said.write_text("done")
    return _DONE


def wait(child: int) -> int:
    """Return the exit status of a fork; the negative number of a signal that ended it."""
    until = time.monotonic() + _HUNG_SECONDS
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Wrong("a conversion hung")


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Run pairs of conversions, some of which are killed, stopped for a while, or taken over."""
    import lmdbloader

    src = photographs(folder / "photos", 6, 32, 32)
    lmdbloader.convert(src, folder / "whole", workers=1)
    lmdbloader.convert(src, folder / "older", workers=1, patch_size=16)
    counts, failures = run_cases(_prepare, (str(folder), seed), count, folder)
    names = ("pairs", *sorted({*counts} - {"pairs", "signals", "damage"}), "damage")
    return Outcome("two_hosts", "0 publishes damage", {name: counts.get(name, 0) for name in names}, failures)


def _prepare(folder: str, seed: int) -> Case:
    import lmdbloader
    from lmdbloader.store import Reader

    top = Path(folder)
    digest, older = (Reader(top / name).manifest.content_digest for name in ("whole", "older"))
    lmdbloader.verify(top / "whole")

    def case(number: int) -> dict[str, int]:
        rng = random.Random(f"{seed} {number}")
        place = top / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        out = place / "out"
        if is_replaced := rng.random() < 0.25:
            shutil.copytree(top / "older", out)
        kind = rng.choice(_KINDS)
        counts = {"pairs": 1, kind: 1}
        statuses, what = _pair(kind, rng, top / "photos", out, is_replaced)
        said = " / ".join((top / f"said-{name}").read_text() for name in "ab" if (top / f"said-{name}").exists())
        what = f"{what}, {statuses}, {said!r}"
        if out.exists() and not lmdbloader.verify(out).is_sound:
            raise Wrong(f"{what}: damage was published")
        expected = (digest, older) if is_replaced else (digest,)
        if out.exists() and Reader(out).manifest.content_digest not in expected:
            raise Wrong(f"{what}: another dataset was published")
        if any(status not in (_DONE, _REFUSED, -signal.SIGKILL) for status in statuses):
            raise Wrong(f"{what}: ended otherwise")
        if _DONE not in statuses and kind != "killed":
            raise Wrong(f"{what}: neither came to its end")
        counts["finished"] = statuses.count(_DONE)
        counts["refused"] = statuses.count(_REFUSED)
        last = Host("c", options={"overwrite": is_replaced and _DONE not in statuses}).start(top / "photos", out)
        if wait(last) != _DONE or Reader(out).manifest.content_digest != digest or not lmdbloader.verify(out).is_sound:
            raise Wrong(f"{what}: a third one does not finish: {(top / 'said-c').read_text()}")
        if os.listdir(place) != ["out"]:
            raise Wrong(f"{what}: {sorted(os.listdir(place))} is left")
        return counts

    return case


def _pair(
    kind: Literal["at once", "later", "killed", "paused", "taken over"],
    rng: random.Random,
    src: Path,
    out: Path,
    is_replaced: bool,
) -> tuple[list[int], str]:
    """Run two conversions; return their exit statuses, and their steps."""
    for name in "ab":
        (out.parent.parent / f"said-{name}").unlink(missing_ok=True)
    later = rng.uniform(0, 0.02) if kind == "at once" else rng.uniform(0, 0.4)
    options = {"overwrite": is_replaced}
    a = Host("a", pace=rng.uniform(0, 0.1), options=options)
    b = Host("b", later, rng.uniform(0, 0.1), {**options, "take_over": kind == "taken over"})
    what = f"{kind}, paces {a.pace:.3f} and {b.pace:.3f}, the second {later:.3f} s later"
    children = [host.start(src, out) for host in (a, b)]
    if kind in ("killed", "paused"):
        time.sleep(rng.uniform(0, 0.4))
        # It is there until it is waited for, even if it has ended.
        os.kill(children[0], signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
    if kind == "paused":
        time.sleep(rng.uniform(0.5, 2) * _PATIENCE_SECONDS)
        os.kill(children[0], signal.SIGCONT)
    return [wait(child) for child in children], what
