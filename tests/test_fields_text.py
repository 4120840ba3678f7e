"""Fields of text: the same values whatever their lengths, in the index or, if one is long, in data.mdb alone."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import DestinationError

FILES = ("data.mdb", "index.arrow", "manifest.json")
# Of every length from none to far beyond the limit, of one to four bytes a character.
CAPTIONS = [("aé\N{SNOWMAN}\N{GRINNING FACE}"[i % 4] * (i * i % 300)) for i in range(60)]
NAMES = [caption[:10] for caption in CAPTIONS]


def samples(captions: list[str] = CAPTIONS) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "caption": caption,
            "image": rng.integers(0, 256, (9, 11, 3)).astype(np.uint8),
            "name": caption[:10],
            "label": i % 3,
        }
        for i, caption in enumerate(captions)
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a field of long texts and one of short ones."""
    folder = tmp_path_factory.mktemp("text") / "d"
    lmdbloader.write(samples(), folder)
    return folder


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same samples with all texts in the index: the long ones were appended to short ones."""
    folder = tmp_path_factory.mktemp("text")
    lmdbloader.write(samples()[:7], folder / "earlier")
    lmdbloader.write(samples()[7:], folder / "later")
    lmdbloader.append(folder / "earlier", [folder / "later"])
    return folder / "earlier"


@pytest.fixture(params=["path", "earlier"])
def stored(request: pytest.FixtureRequest) -> Path:
    """The dataset in either form."""
    found: Path = request.getfixturevalue(request.param)
    return found


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text("utf-8"))
    return found


def codecs_of(path: Path) -> dict[str, str | None]:
    return {f["name"]: f.get("codec") for f in manifest_of(path)["fields"] if f["kind"] == "text"}


def files_of(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in FILES]


# --- how they are stored ---


def test_long_texts_are_not_in_the_index(path: Path, earlier: Path) -> None:
    assert codecs_of(path) == {"caption": "raw", "name": None}
    assert codecs_of(earlier) == {"caption": None, "name": None}
    text = max(CAPTIONS, key=len).encode()
    assert text not in (path / "index.arrow").read_bytes()
    assert (path / "data.mdb").read_bytes().count(text) == 1
    assert text in (earlier / "index.arrow").read_bytes()


class Breaking:
    """Samples with indices, of which one cannot be read at first; they may be slow, so a write of them continues."""

    def __init__(self, given: list[dict[str, Any]]) -> None:
        self.samples, self.breaks_at = given, -1

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.breaks_at:
            raise RuntimeError("a bad sample")
        return self.samples[index]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups of a few samples, and commit every few groups."""
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 3000)
    monkeypatch.setattr("lmdbloader.store.writing.part.TRANSACTION_NBYTES", 10_000)


def interrupt(captions: list[str], out: Path, at: int) -> None:
    """Write samples up to one that breaks."""
    broken = Breaking(samples(captions))
    broken.breaks_at = at
    with pytest.raises(RuntimeError, match="a bad sample"):
        lmdbloader.write(broken, out)
    assert out.with_name(f"{out.name}.partial").is_dir()


@pytest.mark.usefixtures("small_steps")
def test_the_storage_does_not_depend_on_workers_or_interruptions(tmp_path: Path) -> None:
    captions = ["a"] * 150 + ["long " * 100] + ["b"] * 89
    given = Breaking(samples(captions))
    whole = lmdbloader.write(given, tmp_path / "whole")
    lmdbloader.write(given, tmp_path / "workers", workers=2, threads=True)
    assert files_of(tmp_path / "workers") == files_of(tmp_path / "whole")
    for stops_at in (120, 230):  # before the only long text, and after it
        out = tmp_path / f"stopped {stops_at}"
        interrupt(captions, out, stops_at)
        assert lmdbloader.write(given, out).content_digest == whole.content_digest
        assert codecs_of(out) == {"caption": "raw", "name": None}
        assert [sample.caption for sample in LMDBDataset(out)] == captions
        assert lmdbloader.verify(out).is_sound


@pytest.mark.usefixtures("small_steps")
def test_a_changed_text_is_noticed_when_a_write_continues(tmp_path: Path) -> None:
    captions = ["long " * 100] * 240
    interrupt(captions, tmp_path / "d", 200)
    captions[0] = "Long " * 100
    with pytest.raises(DestinationError, match="sample 0: its 'caption' differs from what was written"):
        lmdbloader.write(Breaking(samples(captions)), tmp_path / "d")


