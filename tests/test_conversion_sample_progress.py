"""An interrupted `write` of samples with indices: it continues, with the same result, or is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from breaking_samples import COUNT, Samples, sample
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from lmdbloader import LMDBDataset, convert, write
from lmdbloader.conversion.sample_progress import identity_of
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.store import Work
from lmdbloader.store.writing.part import num_committed
from lmdbloader.store.writing.work import put_in_place

pytestmark = pytest.mark.usefixtures("small_steps")
FILES = ("data.mdb", "index.arrow", "manifest.json")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are at hand are kept in whole parts."""
    monkeypatch.setattr("lmdbloader.conversion.from_python.PART_NBYTES", 10_000)


def partial_of(out: Path) -> Path:
    return out.with_name("out.partial")


def stored(out: Path) -> int:
    """Return how many samples an interrupted write has kept."""
    work = Work(out)
    facts = (work.facts(number) for number in range(1000))
    done = sum(found.num_samples for found in takewhile(lambda found: found is not None, facts) if found)
    return done + sum(num_committed(part) or 0 for part in partial_of(out).glob("part-*.*"))


def interrupt(samples: Any, out: Path, **options: Any) -> None:
    """Write the samples until they break."""
    with pytest.raises(RuntimeError, match="a bad sample"):
        write(samples, out, **options)
    assert os.listdir(out.parent) == ["out.partial"]
    assert stored(out) > 0


# --- kills ---

KILLED = """
import os, signal, sys
from unittest import mock
sys.path[:0] = [{tests!r}]
import lmdbloader
from breaking_samples import Samples, sample
from lmdbloader.conversion import from_python, samples
from lmdbloader.store.writing import part

samples.GROUP_NBYTES, part.TRANSACTION_NBYTES, from_python._SLOW_SAMPLES = 3000, 10_000, 100
left = int(sys.argv[2])
def progress(count):
    global left
    left -= count
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "list":  # samples that are at hand are kept in whole parts
    from_python.PART_NBYTES = 20_000
given = [sample(i) for i in range(240)] if sys.argv[3] == "list" else Samples()
lmdbloader.write(given, sys.argv[1], progress=progress, **eval(sys.argv[4]))
"""


@pytest.mark.parametrize(("source", "options"), [("list", "{}"), ("dataset", "{'workers': 2, 'threads': True}")])
def test_a_write_that_is_killed_twice_has_the_result_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, options: str
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    if source == "list":
        monkeypatch.setattr("lmdbloader.conversion.from_python.PART_NBYTES", 20_000)
    given: Any = [sample(i) for i in range(COUNT)] if source == "list" else Samples()
    expected = write(given, whole)
    script = KILLED.format(tests=str(Path(__file__).parent))
    path = os.pathsep.join(p for p in sys.path if p)
    done = [0]
    for _ in range(2):
        words = [sys.executable, "-c", script, str(out), "100", source, options]
        ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, timeout=120, capture_output=True)
        assert ended.returncode == -9, ended.stderr.decode()
        assert sorted(os.listdir(tmp_path)) == ["out.partial", "whole"]
        done.append(stored(out))
    assert 0 < done[1] < done[2] < COUNT
    rest: list[int] = []
    written = write(given, out, progress=rest.append, **eval(options))
    assert 0 < sum(rest) < COUNT - done[1]
    assert (written.content_digest, written.num_samples) == (expected.content_digest, COUNT)
    assert (out / "index.arrow").stat().st_size == (whole / "index.arrow").stat().st_size
    for found, other in zip(LMDBDataset(out), LMDBDataset(whole), strict=True):
        assert found.name == other.name and bytes(found.image.numpy()) == bytes(other.image.numpy())
    assert sorted(os.listdir(out)) == sorted(os.listdir(whole))


# --- what a run that continues reads ---


