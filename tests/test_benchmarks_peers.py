"""The comparison with other loaders: its checks, a run of our own loader, and the page of made-up results."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "peers"
Load = Callable[[str], Any]
Epoch = list[dict[str, Any]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import modules of the benchmarks' folders, and forget their short names afterwards."""
    for folder in (FOLDER.parent, FOLDER):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for path in [*FOLDER.glob("*.py"), *FOLDER.parent.glob("*.py")]:
        sys.modules.pop(path.stem, None)


# --- What is checked of each peer ---

COUNT = 32


def pair_epoch(samples: Any, seed: int, *, flips: Any = None, together: bool = True) -> Epoch:
    """Return an epoch of pairs as a sound peer gives it: shuffled, some mirrored."""
    random = np.random.default_rng(seed)
    flips = random.random(COUNT) < 0.5 if flips is None else flips
    order = random.permutation(COUNT)
    batches = []
    for numbers in np.split(order, 4):
        batch: dict[str, Any] = {"index": numbers.astype(np.int64)}
        for name in ("lr", "hr"):
            pixels = samples[name][numbers].transpose(0, 3, 1, 2).astype(np.float32) / 255
            for row, number in enumerate(numbers):
                if flips[number] != (name == "hr" and not together):
                    pixels[row] = pixels[row, :, :, ::-1].copy()
            batch[name] = pixels
        batches.append(batch)
    return batches


def crop_epoch(module: Load, samples: Any, seed: int, *, moves: bool = True, shift: int = 0) -> Epoch:
    """Return an epoch of crops; `shift` gives images of other samples, without `moves` all crops are one window."""
    job = module("job")
    random = np.random.default_rng(seed)
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (job.MEAN, job.STD))
    batches = []
    for numbers in np.split(random.permutation(COUNT), 4):
        images = []
        for number in numbers:
            top, left = random.integers(33, size=2) if moves else (5, 5)
            image = samples["image"][(number + shift) % COUNT][top : top + 224, left : left + 224]
            image = image[:, ::-1] if random.random() < 0.5 else image
            images.append((image.transpose(2, 0, 1) / np.float32(255) - mean) / std)
        batches.append(
            {"index": numbers, "label": samples["label"][numbers], "image": np.stack(images).astype(np.float32)}
        )
    return batches


def test_a_sound_peer_passes(module: Load) -> None:
    check, job = module("checking").check, module("job")
    pairs, crops = (job.make_marked_samples(job.JOBS[name], COUNT) for name in ("pairs", "crops"))
    assert check(job.JOBS["pairs"], pairs, [pair_epoch(pairs, seed) for seed in (1, 2)]) == []
    assert check(job.JOBS["crops"], crops, [crop_epoch(module, crops, seed) for seed in (1, 2)]) == []


def repeat_a_sample(epochs: list[Epoch]) -> None:
    for name, values in epochs[1][0].items():
        epochs[1][0][name] = np.concatenate([values[1:2], values[1:]])


def drop_the_last_batch(epochs: list[Epoch]) -> None:
    del epochs[0][-1]


def give_doubles(epochs: list[Epoch]) -> None:
    for batch in epochs[0]:
        batch["lr"] = batch["lr"].astype(np.float64)


def leave_out_a_field(epochs: list[Epoch]) -> None:
    for batch in epochs[0]:
        del batch["hr"]


def mix_up_two_halves(epochs: list[Epoch]) -> None:
    epochs[0][0]["hr"] = epochs[0][0]["hr"][::-1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (repeat_a_sample, "1 of them never, others repeated"),
        (drop_the_last_batch, "24 samples of 32, 8 of them never"),
        (give_doubles, r"lr is float64"),
        (leave_out_a_field, "expected .*hr"),
        (mix_up_two_halves, "hr of sample .* neither its pixels nor their mirror image"),
        (lambda epochs: epochs.__setitem__(1, epochs[0]), "same order"),
    ],
)
def test_a_peer_that_spoils_pairs_is_caught(module: Load, spoil: Callable[..., None], message: str) -> None:
    job = module("job")
    samples = job.make_marked_samples(job.JOBS["pairs"], COUNT)
    epochs = [pair_epoch(samples, seed) for seed in (1, 2)]
    spoil(epochs)
    assert any(_found(message, wrong) for wrong in module("checking").check(job.JOBS["pairs"], samples, epochs))


