"""The comparison with other loaders: its checks, a run of our own loader, and the page of made-up results."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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
    import re

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


def not_normalised(epochs: list[Epoch]) -> None:
    for batch in epochs[0]:
        batch["image"] = np.clip(batch["image"], 0, 1)


@pytest.mark.parametrize(
    ("options", "spoil", "message"),
    [
        ({"shift": 3}, None, "not that of its number"),
        ({"moves": False}, None, "of the crops are the same in two epochs"),
        ({}, other_labels, "labels of other samples"),
        ({}, not_normalised, "not normalised"),
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


def test_samples_are_the_same_after_they_were_stored(module: Load, tmp_path: Path) -> None:
    job, measure = module("job"), module("measure")
    samples = job.make_samples(job.JOBS["crops-jpeg"], 3)
    measure.save_samples(samples, tmp_path / "samples.npz")
    stored = measure.load_samples(tmp_path / "samples.npz")
    assert stored["image"] == samples["image"]
    assert stored["index"].tolist() == [0, 1, 2]


# --- What is timed in which turn ---


def test_each_turn_after_the_first_takes_the_fastest_workers(module: Load) -> None:
    run, jobs = module("run"), module("job").JOBS
    first = run.settings_of_turn(jobs["crops"], [], (0, 1, 2), 0)
    assert first == [[0, 64], [1, 64], [2, 64]]
    rows = [{"turn": 0, "workers": w, "batch_size": 64, "images_per_s": s} for w, s in ((0, 5), (1, 9), (2, 7))]
    assert run.settings_of_turn(jobs["crops"], rows, (0, 1, 2), 1) == [[1, 64], [1, 256]]


def test_an_interrupted_run_goes_on_only_with_the_same_settings(module: Load, tmp_path: Path) -> None:
    run, path = module("run"), tmp_path / "peers.json"
    results = run.Results(path, {"turns": 3})
    results.of("pairs", "numpy").update(check="passed", failed="speed: exit status 1")
    results.save()
    # What failed is tried again; what is done stays.
    assert run.Results(path, {"turns": 3}).of("pairs", "numpy") == {"check": "passed"}
    assert run.Results(path, {"turns": 4}).of("pairs", "numpy") == {}


def test_a_step_that_fails_is_an_error_with_its_last_line(module: Load, tmp_path: Path) -> None:
    run = module("run")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: no such library' >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(run.StepError, match="write: exit status 3: ImportError: no such library"):
        run.Steps(python, tmp_path, 0.1).one("write", "numpy", "pairs")


# --- The page ---


def made_up(module: Load) -> dict[str, Any]:
    """Return results in which FFCV is faster at batches of 128, HDF5 writes faster, and others are absent or failed."""
    jobs = module("job").JOBS

    def results(speed: float, at_128: float, seconds: float) -> dict[str, Any]:
        rows = [
            {"turn": turn, "workers": 1, "batch_size": size, "images_per_s": (at_128 if size == 128 else speed) + turn,
             "cpu_us": 5.0, "p50_ms": 1.0, "p99_ms": 2.0}
            for turn in range(3) for size in jobs["pairs"].batch_sizes
        ]  # fmt: skip
        start = {"workers": 1, "batch_size": 32, "cold_s": 0.5, "epoch_s": 0.01, "peak_pss": 2**28}
        write = {"seconds": seconds, "samples": 4000, "nbytes": 2**27}
        return {"check": "passed", "write": write, "speed": rows, "start": start}

    def described(title: str, missing: str | None = None) -> dict[str, Any]:
        return {"title": title, "settings": "fast", "jobs": ["pairs"], "not": {"crops": "has no labels"},
                "versions": {} if missing else {"one": "1.0"}, "missing": missing, "workers": [0, 1, 2],
                "reason": "ERROR: no wheel <for> this"}  # fmt: skip

    return {
        "date": "2026-11-24",
        "settings": {"turns": 3, "seconds": 0.4, "quick": False, "samples": {"pairs": 4000}},
        "environment": {"processor": "Xeon & Co", "cores": "2 usable", "record": {}},
        "peers": {
            "lmdbloader": described("lmdbloader"), "ffcv": described("FFCV"), "files": described("DataLoader, files"),
            "hdf5": described("HDF5"), "grain": described("Grain", "grain"), "spdl": described("SPDL"),
        },
        "jobs": {
            "pairs": {
                "lmdbloader": results(1000, 1000, 2), "ffcv": results(499, 1501, 2), "files": results(99, 99, 2),
                "hdf5": results(200, 200, 0.5), "spdl": {"failed": "check: workers 1: `x`"},
            },
        },
    }  # fmt: skip


def build(module: Load, stored: dict[str, Any], folder: Path) -> str:
    """Return the page of some results."""
    (folder / "peers.json").write_text(json.dumps(stored))
    out = folder / "page" / "peers.md"
    out.parent.mkdir()
    assert module("report").main(["--results", str(folder / "peers.json"), "--out", str(out)]) == 0
    return out.read_text("utf-8")


def test_the_page_says_where_others_are_better(module: Load, tmp_path: Path) -> None:
    text = build(module, made_up(module), tmp_path)
    first, second, third = text.partition("Change those, not this. -->\n\n")[2].split("\n\n")[:3]
    assert "pairs 0.67 to 2.0 x (FFCV)." in first
    assert "Pillow: pairs 10 x." in second
    assert "Others are better in images per second and writing" in third
    assert "- **Images per second**: FFCV in batches of 128, 1.5 x (pairs)." in text
    assert "- **Writing**: HDF5, up to 4.0 x (pairs)." in text
    assert "bytes on disk" not in text.lower().partition("## how it was measured")[0]
    assert re.search(r"(?m)^\| FFCV +\| +2\.0 x \| +2\.0 x \|$", text)
    assert re.search(r"(?m)^\| HDF5 +\| +5\.0 x \| +5\.0 x \|$", text)
    assert "warning" not in text
    tables = (tmp_path / "page" / "peers-tables.md").read_text("utf-8")
    for line in (
        "Grain: not installed. ERROR: no wheel",
        "SPDL, pairs: failed. `check: workers 1: 'x'`",
        "has no labels",
    ):
        assert line in tables
    assert "1,001 (1,000-1,002) w1" in tables


def test_the_page_of_a_run_that_is_best_everywhere_or_only_a_trial(module: Load, tmp_path: Path) -> None:
    stored = made_up(module)
    stored["settings"]["quick"] = True
    for name in ("ffcv", "hdf5"):
        del stored["jobs"]["pairs"][name]
    text = build(module, stored, tmp_path)
    assert "No other loader was better in any figure of this page." in text
    assert "they only show that each loader runs" in text


def test_the_charts_are_drawings_with_every_loader(module: Load, tmp_path: Path) -> None:
    build(module, made_up(module), tmp_path)
    (drawing,) = (tmp_path / "page" / "pictures").glob("*.svg")
    assert drawing.stem == "peers-pairs"
    found = " ".join(ElementTree.parse(drawing).getroot().itertext())
    for text in ("FFCV", "DataLoader, files", "HDF5", "lmdbloader", "Batches of 8", "2 cores of an Xeon & Co"):
        assert text in found


def test_the_stored_page_is_that_of_the_stored_results(module: Load, tmp_path: Path) -> None:
    report = module("report")
    assert report.main(["--out", str(tmp_path / "peers.md")]) == 0
    for name in ("peers.md", "peers-tables.md"):
        assert (tmp_path / name).read_text("utf-8") == report.PAGE.with_name(name).read_text("utf-8")
    for drawing in (tmp_path / "pictures").glob("*.svg"):
        assert drawing.read_text("utf-8") == (report.PAGE.parent / "pictures" / drawing.name).read_text("utf-8")


# --- The environment ---


def test_a_package_that_cannot_be_installed_is_recorded_and_the_rest_goes_on(
    module: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = module("environment")
    made = environment.Environment(tmp_path, None)

    def install(*words: str) -> None:
        if "ffcv==1.0.2" in words:
            raise environment.InstallError("ERROR: opencv4 was not found")

    monkeypatch.setattr(made, "install", install)
    assert made.install_peers(environment.PACKAGES) == {"ffcv": "ERROR: opencv4 was not found"}
    assert json.loads((tmp_path / "missing.json").read_text()) == {"ffcv": "ERROR: opencv4 was not found"}


def test_the_environment_has_the_torch_of_the_constraints(module: Load) -> None:
    assert f"torch=={module('environment').TORCH}" in (ROOT / "constraints.txt").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_peer.py")), ids=lambda path: path.stem)
def test_each_peer_has_what_a_run_reads(module: Load, path: Path) -> None:
    peer = module(path.stem)
    described = module("measure").describe(peer)
    assert set(described["jobs"]) | set(described["not"]) == set(module("job").JOBS)
    assert described["title"] and described["settings"] and not described["settings"].endswith(".")
    assert callable(peer.write) and callable(peer.open)
