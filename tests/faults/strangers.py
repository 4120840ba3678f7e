"""Links, FIFOs, folders and files that another user put where a conversion or a copy writes: never written through."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import Case, Wrong, run_cases
from .material import photographs
from .outcome import Outcome

_STRANGER = 12345
_NAMES = (
    "owner.json", "plan.json", "journal", "data.mdb", "index.arrow", "manifest.json", "skipped.tsv", "left_out.tsv",
    "columns", ".repair", "lock.mdb", "notes.txt",
)  # fmt: skip
_KINDS = ("link", "link to a folder", "dangling link", "hard link", "fifo", "folder of links", "theirs")
_FILES = ("data.mdb", "index.arrow", "manifest.json")
_COPIED = {*_FILES, "skipped.tsv", "left_out.tsv"}


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Plant something at random, and convert, write or stage; `count` times."""
    import lmdbloader

    lmdbloader.convert(photographs(folder / "photos", 2, 48, 48), folder / "whole", workers=1)
    counts, failures = run_cases(_prepare, (str(folder), seed), count, folder)
    return Outcome("strangers", "nothing else is touched or copied; refused, or whole", counts, failures)


def _prepare(folder: str, seed: int) -> Case:
    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    top = Path(folder)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} {number}")
        secret, place = top / "secret", top / "place"
        for path in (secret, place):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        (secret / "file").write_bytes(b"secret")
        (secret / "folder").mkdir()
        (secret / "folder" / "data.mdb").write_bytes(b"secret")
        before = _content(secret)
        out, partial = place / "whole", place / "whole.partial"
        command, in_source = rng.choice(("convert", "write", "stage", "stage")), False
        if command == "stage" and rng.random() < 0.6:
            in_source = True
            shutil.copytree(top / "whole", place / "theirs" / "whole")
            planted = _plant(place / "theirs" / "whole", secret, rng)
        else:
            partial.mkdir()
            planted = _plant(partial, secret, rng)
            if os.geteuid() == 0 and rng.random() < 0.2:
                os.chown(partial, _STRANGER, _STRANGER)
        what = f"{command}, {'in the dataset' if in_source else 'in OUT.partial'}: {planted}"
        make: dict[str, Callable[[], Any]] = {
            "convert": lambda: lmdbloader.convert(top / "photos", out, workers=1),
            "write": lambda: lmdbloader.write([{"n": 1}], out),
            "stage": lambda: lmdbloader.stage(place / "theirs" / "whole" if in_source else top / "whole", place),
        }
        came = "refused"
        try:
            make[command]()
            came = "whole"
        except LmdbloaderError:
            pass
        if _content(secret) != before:
            raise Wrong(f"{what}: what the link leads to is {_content(secret)}")
        if came == "whole":
            strange = {name for name in os.listdir(out) if (out / name).is_symlink() or name not in _COPIED}
            if strange - {"sources.arrow"} or not lmdbloader.verify(out).is_sound:
                raise Wrong(f"{what}: {sorted(strange)} in the dataset, or it is damaged")
            if any(b"secret" in (out / name).read_bytes() for name in os.listdir(out)):
                raise Wrong(f"{what}: the secret was copied")
        elif out.exists():
            raise Wrong(f"{what}: refused, and yet there is something")
        return came

    return case


def _plant(folder: Path, secret: Path, rng: random.Random) -> str:
    """Put one to three objects into a folder; return their kinds."""
    planted = []
    for name in rng.sample(_NAMES, rng.choice((1, 1, 2, 3))):
        kind, path = rng.choice(_KINDS), folder / name
        planted.append(f"{name} ({kind})")
        path.unlink(missing_ok=True)
        if kind == "hard link":
            os.link(secret / "file", path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder of links":
            path.mkdir()
            (path / "image.offset").symlink_to(secret / "file")
        elif kind == "theirs":
            path.write_bytes(b"half")
            if os.geteuid() == 0:
                os.chown(path, _STRANGER, _STRANGER)
        else:
            to = {"link": "file", "link to a folder": "folder", "dangling link": "nothing"}[kind]
            path.symlink_to(secret / to)
    return ", ".join(planted)


def _content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}
