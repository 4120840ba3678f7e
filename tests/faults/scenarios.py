"""Conversions of every kind that are small, and yet have many tasks, parts and transactions."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from .material import NAMES

# Of the store and the conversion, as small as the photographs: three parts, about a dozen transactions in a conversion,
# tasks of two or three images, and images of more than one piece.
NUM_PARTS = 3
TRANSACTION_NBYTES = 30 * 2**10
TASK_NBYTES = 16 * 2**10
PART_NBYTES = 24 * 2**10


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of conversion.

    Attributes:
        name: For people.
        words: Of the command, without OUT; {} is the folder with all sources.
        workers: Worker processes.
        replaces: Whether an older dataset is at OUT, to be overwritten.
        can_exchange: Whether the system has renameat2.
    """

    name: str
    words: tuple[str, ...]
    workers: int = 1
    replaces: bool = False
    can_exchange: bool = True

    def command(self, sources: Path, out: Path, workers: int | None = None) -> list[str]:
        """Return the words of the command, with another number of workers where one is given."""
        words = [word.format(sources) for word in self.words]
        overwrite = ["--overwrite"] if self.replaces else []
        numbers = ["--workers", str(workers or self.workers), "--parts", str(NUM_PARTS)]
        return ["convert", *words, str(out), *numbers, *overwrite]


_FEW = 16
_PATCHES = ("--patch-size", "24", "--stride", "16", "--scale", "2")
SCENARIOS = (
    Scenario("images", ("{}/images",)),
    Scenario("images, two workers", ("{}/images",), workers=2),
    Scenario("patches with a scale", ("{}/images", *_PATCHES)),
    Scenario("patches, two workers", ("{}/images", *_PATCHES), workers=2),
    Scenario("pairs", ("--hr", "{}/pairs/hr", "--lr", "{}/pairs/lr", "--patch-size", "24", "--codec", "lz4")),
    Scenario("kept JPEGs of classes", ("{}/classes",)),
    Scenario("JPEGs made", ("{}/images", "--write-mode", "proportion", "--max-resolution", "56")),
    Scenario("bad images skipped", ("{}/bad", "--on-error", "skip", *_PATCHES)),
    Scenario("bad images skipped, two workers", ("{}/bad", "--on-error", "skip"), workers=2),
    Scenario("tar shards", ("{}/shards/shard-{{0..1}}.tar", "--layout", "tar")),
    Scenario("an older dataset replaced", ("{}/images", "--codec", "raw"), replaces=True),
    Scenario("replaced without an exchange", ("{}/images",), replaces=True, can_exchange=False),
)
# Of which thousands are made.
FEW = Scenario("a few images", ("{}/few",))


def make_sources(folder: Path) -> Path:
    """Make all that the scenarios convert; return the folder of it."""
    for number, photograph in enumerate(_photographs()):
        name = f"{number:02}.png"
        _save(photograph, folder / "images" / name)
        _save(photograph, folder / "pairs" / "hr" / name)
        half = photograph.resize((photograph.width // 2, photograph.height // 2), Image.Resampling.BICUBIC)
        _save(half, folder / "pairs" / "lr" / name)
        _save(photograph, folder / "classes" / ("cats", "dogs", "rockets")[number % 3] / f"{number:02}.jpg", quality=98)
        _save(photograph, folder / "bad" / name)
        if number < _FEW:
            _save(photograph.resize((48, 48)), folder / "few" / name)
    for number, data in enumerate((b"", b"no image", (folder / "images" / "05.png").read_bytes()[:900])):
        (folder / "bad" / f"1{number}b.png").write_bytes(data)
    (folder / "shards").mkdir()
    photos = sorted((folder / "classes").rglob("*.jpg"), key=lambda path: path.name)
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"shard-{shard}.tar", "w") as tar:
            for photo in photos[shard::2]:
                more = {"cls": str(len(photo.stem)), "json": json.dumps({"name": photo.stem}), "txt": photo.parent.name}
                for suffix, data in {"jpg": photo.read_bytes(), **{k: v.encode() for k, v in more.items()}}.items():
                    member = tarfile.TarInfo(f"{photo.stem}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder


def _photographs() -> Iterator[Image.Image]:
    """Yield pieces of real photographs, 64 x 64 to 144 x 96, the large ones of more bytes than a transaction."""
    import skimage.data

    for name in NAMES[:4]:
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        for piece in range(8):
            width, height = (144, 96) if piece == 3 else (64, 64)
            left, top = 60 + piece * 20, 80 + piece * 16
            yield photograph.crop((left, top, left + width, top + height))


def _save(image: Image.Image, path: Path, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)  # type: ignore[arg-type]
