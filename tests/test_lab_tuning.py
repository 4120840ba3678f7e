"""lab.tune on real, small datasets: its measurements, memory and recommendations, and the verdict on a step."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.lab.machine import describe_environment
from lmdbloader.lab.tuning import ReadSetting, StepTrial, tuner
from lmdbloader.lab.tuning.measuring import Measurer, OpenLoader, try_steps
from lmdbloader.lab.tuning.results import TuningRow, advise
from lmdbloader.lab.tuning.tuner import line_of
from lmdbloader.loader import torch_loader, tuning_cache
from lmdbloader.loader.tuning_cache import Workers, case_of
from lmdbloader.transforms import LabelSmoothing, RandomCrop, RandomDihedral, RandomResizedCrop, ToDtype


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
        image = Image.open(name).crop((0, 0, 200 + 8 * number, 180))
        image.save(folder / f"{name.stem}.jpg")
    lmdbloader.convert(folder, folder.with_name("jpegs.lmdb"))
    return folder.with_name("jpegs.lmdb")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores and no accelerator."""
    for module in (tuner, tuning_cache):
        monkeypatch.setattr(module, "count_cores", lambda: 2)
    monkeypatch.setattr("lmdbloader.loader.loader.count_cores", lambda: 2)
    monkeypatch.setattr(tuner, "accelerator", lambda: None)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> dict[ReadSetting, float]:
    """Samples a second that each setting is found to have; change it. Nothing is read, and a turn takes no time."""
    found = {
        ReadSetting("threads", 1): 500.0, ReadSetting("threads", 2): 1000.0,
        ReadSetting("workers", 0): 100.0, ReadSetting("workers", 1): 300.0, ReadSetting("workers", 2): 200.0,
    }  # fmt: skip

    def measure(self: Measurer, setting: ReadSetting, number: int) -> BatchTimes:
        return BatchTimes(1000, 1000 / found[setting], (0.001, 0.002))

    monkeypatch.setattr(Measurer, "__call__", measure)
    return found


def test_a_dataloader_to_tune_gets_the_line(path: Path) -> None:
    with pytest.raises(OptionError, match=r"Write tune\(loader\.dataset, batch_size\)"):
        lmdbloader.lab.tune(DataLoader(LMDBDataset(path), 2), 2)