def _found(message: str, text: str) -> bool:

    return re.search(message, text) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flips": np.zeros(COUNT, bool)}, "0% of the samples are mirrored, expected about half"),
        ({"flips": np.arange(COUNT) % 2 == 0}, "two epochs mirror the same samples"),
        ({"together": False}, "lr and hr of sample .* are not mirrored together"),
    ],
)
def test_a_peer_whose_flips_are_not_random_or_not_shared_is_caught(
    module: Load, options: dict[str, Any], message: str
) -> None:
    job = module("job")
    samples = job.make_marked_samples(job.JOBS["pairs"], COUNT)
    epochs = [pair_epoch(samples, seed, **options) for seed in (1, 2)]
    assert any(_found(message, wrong) for wrong in module("checking").check(job.JOBS["pairs"], samples, epochs))


def other_labels(epochs: list[Epoch]) -> None:
    epochs[0][0]["label"] = (epochs[0][0]["label"] + 1) % 10


def not_normalized(epochs: list[Epoch]) -> None:
    for batch in epochs[0]:
        batch["image"] = np.clip(batch["image"], 0, 1)


@pytest.mark.parametrize(
    ("options", "spoil", "message"),
    [
        ({"shift": 3}, None, "not that of its number"),
        ({"moves": False}, None, "of the crops are the same in two epochs"),
        ({}, other_labels, "labels of other samples"),
        ({}, not_normalized, "not normalized"),
    ],
)
def test_a_peer_that_spoils_crops_is_caught(
    module: Load, options: dict[str, Any], spoil: Callable[..., None] | None, message: str
) -> None:
    job = module("job")
    samples = job.make_marked_samples(job.JOBS["crops"], COUNT)
    epochs = [crop_epoch(module, samples, seed, **options) for seed in (1, 2)]
    if spoil:
        spoil(epochs)
    assert any(_found(message, wrong) for wrong in module("checking").check(job.JOBS["crops"], samples, epochs))


# --- Our own loader, end to end ---


@pytest.mark.parametrize("name", ["pairs", "crops", "crops-jpeg"])
def test_our_loader_is_checked_and_timed(module: Load, tmp_path: Path, name: str) -> None:
    job, measure, peer = module("job").JOBS[name], module("measure"), module("lmdbloader_peer")
    samples = tmp_path / "samples.npz"
    measure.save_samples(module("job").make_marked_samples(job, COUNT), samples)
    ((checked),) = measure.check_peer(peer, job, samples, tmp_path / "checked")
    assert checked == {"wrong": []}
    (written,) = measure.write(peer, job, samples, tmp_path / "stored")
    assert written["samples"] == COUNT
    assert written["nbytes"] > COUNT * 1000
    (timed,) = measure.speed(peer, job, tmp_path / "stored", [[1, 8]], 0.01)
    assert (timed["workers"], timed["batch_size"]) == (1, 8)
    assert timed["images_per_s"] > 0
    (started,) = measure.start(peer, job, tmp_path / "stored", 1, 8)
    assert started["peak_pss"] > 2**20


# --- Pairs, compared with FFCV's fastest operation ---

PAIRS = 300


