"""`on_corrupt="skip"`: batches without their damaged samples, which are listed; everything else stays the same."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.transforms import RandomCrop, RandomDihedral

COUNT = 60
TRANSFORMS = [RandomCrop(8), RandomDihedral()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corrupt") / "d.lmdb"
    rng = np.random.default_rng(0)
    samples = (
        {
            "image": rng.integers(0, 256, (16, 16, 3)).astype(np.uint8),
            "label": i % 3,
            "number": i,
            "raw": bytes([i] * 50),
            "values": np.full(20, i, np.float32),
            "facts": {"a": [i] * 20},
        }
        for i in range(COUNT)
    )
    lmdbloader.write(samples, path)
    return path


def damaged(path: Path, into: Path, *, field: str = "image", samples: Sequence[int]) -> LMDBDataset:
    """Return a copy of a dataset in which one byte of a field of some samples was changed."""
    into.mkdir()
    for file in path.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    offsets = LMDBDataset(path).reader.index.arrays[f"{field}.offset"]
    with open(into / "data.mdb", "r+b") as data:
        for sample in samples:
            data.seek(int(offsets[sample]) + 7)
            byte = data.read(1)[0]
            data.seek(-1, os.SEEK_CUR)
            data.write(bytes([byte ^ 1]))
    return LMDBDataset(into)


def numbers(batches: Any) -> list[list[int]]:
    return [batch.number.tolist() for batch in batches]


def without(batches: list[list[int]], lost: Sequence[int]) -> list[list[int]]:
    """Return batches without some samples, and without batches that are empty then."""
    return [left for batch in batches if (left := [n for n in batch if n not in lost])]


def test_a_damaged_sample_costs_no_working_memory(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, scratch = [], Pipeline.scratch
    monkeypatch.setattr(Pipeline, "scratch", lambda self: made.append(self) or scratch(self))
    dataset = damaged(path, tmp_path / "d", samples=range(0, COUNT, 2))
    for _ in range(2):
        assert len(list(Loader(dataset, 6, num_threads=1, on_corrupt="skip"))) == 10
    assert len(made) == 2  # for the thread of each Loader


@pytest.mark.parametrize("field", ["image", "raw", "values", "facts"])
@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(1, {}), (60, {"num_threads": 1, "prefetch": 0}), (7, {"io": "pread", "pad": True})],
)
def test_batches_come_without_damaged_samples(
    path: Path, tmp_path: Path, caplog: Any, field: str, batch_size: int, options: dict[str, Any]
) -> None:
    lost = [0, 11, 12, 59]
    ds = damaged(path, tmp_path / "x", field=field, samples=lost)
    sound = Loader(LMDBDataset(path), batch_size, transforms=TRANSFORMS, **{"order": "random", "seed": 0, **options})
    expected = list(sound)
    pictures = {n: image for batch in expected for n, image in zip(batch.number.tolist(), batch.image, strict=True)}
    loader = Loader(
        ds, batch_size, transforms=TRANSFORMS, on_corrupt="skip", **{"order": "random", "seed": 0, **options}
    )
    found = list(loader)
    assert numbers(found) == without(numbers(expected), lost)
    for batch in found:
        for n, image, raw, values in zip(batch.number.tolist(), batch.image, batch.raw, batch.values, strict=True):
            assert torch.equal(image, pictures[n])
            assert (raw, values.tolist()) == (bytes([n] * 50), [n] * 20)
    assert sorted((d.sample, d.field, d.source) for d in loader.corrupt) == [(n, field, None) for n in lost]
    assert all(f"field {field!r} of sample {d.sample}: its checksum" in d.reason for d in loader.corrupt)
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 4
    assert all("left out" in r.getMessage() for r in caplog.records)
    list(loader)  # the same again, which is not said again
    assert (len(loader.corrupt), len(caplog.records)) == (4, 4)


def test_raising_is_the_default_and_other_errors_raise_anyway(path: Path, tmp_path: Path) -> None:
    ds = damaged(path, tmp_path / "x", samples=[9])
    with pytest.raises(CorruptError, match="sample 9"):
        list(Loader(ds, 4, order="random", seed=0))

    def function(batch: Any) -> Any:
        if 17 in batch.number.tolist():
            raise ZeroDivisionError
        return batch

    def corrupt(batch: Any) -> Any:
        raise CorruptError("of another dataset", sample=3, field="image")

    for broken, error in ((function, ZeroDivisionError), (corrupt, CorruptError)):
        loader = Loader(ds, 4, order="sequential", transforms=[broken], on_corrupt="skip")
        with pytest.raises(error):
            list(loader)
        assert all(damage.sample == 9 for damage in loader.corrupt)
    with pytest.raises(OptionError, match="on_corrupt='ignore': expected 'raise' or 'skip'"):
        Loader(ds, 4, on_corrupt="ignore")  # type: ignore[arg-type]


def test_a_batch_of_nothing_but_damaged_samples_is_left_out(path: Path, tmp_path: Path) -> None:
    lost = [4, 5, 6, 7, 56, 57, 58, 59]
    ds = damaged(path, tmp_path / "x", samples=lost)
    loader = Loader(ds, 4, order="sequential", on_corrupt="skip")
    found = [(batch.number.tolist(), loader.state_dict()["position"]) for batch in loader]
    assert [batch for batch, _ in found] == without([list(range(i, i + 4)) for i in range(0, 60, 4)], lost)
    assert [position for _, position in found] == [4, *range(12, 60, 4)]
    assert len(found) == len(loader) - 2
    # At the end of an epoch they are left out too, and listed.
    assert len(loader.corrupt) == 8
    assert loader.state_dict()["epoch"] == 1
    everything = damaged(path, tmp_path / "y", samples=range(COUNT))
    loader = Loader(everything, 7, order="random", seed=0, on_corrupt="skip")
    assert list(loader) == []
    assert len(loader.corrupt) == COUNT


@pytest.mark.parametrize("options", [{"pad": True}, {}])
def test_ranks_hear_of_a_batch_that_is_lost(path: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    ds = damaged(path, tmp_path / "x", samples=[1, 3, 4, 5, 6, 7, 21])
    ranks = [Loader(ds, 4, order="sequential", shard=(r, 2), on_corrupt="skip", **options) for r in range(2)]
    assert len(numbers(ranks[0])) == len(ranks[0])
    with pytest.raises(CorruptError, match=r"All 4 samples of a batch are damaged.*the other ranks would be a batch"):
        list(ranks[1])
    # One process alone waits for nobody.
    assert len(numbers(Loader(ds, 4, order="sequential", on_corrupt="skip", **options))) == 14


def test_a_restored_epoch_skips_the_same(path: Path, tmp_path: Path) -> None:
    ds = damaged(path, tmp_path / "x", samples=[4, 30, 31, 32])
    expected = numbers(Loader(ds, 5, order="random", on_corrupt="skip", seed=2))
    for taken in range(len(expected) + 1):
        loader = Loader(ds, 5, order="random", on_corrupt="skip", seed=2)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        other = pickle.loads(pickle.dumps(loader))
        assert other.corrupt == ()
        assert numbers(other) == expected[taken:]


def test_sources_are_named_and_files_that_pillow_decodes_are_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8))
        picture.save(tmp_path / "src" / f"{i}.jpg")
    for mode in ("original", "raw"):
        lmdbloader.convert(tmp_path / "src", tmp_path / mode, write_mode=mode, workers=1)
        ds = damaged(tmp_path / mode, tmp_path / f"{mode}x", samples=[2])
        loader = Loader(ds, 3, order="sequential", on_corrupt="skip")
        assert [len(batch[0]) for batch in loader] == [2, 3]
        assert [damage.source for damage in loader.corrupt] == ["2.jpg"]


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_that_is_cut_short_while_it_is_read_loses_its_end_only(io: Any, path: Path, tmp_path: Path) -> None:
    damaged(path, tmp_path / "x", samples=[])
    ds = LMDBDataset(tmp_path / "x", fields=["image", "number"])
    loader = Loader(ds, 4, order="sequential", io=io, num_threads=1, on_corrupt="skip")
    end = int(ds.reader.index.arrays["image.offset"][41])
    os.truncate(tmp_path / "x" / "data.mdb", end)
    seen = [n for batch in numbers(loader) for n in batch]
    assert seen == list(range(41))
    assert sorted([*seen, *(damage.sample for damage in loader.corrupt)]) == list(range(COUNT))
    assert all(f"data.mdb was cut to {end} bytes" in damage.reason for damage in loader.corrupt)