# --- how they are read ---


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_samples_and_batches_have_the_texts(stored: Path, io: Any) -> None:
    dataset = LMDBDataset(stored, io=io)
    assert [sample.caption for sample in dataset] == CAPTIONS
    assert [sample.name for sample in dataset] == NAMES
    assert dataset._many([7, 7, 0])[1].caption == CAPTIONS[7]
    assert [sample.caption for sample in pickle.loads(pickle.dumps(dataset))] == CAPTIONS
    batches = list(Loader(dataset, batch_size=16, shuffle=False, drop_last=False))
    assert all(type(batch.caption) is list for batch in batches)
    assert [text for batch in batches for text in batch.caption] == CAPTIONS
    assert [text for batch in batches for text in batch.name] == NAMES
    alone = LMDBDataset(stored, ["caption"], io=io)
    shuffled = [text for batch in Loader(alone, batch_size=7, shuffle=True, drop_last=False) for text in batch.caption]
    assert shuffled != CAPTIONS
    assert sorted(shuffled) == sorted(CAPTIONS)


def test_conditions_and_splits_see_the_texts(stored: Path) -> None:
    dataset = LMDBDataset(stored)
    empty = [number for number, text in enumerate(CAPTIONS) if not text]
    assert dataset.where("caption == ''").table["name"].to_pylist() == [""] * len(empty)
    expected = sum("éé" in text and i % 3 == 1 for i, text in enumerate(CAPTIONS))
    assert len(dataset.where("'éé' in caption and label == 1")) == expected > 0
    assert len(dataset[10:].where(f"caption == {CAPTIONS[11]!r}")) == 1
    assert len(dataset.where("label == 1")) == 20
    one, other = dataset.split([0.5, 0.5], by="caption")
    assert not {s.caption for s in one} & {s.caption for s in other}
    assert len(one) + len(other) == len(dataset)
    assert len(one[:20].split([0.5, 0.5], by="caption")) == 2


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=200), min_size=1, max_size=30))
def test_any_texts_read_back(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "d"
    lmdbloader.write([{"caption": caption} for caption in captions], path)
    dataset = LMDBDataset(path)
    assert [sample.caption for sample in dataset] == dataset.table["caption"].to_pylist() == captions
    assert (codecs_of(path)["caption"] == "raw") == any(len(text.encode()) > 128 for text in captions)
    assert lmdbloader.verify(path).is_sound


# --- checks and repairs ---


@pytest.mark.parametrize("lost", FILES[1:])
def test_a_lost_file_is_made_again_as_it_was(stored: Path, tmp_path: Path, lost: str) -> None:
    shutil.copytree(stored, tmp_path / "d")
    assert lmdbloader.verify(tmp_path / "d").is_sound
    os.remove(tmp_path / "d" / lost)
    assert lmdbloader.repair(tmp_path / "d").replaced
    assert [sample.caption for sample in LMDBDataset(tmp_path / "d")] == CAPTIONS
    assert lmdbloader.verify(tmp_path / "d").is_sound
    # Without the manifest, texts that were appended are stored where their lengths say.
    if lost == "index.arrow" or codecs_of(stored)["caption"]:
        assert files_of(tmp_path / "d") == files_of(stored)


def test_sound_samples_of_a_damaged_dataset_keep_their_texts(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "d")
    number = CAPTIONS.index(max(CAPTIONS, key=len))
    flip(tmp_path / "d", int(LMDBDataset(path).reader.index.arrays["caption.offset"][number]) + 1)
    found = lmdbloader.verify(tmp_path / "d")
    assert [(damage.sample, damage.field) for damage in found.damaged] == [(number, "caption")]
    lmdbloader.repair(tmp_path / "d", tmp_path / "out")
    kept = [caption for i, caption in enumerate(CAPTIONS) if i != number]
    assert [sample.caption for sample in LMDBDataset(tmp_path / "out")] == kept
    assert codecs_of(tmp_path / "out") == {"caption": "raw", "name": None}
    assert lmdbloader.verify(tmp_path / "out").is_sound
