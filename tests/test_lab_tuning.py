"""lab.tune and `lmdbloader tune` on real, small datasets: the settings, the choice, its memory, and the verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import lmdbloader
from lmdbloader import LMDBDataset, Loader, cli
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.lab import tune
from lmdbloader.lab import tuning as tuner
from lmdbloader.lab.arms import Arm, Feed, Material, open_arm, take_turn
from lmdbloader.lab.tuning import try_steps
from lmdbloader.loader import tuning_cache
from lmdbloader.transforms import RandomApply, RandomCrop, RandomDihedral, ToDtype

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def path(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of patches, 96 x 96 and 48 x 48."""
    folder = tmp_path_factory.mktemp("tuning") / "pairs.lmdb"
    lmdbloader.convert(photos, folder, patch_size=96, scale=2, codec="raw")
    return folder


@pytest.fixture(scope="module")
def jpegs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole photographs, as the JPEG files that they came as."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("jpegs") / "files"
    folder.mkdir()
    for number, name in enumerate(sorted(photos.glob("*.png"))):
        Image.open(name).crop((0, 0, 200 + 8 * number, 180)).save(folder / f"{name.stem}.jpg")
    lmdbloader.convert(folder, folder.with_name("jpegs.lmdb"))
    return folder.with_name("jpegs.lmdb")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmdbloader" / "settings.json"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores and no accelerator."""
    for name in ("count_cores", "count_own_cores"):
        monkeypatch.setattr(tuning_cache, name, lambda: 2)
    monkeypatch.setattr(tuner, "count_cores", lambda: 2)
    monkeypatch.setattr("lmdbloader.loader.loader.count_cores", lambda: 2)
    monkeypatch.setattr(tuner, "accelerator", lambda: None)


THREADS = {n: Arm("lmdbloader", 4, n) for n in (1, 2)}
WORKERS = {n: Arm("dataloader", 4, n) for n in (0, 1, 2)}


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[Arm, float]:
    """Samples a second that each setting is found to have; change it. Nothing is read, and a turn takes no time."""
    found = {THREADS[1]: 500.0, THREADS[2]: 1000.0, WORKERS[0]: 100.0, WORKERS[1]: 300.0, WORKERS[2]: 200.0}

    def take_turn(feed: Feed, seconds: float) -> BatchTimes:
        kind = THREADS if isinstance(feed.loader, Loader) else WORKERS
        setting = kind[feed.loader.num_threads if kind is THREADS else feed.loader.num_workers]
        return BatchTimes(1000, 1000 / found[setting], (0.001, 0.002))

    monkeypatch.setattr(tuner, "take_turn", take_turn)
    return found


def test_the_command_measures_recommends_and_remembers(path: Path, capsys: Capture) -> None:
    words = ["tune", str(path), "--batch-size", "4", "--crop", "32", "--seconds", "0.2"]
    assert cli.main([*words, "--step-seconds", "1e-7"]) == 1  # 40 million samples/s
    text = capsys.readouterr().out
    assert "<== best" in text and "DataLoader, 2 workers" in text and "\n\nFAIL: " in text
    (line,) = (line for line in text.splitlines() if "import lmdbloader;" in line)
    namespace: dict[str, Any] = {}
    exec(line.strip(), namespace)
    assert next(iter(namespace["loader"])).hr.shape == (4, 3, 32, 32)

    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["setting"]["source"], row["setting"]["num_workers"]) for row in found["rows"]}
    assert rows == {("lmdbloader", 1), ("lmdbloader", 2), ("dataloader", 0), ("dataloader", 1), ("dataloader", 2)}
    assert all(row["samples_per_s"] > 0 and row["p50_seconds"] <= row["p99_seconds"] for row in found["rows"])
    assert found["verdict"] is None and found["environment"]["packages"] and found["examples"]["num_timed"]
    loader = Loader(LMDBDataset(path), 4, shuffle=True, transforms=[RandomCrop(32)])
    assert loader.num_threads == found["threads"]["num_workers"]


def test_the_best_is_chosen_and_remembered(path: Path, speeds: dict[Arm, float]) -> None:
    found = tune(path, 4)
    assert (found.threads, found.workers) == (THREADS[2], WORKERS[1])
    assert found.best == found.threads
    assert lmdbloader.dataloader(LMDBDataset(path), 4).num_workers == 1
    speeds[THREADS[1]] = 970.0  # near enough, and cheaper
    assert tune(path, 4).best == THREADS[1]
    assert Loader(LMDBDataset(path), 4, shuffle=True).num_threads == 1
    speeds[WORKERS[2]] = 1200.0
    found = tune(path, 4, crop=32)
    assert found.best == WORKERS[2]
    namespace: dict[str, Any] = {}
    exec(found.line, namespace)
    assert namespace["loader"].num_workers == 2 and namespace["loader"].dataset[0].hr.shape == (3, 32, 32)
    # Without workers, each step waits for its batch.
    speeds[WORKERS[0]] = 1300.0
    assert tune(path, 4).workers == WORKERS[0]
    assert tune(path, 4, step_seconds=0.01, seconds=0.1).workers == WORKERS[2]