def test_only_the_rest_and_a_few_samples_are_read_again(out: Path) -> None:
    read: list[int] = []

    class Noted(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            read.append(index)
            return super().__getitem__(index)

    interrupt(Noted(200), out)
    read.clear()
    write(Noted(), out)
    again = [index for index in read if index < 150]
    assert set(read) >= set(range(200, COUNT)) and 10 <= len(again) <= 34


def test_prepared_samples_are_committed_often_however_small_they_are(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the sizes of real runs

    def broken(number: int) -> dict[str, int]:
        if number == 2500:
            raise RuntimeError("a bad sample")
        return {"number": number}

    interrupt(range(3000), out, prepare=broken)
    prepared: list[int] = []

    def mended(number: int) -> dict[str, int]:
        prepared.append(number)
        return {"number": number}

    mended.__qualname__ = broken.__qualname__
    write(range(3000), out, prepare=mended)
    assert set(range(2500, 3000)) <= set(prepared) and len(prepared) < 3000 - 1024
    assert [sample.number for sample in LMDBDataset(out)] == list(range(3000))


def test_a_sample_that_does_not_fit_can_be_mended_and_the_write_continued(out: Path, small_parts: None) -> None:
    samples = [sample(i) for i in range(COUNT)]
    expected = write(samples, out.with_name("whole")).content_digest
    broken = [*samples[:200], {"image": 3}, *samples[201:]]
    with pytest.raises(OptionError, match="sample 200 has the fields image"):
        write(broken, out)
    assert partial_of(out).is_dir()
    assert write(samples, out).content_digest == expected


# --- what must not be mixed ---


CHANGES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another label": (
        Samples(label=9),
        {},
        r"sample 0: its 'label' differs from what was written\. If the dataset",
    ),
    "another image": (Samples(image=sample(1)["image"]), {}, r"sample 0: its 'image' differs from what was written"),
    "another float": (Samples(weight=0.5), {}, r"sample 0: its 'weight' differs from what was written"),
    "another field": (Samples(more=1), {}, r"fields .*, now .*'more'"),
    "another length": (Subset(Samples(), range(COUNT - 1)), {}, r"number of samples 240, now 239"),  # type: ignore[arg-type]
    "another type": ([sample(i) for i in range(COUNT)], {}, r"type of the dataset Samples, now list"),
    "another codec": (Samples(), {"codec": "lz4"}, r"options .*codec"),
    "another policy": (Samples(), {"alpha": "drop"}, r"options .*alpha"),
    "a preparation": (Samples(), {"prepare": dict}, r"options .*prepare"),
    "other classes": (Samples(), {"classes": {"label": list("abcde")}}, r"names of classes"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_samples_and_options_are_refused(out: Path, change: str) -> None:
    interrupt(Samples(200), out)
    samples, options, message = CHANGES[change]
    before = sorted((path.name, path.stat().st_size) for path in partial_of(out).iterdir() if path.name == "data.mdb")
    with pytest.raises(DestinationError, match=message) as caught:
        write(samples, out, **options)
    assert "restart=True" in str(caught.value)
    assert os.listdir(out.parent) == ["out.partial"]
    after = sorted((path.name, path.stat().st_size) for path in partial_of(out).iterdir() if path.name == "data.mdb")
    assert after == before
    assert write(samples, out, restart=True, **options).num_samples == len(samples)


@pytest.mark.parametrize("at", [1, 77, 131])
def test_every_stored_sample_of_a_list_is_compared(out: Path, at: int, small_parts: None) -> None:
    samples = [sample(i) for i in range(COUNT)]
    with pytest.raises(OptionError, match="sample 200"):
        write([*samples[:200], {}, *samples[201:]], out)
    changed = [*samples[:at], {**samples[at], "label": 7}, *samples[at + 1 :]]
    with pytest.raises(DestinationError, match=f"sample {at}: its 'label' differs from what was written"):
        write(changed, out)


def test_a_dataset_that_draws_at_random_is_refused_with_the_reason(out: Path) -> None:
    rng = np.random.default_rng(0)

    class Drawn(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {**super().__getitem__(index), "weight": rng.random()}

    interrupt(Drawn(200), out)
    with pytest.raises(
        DestinationError, match=r"'weight' differs from what was written\. If the dataset or prepare draws at random"
    ):
        write(Drawn(), out)


def test_a_conversion_does_not_take_the_place_of_an_unfinished_write(out: Path) -> None:
    interrupt(Samples(200), out)
    (out.parent / "src").mkdir()
    Image.fromarray(sample(0)["image"]).save(out.parent / "src" / "a.png")
    with pytest.raises(DestinationError, match="is unfinished there: the call write, now convert"):
        convert(out.parent / "src", out)
    assert convert(out.parent / "src", out, restart=True).num_samples == 1


def test_a_dataset_that_was_put_in_place_by_a_killed_run_is_finished(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*args: Any, **options: Any) -> None:
        put_in_place(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("lmdbloader.store.writing.join.put_in_place", kill)
        with pytest.raises(Killed):
            write(Samples(), out)
    assert partial_of(out).is_dir()
    with pytest.raises(DestinationError, match="a dataset is there already"):
        write(Samples(), out, codec="lz4")
    done: list[int] = []
    assert write(Samples(), out, progress=done.append).num_samples == COUNT
    assert not done and sorted(os.listdir(out)) == sorted(FILES) and os.listdir(out.parent) == ["out"]
    with pytest.raises(DestinationError, match="a dataset is there already"):
        write(Samples(), out)


def test_a_dataset_of_the_first_samples_is_not_taken_for_an_unfinished_one_of_all(
    out: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.conversion.from_python.estimate_map_nbytes", lambda *_: 2**22)
    samples = [sample(i) for i in range(200)]

    def breaks(_: int) -> None:
        if Work(out).facts(0) is not None:
            raise RuntimeError("a bad sample")

    interrupt(samples, out, progress=breaks)
    first = Work(out).facts(0)
    assert first is not None and Work(out).facts(1) is None
    write(samples[: first.num_samples], out, restart=True)
    with pytest.raises(RuntimeError, match="a bad sample"):
        write(samples, out, overwrite=True, progress=breaks)
    assert Work(out).is_published()
    with pytest.raises(DestinationError, match="a dataset is there already"):
        write(samples, out)
    assert write(samples, out, overwrite=True).num_samples == 200


# --- what identifies samples ---


class Files(Samples):
    """A dataset with torchvision's lists."""

    def __init__(self, root: str, names: list[str]) -> None:
        super().__init__()
        self.root = root
        self.samples = [(os.path.join(root, name), i % 2) for i, name in enumerate(names)]


def test_lists_of_files_count_but_not_the_place_of_their_folder() -> None:
    first = identity_of(Files("/a", ["x", "y"]), 2)
    assert identity_of(Files("/b/c", ["x", "y"]), 2) == first
    assert identity_of(Samples(), 2).keys() == first.keys()  # whoever has no lists any more is another
    others = [Files("/a", ["x", "z"]), Files("/a", ["y", "x"]), Files("/a", ["x"])]
    assert len({str(identity_of(dataset, 2)) for dataset in (*others, Files("/a", ["x", "y"]))}) == 4
    subsets = [Subset(Files("/a", ["x", "y"]), indices) for indices in ([0], [1])]  # type: ignore[arg-type]
    assert identity_of(subsets[0], 1) != identity_of(subsets[1], 1)
    whole = ConcatDataset([Files("/a", ["x"]), Files("/a", ["y"])])  # type: ignore[list-item]
    assert identity_of(whole, 2) != identity_of(ConcatDataset([Files("/a", ["x"]), Files("/a", ["z"])]), 2)  # type: ignore[list-item]