def turned_batches(module: Load, stored: Any, ways: int, *, together: bool = True) -> Iterator[tuple[Any, Any]]:
    """Yield batches of 8 pairs as a sound loader gives them: shuffled, and each turned in one of so many ways."""
    torch, turned = importlib.import_module("torch"), module("pairs").turned
    random = np.random.default_rng(1)
    while True:
        for numbers in np.split(random.permutation(PAIRS)[: PAIRS // 8 * 8], PAIRS // 8):
            drawn = random.integers(ways, size=8)
            halves = [
                [turned(stored[name][n], (k + shift) % ways) for n, k in zip(numbers, drawn, strict=True)]
                for name, shift in (("lr", 0), ("hr", not together))
            ]
            yield tuple(torch.from_numpy(np.stack(half)) for half in halves)


@pytest.fixture
def stored_pairs(module: Load) -> dict[str, Any]:
    pairs = module("common").cut_pairs(PAIRS, patch_size=16)
    return {"lr": pairs.lr, "hr": pairs.hr}


def test_the_check_of_turned_pairs_knows_sound_ones(module: Load, stored_pairs: dict[str, Any]) -> None:
    pairs = module("pairs")
    setting = pairs.Setting("uint8", 8, 1)
    for ways in (2, 8):
        pairs.check(turned_batches(module, stored_pairs, ways), stored_pairs, setting, ways)


@pytest.mark.parametrize(
    ("given", "together", "message"), [(2, True, "2 ways"), (8, False, "patches are turned differently")]
)
def test_the_check_of_turned_pairs_catches_others(
    module: Load, stored_pairs: dict[str, Any], given: int, together: bool, message: str
) -> None:
    pairs = module("pairs")
    batches = turned_batches(module, stored_pairs, given, together=together)
    with pytest.raises(ValueError, match=message):
        pairs.check(batches, stored_pairs, pairs.Setting("uint8", 8, 1), 8)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_our_arms_are_checked_and_timed(module: Load, stored_pairs: dict[str, Any], tmp_path: Path, dtype: str) -> None:
    pairs, lmdbloader = module("pairs"), importlib.import_module("lmdbloader")
    rows = ({name: half[k].transpose(1, 2, 0) for name, half in stored_pairs.items()} for k in range(PAIRS))
    lmdbloader.write(rows, tmp_path / "pairs.lmdb", codec="raw")
    for name, (open_it, ways) in pairs.ARMS.items():
        if not name.startswith(pairs.FFCV):
            setting = pairs.Setting(dtype, 8, 1)
            opened = open_it(tmp_path, setting, ways)
            pairs.check(opened.batches, stored_pairs, setting, ways)
            assert pairs.take_turn(opened, 0.01)["pairs_per_s"] > 0
            opened.close()


def test_arms_are_compared_turn_by_turn(module: Load) -> None:
    pairs = module("pairs")
    ours = [{"cpu_us": 1.0, "pairs_per_s": 6.0}, {"cpu_us": 2.0, "pairs_per_s": 3.0}, {"cpu_us": 4.0, "pairs_per_s": 1}]
    theirs = [
        {"cpu_us": 2.0, "pairs_per_s": 2.0},
        {"cpu_us": 6.0, "pairs_per_s": 1.5},
        {"cpu_us": 4.0, "pairs_per_s": 4},
    ]
    row = {"arms": {"ours": ours, "theirs": theirs}}
    assert pairs.ratio_of(row, "cpu_us", "ours", "theirs") == 2
    assert pairs.ratio_of(row, "pairs_per_s", "ours", "theirs") == 2


# --- What is timed in which turn ---


# --- The page ---


def test_the_stored_page_is_that_of_the_stored_results(module: Load, tmp_path: Path) -> None:
    report = module("report")
    page, tables = tmp_path / "peers.md", tmp_path / "tables.md"
    assert report.main(["--out", str(page), "--tables", str(tables)]) == 0
    assert page.read_text("utf-8") == report.PAGE.read_text("utf-8")
    assert tables.read_text("utf-8") == report.TABLES.read_text("utf-8")
    for drawing in (tmp_path / "pictures").glob("*.svg"):
        assert drawing.read_text("utf-8") == (report.PAGE.parent / "pictures" / drawing.name).read_text("utf-8")


# --- The environment ---