@pytest.mark.parametrize("setting", [THREADS[1], WORKERS[0]], ids=str)
def test_batches_are_copied_to_the_accelerator_and_the_users_random_state_stays(path: Path, setting: Arm) -> None:
    before = torch.get_rng_state()
    material = Material(LMDBDataset(path), None, [RandomCrop(32)], torch.device("meta"))
    with open_arm(material, setting) as feed:
        turn = take_turn(feed, 0.01)
        assert turn.num_samples == 4 * len(turn.waits) and turn.seconds >= 0.01
        assert next(feed.batches).hr.device.type == "meta"
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"batch_size": value}, "batch_size=") for value in (2.5, "8", True, 0, 10_000)),
        *(({"crop": value}, "crop=") for value in (8.5, 0)),
        ({"step_seconds": 0.0}, "step_seconds=0.0"),
        *(({"seconds": value}, "seconds=") for value in (float("nan"), float("inf"), -1)),
        ({"crop": 500}, "larger than the image"),
    ],
)
def test_bad_options_are_refused(path: Path, options: dict[str, Any], named: str, cache: Path) -> None:
    with pytest.raises(OptionError, match=named):
        tune(path, **{"batch_size": 4, **options})
    assert not cache.exists()


def test_datasets_that_do_not_suit_are_refused_with_a_remedy(path: Path, jpegs: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"different shapes.*crop=96 adds a crop"):
        tune(jpegs, 4)
    with pytest.raises(OptionError, match="TensorDataset"):
        tune(TensorDataset(torch.zeros(9)), 4)  # type: ignore[arg-type]
    assert cli.main(["tune", str(tmp_path / "none"), "--batch-size", "8"]) == 1
    with pytest.raises(SystemExit):
        cli.main(["tune", str(path)])


def test_a_damaged_dataset_is_an_error_and_nothing_is_remembered(path: Path, tmp_path: Path, cache: Path) -> None:
    shutil.copytree(path, tmp_path / "d")
    content = bytearray((tmp_path / "d/data.mdb").read_bytes())
    content[len(content) // 3 :: 4096] = b"\xff" * len(content[len(content) // 3 :: 4096])
    (tmp_path / "d/data.mdb").write_bytes(content)
    with pytest.raises(CorruptError):
        tune(tmp_path / "d", 4, seconds=1)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("setting", "transforms"),
    [
        (THREADS[2], []),
        (THREADS[1], [RandomCrop((32, 16), padding=2), ToDtype(torch.float32, scale=True)]),
        (WORKERS[0], [RandomCrop(32), RandomApply([RandomDihedral(fields=("lr", "hr"))])]),
    ],
    ids=range(3),
)
def test_every_line_runs_as_pasted(path: Path, setting: Arm, transforms: list[Any]) -> None:
    namespace: dict[str, Any] = {}
    exec(tuner.line_of(Material(LMDBDataset(path), None, transforms), setting, str(path)), namespace)
    loader = namespace["loader"]
    if setting.source == "lmdbloader":
        assert loader.num_threads == setting.num_workers and list(loader._options["transforms"]) == transforms
    else:
        assert loader.num_workers == setting.num_workers and list(loader.dataset.all_transforms) == transforms
    assert len(next(iter(loader)).hr) == 4


class Time:
    """A clock that goes by 10 microseconds when it is looked at, and as long as somebody sleeps."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-5
        return self.now

    thread_time = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def batches(self, seconds: float, late: float = 0.0, every: int = 50) -> Iterator[int]:
        """Give batches that take some time to read, of which two may be ready ahead; now and then one is late."""
        ready, taken = self.now, [self.now] * 2
        for number in range(100_000):
            ready = max(ready, taken[-2]) + seconds + late * (number % every == 20)
            self.now = max(self.now, ready)
            taken.append(self.now)
            yield number


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr("lmdbloader.lab.profiling.recorder.time", found)
    monkeypatch.setattr("lmdbloader.base.stopwatch.time", found)
    return found


@pytest.mark.parametrize(
    ("seconds", "late", "passed"),
    [(0.01, 0.0, True), (0.099, 0.0, True), (0.12, 0.0, False), (0.01, 0.3, False), (0.01, 0.05, True)],
    ids=["fast", "just enough", "too slow", "fast, but 2 % late", "fast, and what is late was ready"],
)
def test_a_step_is_fed_or_not(clock: Time, seconds: float, late: float, passed: bool) -> None:
    verdict = try_steps(Feed(clock.batches(seconds, late), 32, 1, 2), 0.1, 20, 32 / seconds)
    assert clock.now < 21 and verdict.num_steps >= 150
    assert verdict.passed is passed and str(verdict).startswith("PASS" if passed else "FAIL")
    if seconds == 0.12:
        assert verdict.p99_wait_seconds == pytest.approx(0.02, abs=1e-3)