def test_the_recommended_line_runs_as_pasted(path: Path, two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_settings", lambda *_, **__: [ReadSetting("threads", 1), ReadSetting("threads", 2)])
    monkeypatch.setattr(tuner, "Measurer", functools.partial(Measurer, turn_seconds=0.01))
    seen: list[float] = []
    found = lmdbloader.lab.tune(path, 4, crop=32, seconds=2.0, progress=seen.append)

    assert [row.setting.count for row in found.rows] == [1, 2]
    assert all(row.samples_per_s > 0 and row.p50_seconds <= row.p99_seconds for row in found.rows)
    assert found.num_threads in (1, 2)
    assert 0 < sum(seen) <= found.seconds < 20
    text = str(found)
    assert "<== best" in text and found.line in text
    assert ("Remembered: " in text) == bool(found.stored)  # on a busy machine the result may not be clear
    namespace: dict[str, Any] = {}
    exec(found.line, namespace)
    assert next(iter(namespace["loader"])).hr.shape == (4, 3, 32, 32)
    stated = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert stated["num_threads"] == found.num_threads
    assert stated["environment"]["storage"] == describe_environment(path)["storage"]
    remembered = found.num_threads if found.is_stored else 2
    assert Loader(LMDBDataset(path), 4, shuffle=True, transforms=[RandomCrop(32)]).num_threads == remembered


@pytest.mark.parametrize(("seconds", "chance"), [(30, 4.0), (9, 1.0)], ids=["noise", "one turn of each"])
def test_a_result_that_is_unclear_is_not_remembered(
    path: Path, speeds: dict[ReadSetting, float], monkeypatch: pytest.MonkeyPatch, seconds: float, chance: float
) -> None:
    rng, now = random.Random(0), 0.0
    speeds[ReadSetting("threads", 1)] = 1000.0

    def measure(self: Measurer, setting: ReadSetting, number: int) -> BatchTimes:
        nonlocal now
        now += 1.0
        factor = rng.uniform(1, chance) if setting.kind == "threads" else 1.0
        return BatchTimes(1000, factor * 1000 / speeds[setting], (0.001, 0.002))

    monkeypatch.setattr(Measurer, "__call__", measure)
    monkeypatch.setattr(tuner, "time", SimpleNamespace(perf_counter=lambda: now))
    found = lmdbloader.lab.tune(path, 4, seconds=seconds)
    assert found.stored == (("workers",) if chance > 1 else ())
    assert any("Too close, or too noisy" in text and "is not remembered" in text for text in found.advice)
    assert "Not every result is remembered: the best setting was not clear in the time" in str(found)
    assert found.num_threads in (1, 2)
    assert tuning_cache.recall_threads(case_of(LMDBDataset(path), 4)) is None


@pytest.mark.parametrize(
    "setting", [ReadSetting("threads", 1), ReadSetting("workers", 0), ReadSetting("workers", 2)], ids=str
)
def test_a_turn_counts_every_sample_of_whole_rounds(path: Path, two_cores: None, setting: ReadSetting) -> None:
    before = torch.get_rng_state()
    turn = Measurer(LMDBDataset(path), 8, [RandomCrop(32)], turn_seconds=0.01)(setting, 0)

    assert turn.num_samples == 8 * len(turn.waits)
    assert len(turn.waits) % (8 if setting.kind == "threads" else max(setting.count, 1)) == 0
    assert turn.seconds == pytest.approx(sum(turn.waits), rel=0.01) and turn.seconds >= 0.01
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("setting", [ReadSetting("threads", 1), ReadSetting("workers", 0)], ids=str)
def test_with_an_accelerator_batches_are_copied_to_it(path: Path, two_cores: None, setting: ReadSetting) -> None:
    measurer = Measurer(LMDBDataset(path), 8, device=torch.device("meta"), turn_seconds=0.01)
    with measurer.open(setting, 0) as opened:
        assert {image.device.type for image in next(opened.batches)} == {"meta"}
    assert measurer(setting, 1).num_samples > 0


def test_both_kinds_are_remembered_and_used(path: Path, speeds: dict[ReadSetting, float]) -> None:
    speeds[ReadSetting("threads", 1)] = 990.0
    found = lmdbloader.lab.tune(path, 4)
    assert (found.num_threads, found.workers, found.best) == (1, Workers(1), ReadSetting("threads", 1))
    assert found.is_stored

    ds = LMDBDataset(path)
    assert Loader(ds, 4, shuffle=True, transforms=[RandomDihedral()]).num_threads == 1
    assert Loader(ds, 8, shuffle=True).num_threads == 2
    loader = lmdbloader.dataloader(ds, 4)
    assert (loader.num_workers, loader.pin_memory) == (1, False)
    assert {row.setting: round(row.samples_per_s) for row in found.rows} == speeds


def test_a_result_for_one_size_is_not_used_for_another(path: Path, speeds: dict[ReadSetting, float]) -> None:
    speeds[ReadSetting("threads", 1)] = 2000.0
    lmdbloader.lab.tune(path, 4, crop=32)
    ds = LMDBDataset(path)
    assert Loader(ds, 4, shuffle=True, transforms=[RandomCrop(32)]).num_threads == 1
    assert (
        Loader(ds, 4, shuffle=True, transforms=[RandomCrop(64)]).num_threads
        == Loader(ds, 4, shuffle=True).num_threads
        == 2
    )
    assert tuning_cache.recall_workers(case_of(ds.transformed([RandomCrop(32)]).scaled(), 4)) == Workers(1)


def test_a_cache_that_cannot_be_written_is_reported(
    path: Path, speeds: dict[ReadSetting, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = lmdbloader.lab.tune(path, 4)
    assert not found.is_stored
    assert "Not every result is remembered" in str(found)


def test_kinds_without_time_to_measure_are_not_remembered(
    path: Path, speeds: dict[ReadSetting, float], cache: Path
) -> None:
    found = lmdbloader.lab.tune(path, 4, seconds=1e-9)
    assert [row.setting for row in found.rows] == [ReadSetting("threads", 2)]
    assert found.num_threads == 2 and found.workers is None
    assert found.advice[0].startswith("There was no time to measure Loader, 1 thread; DataLoader, 0 workers;")
    assert not found.is_stored and not (cache / "lmdbloader" / "settings.json").exists()
    assert "Remembered:" not in str(found)


def test_kinds_that_were_not_measured_are_not_listed_as_remembered(
    path: Path, speeds: dict[ReadSetting, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored(found: Any) -> str:
        return str(found).rpartition("\n\n")[2]

    assert stored(lmdbloader.lab.tune(path, 4)).startswith(
        'Remembered: num_threads="auto" and lmdbloader.dataloader use what was found for'
    )
    only_threads = lmdbloader.lab.tune(path, 4, transforms=[RandomCrop(32), tuple])
    assert only_threads.is_stored and only_threads.stored == ("threads",)
    assert stored(only_threads).startswith('Remembered: num_threads="auto" uses what') and (
        "dataloader" not in stored(only_threads)
    )
    other = lmdbloader.lab.tune(TensorDataset(torch.zeros(100, 3)), 10)
    assert stored(other).startswith("Remembered: lmdbloader.dataloader uses what") and "auto" not in stored(other)
    monkeypatch.setattr(tuner, "remember_workers", lambda *_: False)
    half = lmdbloader.lab.tune(path, 4)
    assert not half.is_stored and half.as_json()["stored"] == ["threads"]
    assert "auto" in stored(half) and "Not every result is remembered" in stored(half)


def test_the_dataloader_is_recommended_if_it_is_clearly_faster(path: Path, speeds: dict[ReadSetting, float]) -> None:
    speeds[ReadSetting("workers", 2)] = 1030.0
    assert lmdbloader.lab.tune(path, 4).best == ReadSetting("threads", 2)
    speeds[ReadSetting("workers", 2)] = 1200.0
    found = lmdbloader.lab.tune(path, 4, crop=32)
    assert found.best == ReadSetting("workers", 2)
    namespace: dict[str, Any] = {}
    exec(found.line, namespace)
    assert isinstance(namespace["loader"], DataLoader) and namespace["loader"].num_workers == 2
    assert namespace["loader"].dataset[0].hr.shape == (3, 32, 32)


def test_with_an_accelerator_pinned_memory_is_measured_and_remembered(
    path: Path, speeds: dict[ReadSetting, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tuner, torch_loader):
        monkeypatch.setattr(module, "accelerator", lambda: torch.device("cuda"))
    for count, pinned in ((0, 110.0), (1, 200.0), (2, 600.0)):
        speeds[ReadSetting("workers", count, pinned=True)] = pinned
    found = lmdbloader.lab.tune(path, 4)

    assert found.workers == Workers(2, pin_memory=True)
    assert any("pinned memory gives 3.00 x" in sentence for sentence in found.advice)
    assert lmdbloader.dataloader(LMDBDataset(path), 4).pin_memory
    speeds[ReadSetting("workers", 1)] = 601.0
    assert lmdbloader.lab.tune(path, 4).workers == Workers(1, pin_memory=False)
    assert not lmdbloader.dataloader(LMDBDataset(path), 4).pin_memory


def test_other_datasets_are_measured_with_the_dataloader_only(speeds: dict[ReadSetting, float]) -> None:
    dataset = TensorDataset(torch.zeros(100, 3))
    found = lmdbloader.lab.tune(dataset, 10)
    assert (found.num_threads, found.workers) == (None, Workers(1))
    assert found.line == "import lmdbloader; loader = lmdbloader.dataloader(" + (
        "dataset, batch_size=10, shuffle=True, num_workers=1)"
    )
    assert lmdbloader.dataloader(dataset, 10).num_workers == 1


def test_functions_for_whole_batches_leave_the_dataloader_out(path: Path, speeds: dict[ReadSetting, float]) -> None:
    def halve(batch: Any) -> Any:
        return batch

    found = lmdbloader.lab.tune(path, 4, transforms=[RandomCrop(32), halve])
    assert found.workers is None and found.num_threads == 2
    assert "transforms=transforms" in found.line
    with pytest.raises(OptionError, match="Leave the functions out"):
        lmdbloader.lab.tune(TensorDataset(torch.zeros(100, 3)), 10, transforms=[halve])


def test_crops_are_those_that_people_use(path: Path, jpegs: Path, speeds: dict[ReadSetting, float]) -> None:
    assert lmdbloader.lab.tune(path, 4, crop=32).transforms == repr(RandomCrop(32))
    assert lmdbloader.lab.tune(jpegs, 4, crop=64).transforms == repr(RandomResizedCrop(64))
    one = LMDBDataset(path, fields=["hr"])
    assert lmdbloader.lab.tune(one, 4, crop=96).transforms == repr(RandomCrop(96))
    assert lmdbloader.lab.tune(one, 4, crop=97).transforms == repr(RandomResizedCrop(97))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size=2.5: expected a whole number"),
        ({"batch_size": "8"}, "batch_size='8': expected a whole number"),
        ({"batch_size": True}, "batch_size=True: expected a whole number"),
        ({"batch_size": 4, "crop": 8.5}, "crop=8.5: expected a whole number"),
        ({"batch_size": 0}, "batch_size=0.*expected at least 1"),
        ({"batch_size": 4, "crop": 0}, "crop=0.*expected at least 1"),
        ({"batch_size": 4, "step_seconds": 0.0}, "step_seconds=0.0: expected seconds, more than 0"),
        ({"batch_size": 4, "seconds": float("nan")}, "seconds=nan"),
        ({"batch_size": 4, "seconds": float("inf")}, "seconds=inf"),
        ({"batch_size": 10_000}, "fewer than one batch"),
        ({"batch_size": 4, "crop": 500}, "a crop or a Cutout is larger than the image"),
    ],
)
def test_bad_options_are_refused(path: Path, options: dict[str, Any], message: str, cache: Path) -> None:
    with pytest.raises(OptionError, match=message):
        lmdbloader.lab.tune(path, **options)
    assert not (cache / "lmdbloader" / "settings.json").exists()


def test_images_of_different_shapes_are_refused_with_a_remedy(jpegs: Path) -> None:
    with pytest.raises(OptionError, match=r"different shapes.*tune\(\.\.\., crop=N\) adds a crop"):
        lmdbloader.lab.tune(jpegs, 4)
    with pytest.raises(OptionError, match="only an LMDBDataset"):
        lmdbloader.lab.tune(TensorDataset(torch.zeros(9)), 4, crop=5)


def test_grey_and_colour_images_are_tuned_for_the_loader_and_named(
    tmp_path: Path, two_cores: None, speeds: dict[ReadSetting, float]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), np.uint8)
    samples = [{"image": image[:, :, 0] if i in (5, 7) else image} for i, image in enumerate(noise)]
    lmdbloader.write(samples, tmp_path / "mixed")
    dataset = LMDBDataset(tmp_path / "mixed")
    found = lmdbloader.lab.tune(dataset, 8)
    assert (found.workers, found.num_threads) == (None, 2)
    said = (
        "DataLoader was not measured: of field 'image', 2 images are grey, such as sample 5, and 10 are in colour, "
        "such as sample 0. "
    )
    assert said in found.advice[0] and said in str(found)
    # What the advice says.
    with pytest.raises(OptionError, match=r"grey and colour .*lmdbloader\.Loader"):
        next(iter(lmdbloader.dataloader(dataset, 12, num_workers=0)))
    assert next(iter(Loader(dataset, 12, order="sequential"))).image[5].float().std(dim=0, correction=0).max() == 0
    cropped = dataset.transformed([RandomCrop(8)])
    assert next(iter(lmdbloader.dataloader(cropped, 12, num_workers=0))).image.shape == (12, 3, 8, 8)
    for tuned in (lmdbloader.lab.tune(dataset, 8, crop=8), lmdbloader.lab.tune(cropped, 8)):
        assert tuned.workers == Workers(1) and not any("not measured: of" in line for line in tuned.advice)
    assert lmdbloader.lab.tune(dataset[:5], 4).workers == Workers(1)


def test_a_damaged_dataset_is_an_error_and_nothing_is_remembered(path: Path, tmp_path: Path, cache: Path) -> None:
    import shutil

    shutil.copytree(path, tmp_path / "d")
    content = bytearray((tmp_path / "d/data.mdb").read_bytes())
    content[len(content) // 3 :: 4096] = b"\xff" * len(content[len(content) // 3 :: 4096])
    (tmp_path / "d/data.mdb").write_bytes(content)
    with pytest.raises(CorruptError):
        lmdbloader.lab.tune(tmp_path / "d", 4, seconds=5)
    assert not (cache / "lmdbloader" / "settings.json").exists()


LINES = [
    (ReadSetting("threads", 2), []),
    (ReadSetting("threads", 1), [RandomCrop((32, 16), padding=2), ToDtype(torch.float32, scale=True)]),
    (ReadSetting("workers", 0), [RandomCrop(32), RandomDihedral(fields=("lr", "hr"))]),
    (ReadSetting("workers", 1), []),
]


@pytest.mark.parametrize(("setting", "transforms"), LINES, ids=range(len(LINES)))
def test_every_line_runs_as_pasted(path: Path, two_cores: None, setting: ReadSetting, transforms: list[Any]) -> None:
    namespace: dict[str, Any] = {}
    exec(line_of(LMDBDataset(path), 4, transforms, setting), namespace)
    loader = namespace["loader"]
    if setting.kind == "threads":
        assert loader.num_threads == setting.count
        assert list(loader._options["transforms"]) == transforms
    else:
        assert loader.num_workers == setting.count
        assert list(loader.dataset.all_transforms) == transforms
    assert len(next(iter(loader)).hr) == 4


def test_objects_that_text_cannot_make_are_variables(path: Path) -> None:
    ds = LMDBDataset(path)
    for dataset in (
        ds[:8],
        ds.scaled(),
        LMDBDataset(path, ["hr"]),
        LMDBDataset(path, io="pread"),
        type(ds)(path, None, tuple),
    ):
        assert "lmdbloader.Loader(dataset, batch_size=4, " in line_of(dataset, 4, [], ReadSetting("threads", 1))
    line = line_of(ds, 4, [LabelSmoothing(0.1, num_classes=3)], ReadSetting("threads", 1), has_pinned=True)
    assert line.endswith("batch_size=4, shuffle=True, transforms=transforms, num_threads=1)")
    assert line_of(ds, 4, [], ReadSetting("workers", 2, pinned=True), has_pinned=True).endswith("pin_memory=True)")


class Time:
    """A clock that goes by 10 microseconds when it is looked at, and as long as somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now

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


@pytest.mark.parametrize(
    ("reading", "late", "passed"),
    [(0.01, 0.0, True), (0.099, 0.0, True), (0.12, 0.0, False), (0.01, 0.3, False), (0.01, 0.05, True)],
    ids=["fast", "just enough", "too slow", "fast, but 2 % late", "fast, and what is late was ready"],
)
def test_a_step_is_fed_or_not(reading: float, late: float, passed: bool) -> None:
    time = Time()
    opened = OpenLoader(time.batches(reading, late), 1, 2)
    verdict = try_steps(
        opened, 0.1, 20, samples_per_s=32 / reading, needed_samples_per_s=320, clock=time, sleep=time.sleep
    )
    assert time.now < 20.5 and verdict.num_steps >= 150
    assert verdict.passed is passed
    assert str(verdict).startswith("PASS" if passed else "FAIL")
    assert verdict.margin == pytest.approx(0.1 / reading)
    assert verdict.allowed_seconds == pytest.approx(0.005)
    if reading == 0.12:
        assert verdict.share_ready == 0
        assert verdict.p99_wait_seconds == pytest.approx(0.02, abs=1e-3)


def test_a_loader_that_was_only_ready_ahead_does_not_pass() -> None:
    time = Time()
    verdict = try_steps(
        OpenLoader(iter(range(1000)), 1, 2), 0.1, 1, samples_per_s=100, needed_samples_per_s=320,
        clock=time, sleep=time.sleep,
    )  # fmt: skip
    assert verdict.share_ready == 1 and not verdict.passed


def test_a_long_step_is_tried_for_the_time_there_is_and_a_short_one_500_times() -> None:
    for step, steps in ((10.0, 1), (1.0, 2), (1e-3, 500)):
        time = Time()
        verdict = try_steps(
            OpenLoader(iter(range(1000)), 1, 2), step, 2.5, samples_per_s=1e4, needed_samples_per_s=1, clock=time,
            sleep=time.sleep,
        )  # fmt: skip
        assert verdict.num_steps == steps
        assert time.now < max(2.5, step) + step
        assert ("(few, for so long a step)" in str(verdict)) == (steps < 500)


def test_with_a_step_time_the_cheapest_that_keeps_up_is_chosen_and_tried(
    path: Path, speeds: dict[ReadSetting, float]
) -> None:
    found = lmdbloader.lab.tune(path, 4, step_seconds=0.02, seconds=2)  # takes 200 samples/s
    assert found.verdict is not None and (found.best.count == 1 or not found.verdict.passed)
    assert found.num_threads == 2 and found.workers == Workers(1)  # the fastest is remembered
    assert Loader(LMDBDataset(path), 4, shuffle=True).num_threads == 2
    assert "which reads fastest whatever the step" in " ".join(str(found).split())
    assert found.verdict.needed_samples_per_s == pytest.approx(200)
    assert found.verdict.margin == pytest.approx(500 * found.best.count / 200)
    assert found.as_json()["verdict"]["passed"] is found.verdict.passed

    for setting in speeds:
        speeds[setting] /= 100
    found = lmdbloader.lab.tune(path, 4, step_seconds=0.02, seconds=1)
    assert found.best == ReadSetting("threads", 2)  # none keeps up: then the fastest
    assert found.verdict is not None and not found.verdict.passed


@pytest.mark.parametrize(
    ("shares", "chosen", "share"),
    [([1.0], 1, 1.0), ([0.5, 1.0], 2, 1.0), ([0.5, 0.7], 2, 0.7), ([0.7, 0.5], 1, 0.7)],
    ids=["the cheapest feeds it", "only the fastest feeds it", "none, the fastest is better", "none, it is no better"],
)
def test_if_the_cheapest_fails_the_fastest_is_tried(
    path: Path,
    speeds: dict[ReadSetting, float],
    monkeypatch: pytest.MonkeyPatch,
    shares: list[float],
    chosen: int,
    share: float,
) -> None:
    coming = iter(shares)

    def tried(opened: OpenLoader, step_seconds: float, seconds: float, **rates: float) -> StepTrial:
        return StepTrial(step_seconds, next(coming), 0.001, 0.001, 100, **rates)

    monkeypatch.setattr(tuner, "try_steps", tried)
    found = lmdbloader.lab.tune(path, 4, step_seconds=0.02)
    assert found.verdict is not None and found.verdict.share_ready == share
    assert found.best == ReadSetting("threads", chosen) and f"num_threads={chosen})" in found.line
    assert next(coming, None) is None
    assert found.num_threads == Loader(LMDBDataset(path), 4, shuffle=True).num_threads == 2


def test_without_workers_each_step_waits_for_its_batch() -> None:
    worth = tuner._worth
    assert worth(ReadSetting("workers", 0), 200.0, needed=200.0) == pytest.approx(100)
    assert worth(ReadSetting("workers", 1), 200.0, needed=200.0) == pytest.approx(160)
    assert worth(ReadSetting("workers", 1), 900.0, needed=200.0) == 200


def test_advice_quotes_the_measurements() -> None:
    rates = {("threads", 1): 600.0, ("workers", 0): 300.0, ("workers", 1): 200.0, ("workers", 2): 150.0}
    rows = [TuningRow(ReadSetting(kind, n), rate, 0.1, 0.2, 9, 3) for (kind, n), rate in rates.items()]  # type: ignore[arg-type]
    picks = {"threads": ReadSetting("threads", 1), "workers": ReadSetting("workers", 0)}
    text = " ".join(advise(rows, picks, 8, has_accelerator=False))
    assert "with 2 the DataLoader reads 0.50 x as much as with 0" in text
    assert "The Loader reads 2.00 x as much" in text
    assert "Batches of 8 are small" in text and "fewer workers and paged memory" in text
    assert "No accelerator" in text
    assert "are small" not in " ".join(advise(rows, picks, 64, has_accelerator=False))
