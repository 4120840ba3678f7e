"""Messages name options as the caller does: by Python names for a function, by flags for a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import LmdbloaderError, OptionError

Capture = pytest.CaptureFixture[str]
Options = dict[str, Any]

# Options of convert and estimate, the message in Python, and the message of the command.
REFUSED: list[tuple[Options, str, str]] = [
    (
        {"seed": 3},
        "seed has no effect without write_mode='proportion' or subset",
        "--seed has no effect without --write-mode proportion or --subset",
    ),
    (
        {"jpeg_quality": 80},
        "jpeg_quality has no effect without write_mode='jpg', proportion or smart, or original with max_resolution",
        "--jpeg-quality has no effect without --write-mode jpg, proportion or smart, or original with --max-resolution",
    ),
    (
        {"compress_probability": 0.5},
        "compress_probability has no effect without write_mode='proportion'",
        "--compress-probability has no effect without --write-mode proportion",
    ),
    (
        {"smart_threshold": 9},
        "smart_threshold has no effect without write_mode='smart'",
        "--smart-threshold has no effect without --write-mode smart",
    ),
    (
        {"write_mode": "smart"},
        "write_mode='smart' stores larger images as JPEG: give the limit with smart_threshold",
        "--write-mode smart stores larger images as JPEG: give the limit with --smart-threshold",
    ),
    (
        {"write_mode": "original", "patch_size": 4},
        "write_mode='original' keeps whole files: it cannot be combined with patches, scale or pairs. "
        "Leave them out, or use write_mode='raw'",
        "--write-mode original keeps whole files: it cannot be combined with patches, --scale or pairs. "
        "Leave them out, or use --write-mode raw",
    ),
    ({"max_resolution": 8, "scale": 2}, "max_resolution with pairs", "--max-resolution with pairs"),
    ({"stride": 4}, "stride without patch_size", "--stride without --patch-size"),
    ({"patch_size": 0}, "patch_size=0: expected", "--patch-size 0: expected"),
    ({"patch_size": 8, "stride": 0}, "stride=0: expected", "--stride 0: expected"),
    (
        {"patch_size": 8, "stride": 3, "scale": 2},
        "patch_size=8 and stride=3: expected multiples of the scale 2",
        "--patch-size 8 and --stride 3: expected multiples of the scale 2",
    ),
    ({"scale": 9}, "scale=9: expected", "--scale 9: expected"),
    ({"max_pixels": 0}, "max_pixels=0: expected", "--max-pixels 0: expected"),
    ({"max_resolution": 0}, "max_resolution=0: expected", "--max-resolution 0: expected"),
    ({"jpeg_quality": 101}, "jpeg_quality=101: expected", "--jpeg-quality 101: expected"),
    ({"compress_probability": 2.0}, "compress_probability=2.0: expected", "--compress-probability 2.0: expected"),
    ({"smart_threshold": -1}, "smart_threshold=-1: expected", "--smart-threshold -1: expected"),
    ({"subset": 2, "seed": -1}, "seed=-1: expected", "--seed -1: expected"),
    ({"subset": 9}, "subset=9 of 3 sources", "--subset 9 of 3 sources"),
    ({"workers": -1}, "workers=-1: expected", "--workers -1: expected"),
    ({"codec": "zip"}, "codec='zip': expected one of auto, raw, lz4", "--codec zip: expected one of auto, raw, lz4"),
    ({"layout": "pairs"}, "Name them with hr and lr", "Name them with --hr and --lr"),
    ({"layout": "classes"}, "use layout='images'", "use --layout images"),
    ({"hr": "nowhere"}, "hr and lr go together", "--hr and --lr go together"),
    ({"hr": "nowhere", "lr": "nowhere", "layout": "tar"}, "layout='tar' with hr and lr", "--layout tar with --hr and"),
]


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("src")
    for i in range(3):
        Image.fromarray(np.full((16, 16), 50 * i, np.uint8)).save(folder / f"{i}.png")
    return folder


def words(options: Options) -> list[str]:
    """Return options as flags."""
    found = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        found += [flag] if value is True else [f"{flag}={value}"]
    return found


def check(call: Callable[[], object], command: list[Any], texts: tuple[str, str], capsys: Capture) -> None:
    """Check the message of a function, and that of the command that does the same."""
    with pytest.raises(LmdbloaderError) as error:
        call()
    assert texts[0] in str(error.value)
    assert "--" not in str(error.value)
    capsys.readouterr()
    assert main([str(word) for word in command]) in (1, 2)
    said = capsys.readouterr().err
    assert texts[1] in said
    assert texts[0] not in said


@pytest.mark.parametrize(("options", "python", "flags"), REFUSED)
def test_options_of_convert_and_estimate(
    src: Path, tmp_path: Path, capsys: Capture, options: Options, python: str, flags: str
) -> None:
    out, texts = tmp_path / "out", (python, flags)
    given = [] if "hr" in options else [src]
    place = None if "hr" in options else src
    check(lambda: lmdbloader.convert(place, out, **options), ["convert", *given, out, *words(options)], texts, capsys)
    if "lr" in options or "hr" not in options:  # the command itself says that --hr alone is not enough
        check(lambda: lmdbloader.estimate(place, **options), ["estimate", *given, *words(options)], texts, capsys)


@pytest.mark.parametrize(("name", "value"), [("sample", 3), ("sample_seed", -1)])
def test_options_of_estimate(src: Path, capsys: Capture, name: str, value: int) -> None:
    texts = f"{name}={value}: expected", f"--{name.replace('_', '-')} {value}: expected"
    check(lambda: lmdbloader.estimate(src, **{name: value}), ["estimate", src, *words({name: value})], texts, capsys)


def test_a_destination_of_convert_that_is_taken(src: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    lmdbloader.convert(src, out)
    texts = ("patch_size none, now 8", "--patch-size none, now 8")
    call = lambda: lmdbloader.convert(src, out, patch_size=8)  # noqa: E731
    check(call, ["convert", src, out, "--patch-size", 8], texts, capsys)
    texts = ("or overwrite it (overwrite=True)", "or overwrite it (--overwrite)")
    check(call, ["convert", src, out, "--patch-size", 8], texts, capsys)


def test_a_conversion_with_other_options_is_unfinished(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    src, out = tmp_path / "src", tmp_path / "out"
    src.mkdir()
    for i in range(3):
        Image.fromarray(np.full((16, 16), i, np.uint8)).save(src / f"{i}.png")
    (src / "3.png").write_bytes(b"damaged")
    with pytest.raises(LmdbloaderError):
        lmdbloader.convert(src, out)
    texts = ("restart with restart=True", "restart with --restart")
    check(lambda: lmdbloader.convert(src, out, scale=2), ["convert", src, out, "--scale", 2], texts, capsys)


def test_a_worker_names_options_as_its_parent_does(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
    src = tmp_path / "src"
    src.mkdir()
    for i in range(3):
        Image.fromarray(np.full((16, 16), i, np.uint16)).save(src / f"{i}.png")
    options = {"scale": 2, "bicubic": "pillow", "workers": 2}
    texts = ("use bicubic='matlab'", "use --bicubic matlab")
    command = ["convert", src, tmp_path / "b", *words(options)]
    check(lambda: lmdbloader.convert(src, tmp_path / "a", **options), command, texts, capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 3}, "seed has no effect without write_mode='proportion'"),
        ({"jpeg_quality": 3}, "jpeg_quality has no effect without write_mode='jpg', proportion or smart"),
        ({"write_mode": "original"}, "write_mode='original' keeps files, but this image was made in Python"),
        ({"write_mode": "jpg", "jpeg_quality": 0}, "jpeg_quality=0: expected"),
        ({"codec": 3}, "codec=3: expected"),
        ({"overwrite": "no"}, "overwrite='no': expected True or False"),
    ],
)
def test_options_of_write(tmp_path: Path, options: Options, message: str) -> None:
    with pytest.raises(OptionError) as error:
        lmdbloader.write([{"image": np.zeros((8, 8), np.uint8)}], tmp_path / "out", **options)
    assert message in str(error.value)
    assert "--" not in str(error.value) and not str(error.value).endswith("subset")


def test_options_of_stage_and_extract(src: Path, tmp_path: Path, capsys: Capture) -> None:
    db, other = tmp_path / "a" / "x.lmdb", tmp_path / "b" / "x.lmdb"
    for path in (db, other):
        path.parent.mkdir()
    lmdbloader.convert(src, db)
    lmdbloader.convert(src, other, patch_size=8)
    texts = ("timeout=-1.0: expected", "--timeout -1.0: expected")
    check(lambda: lmdbloader.stage(db, tmp_path, timeout=-1.0), ["stage", db, tmp_path, "--timeout=-1"], texts, capsys)
    texts = ("overwrite it (overwrite=True)", "overwrite it (--overwrite)")
    check(lambda: lmdbloader.stage(db, tmp_path / "b"), ["stage", db, tmp_path / "b"], texts, capsys)
    files = tmp_path / "files"
    lmdbloader.extract(db, files)
    texts = ("as a whole (overwrite=True)", "as a whole (--overwrite)")
    check(lambda: lmdbloader.extract(db, files), ["extract", db, files], texts, capsys)


def test_options_of_merge_and_subset(src: Path, tmp_path: Path, capsys: Capture) -> None:
    db, taken = tmp_path / "db", tmp_path / "taken"
    lmdbloader.convert(src, db)
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8)}], taken)
    texts = ("overwrite it (overwrite=True)", "overwrite it (--overwrite)")
    check(lambda: lmdbloader.merge([db], taken), ["merge", db, "-o", taken], texts, capsys)
    texts = ("the new dataset: drop_sources=True", "the new dataset: --drop-sources")
    check(lambda: lmdbloader.merge([db, taken], "x"), ["merge", db, taken, "-o", "x"], texts, capsys)
    texts = ("limit=99 of", "--limit 99 of")
    check(lambda: lmdbloader.subset(db, "x", limit=99), ["subset", db, "-o", "x", "--limit", "99"], texts, capsys)
    texts = ("give indices, names, limit or fraction", "give --indices, --names, --limit or --fraction")
    check(lambda: lmdbloader.subset(db, "x"), ["subset", db, "-o", "x"], texts, capsys)


def test_a_thread_names_options_as_its_parent_does(tmp_path: Path, capsys: Capture) -> None:
    """The message comes from a thread that writes a file which is there already."""
    db = tmp_path / "db"
    lmdbloader.write([{"image": np.zeros((8, 8), np.uint8)}], db)
    texts = ("Extract them into two folders (samples)", "Extract them into two folders (--samples)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdbloader.conversion.extraction._stem", lambda *_: "samples")
        patch.setattr("lmdbloader.conversion.extraction._file", lambda *_: (".jsonl", b""))
        check(lambda: lmdbloader.extract(db, tmp_path / "a"), ["extract", db, tmp_path / "b"], texts, capsys)


def test_verify_and_repair_name_no_options(src: Path, tmp_path: Path, capsys: Capture) -> None:
    """Their messages name commands and datasets; no option in them depends on the caller."""
    db = tmp_path / "db"
    lmdbloader.convert(src, db)
    with pytest.raises(LmdbloaderError) as error:
        lmdbloader.repair(db, src)
    (tmp_path / "empty").mkdir()
    assert main(["repair", str(db), str(src)]) == 1
    assert capsys.readouterr().err.strip() == f"lmdbloader: {error.value}"
    with pytest.raises(LmdbloaderError) as error:
        lmdbloader.verify(tmp_path / "empty")
    assert main(["verify", str(tmp_path / "empty")]) == 1
    assert str(error.value) in capsys.readouterr().err
