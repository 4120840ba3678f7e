"""`bench` measures what a dataset allows, of every kind, and notes what it leaves out."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe, current_process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.errors import OptionError, WorkerError
from lmdbloader.lab.machine import describe_environment
from lmdbloader.lab.study import Study, isolation_process
from lmdbloader.lab.study.endless_loader import BenchData, EndlessLoader, LoaderSetting, open_endless
from lmdbloader.lab.study.image_files import extract_files, find_files
from lmdbloader.lab.study.isolation import middle_turns, take_turns
from lmdbloader.lab.study.isolation_process import serve
from lmdbloader.lab.study.setup import BenchSetup
from lmdbloader.lab.study.sweeps import settings_of, sweep
from lmdbloader.lab.study.training import TrainingTurn, take_training_turn, why_unknown

QUICK: dict[str, Any] = {"seconds": 0.002, "repeats": 1, "num_workers": 1}


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 pairs of 48 x 48 and 96 x 96 pixels."""
    path = tmp_path_factory.mktemp("study") / "pairs"
    lmdbloader.convert(photos, path, scale=2, patch_size=96, stride=64, workers=1)
    return path


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine photographs of two sizes, each with a label and a name."""
    path = tmp_path_factory.mktemp("study") / "whole"
    images = [np.asarray(Image.open(file)) for file in sorted(photos.iterdir())]
    images.append(images[0][:100, :90])
    lmdbloader.write(({"image": image, "label": i, "name": str(i)} for i, image in enumerate(images)), path)
    return path


def survives(study: Study) -> Study:
    """Return a study, which JSON must keep, and whose text must fit."""
    assert Study.from_json(json.loads(json.dumps(study.as_json(), allow_nan=False))) == study
    assert study.environment["storage"] == describe_environment(study.dataset.path)["storage"]
    assert {"layout", "system", "storage", "packages"} <= {name for name, *_ in study.machine}
    assert max(map(len, str(study).partition("What to do now")[0].splitlines())) <= 100
    return study


def test_pairs_are_compared_with_their_files(pairs: Path) -> None:
    lines: list[str] = []
    study = survives(
        lmdbloader.lab.bench(
            pairs, baseline="auto", batch_sizes=[8, 2], crops=[16], only=["sweep"], progress=lines.append, **QUICK
        )
    )
    assert [(row.source, row.batch_size, row.crop) for row in study.sweep] == [
        (source, size, 16) for size in (2, 8) for source in ("lmdbloader", "dataloader", "folder")
    ]
    for row in study.sweep:
        assert row.samples_per_s == row.turns[0] > 0
        assert row.epoch_seconds == pytest.approx(study.dataset.num_samples / row.samples_per_s)
        assert (row.stages is not None) == (row.source == "lmdbloader")
        assert row.training is not None and row.training.num_steps >= 2
        phases = row.training.phases
        assert all(value > 0 for value in (phases.data, phases.copy, phases.forward, phases.backward, phases.update))
        assert row.training.samples_per_s == pytest.approx(row.batch_size / phases.total)
        assert row.training.turns == (pytest.approx(row.training.samples_per_s),)
        assert row.training.gpu is None and not row.is_pinned
    assert sum(row.cpu_seconds_per_sample for row in study.sweep) > 0
    assert study.baseline is not None
    assert study.baseline.num_files == 2 * study.baseline.num_samples == 2 * study.dataset.num_samples
    assert study.settings.batch_sizes == (2, 8)
    assert study.settings.model == "srcnn915"
    assert study.threads == study.oversubscription == study.isolation == ()
    assert any("there is no accelerator" in note for note in study.notes)
    assert lines[0].startswith("baseline: writing") and "sweep: loads, turn 1/1, crop 16, batches of 2" in lines
    command = study.settings.command
    assert command.startswith(f"lmdbloader bench {pairs} --baseline auto --batch-sizes 8 2 --crops 16 --only sweep")


def test_stage_times_are_those_of_a_sample(pairs: Path) -> None:
    study = lmdbloader.lab.bench(pairs, batch_sizes=[8], crops=[None], only=["sweep"], model=None, **QUICK)
    (row,) = (row for row in study.sweep if row.source == "lmdbloader")
    assert row.stages is not None
    assert set(row.stages) == {"read", "verify", "decode", "transform", "function", "buffer"}
    assert 0 < sum(row.stages.values()) < 0.1
    assert row.training is None
    assert any("No model was trained" in note for note in study.notes)


def test_images_of_different_sizes_are_cropped_to_a_size_that_fits(whole: Path) -> None:
    study = survives(
        lmdbloader.lab.bench(whole, batch_sizes=[4, 8, 16], crops=[64, 200, None], only=["sweep"], model=None, **QUICK)
    )
    assert study.settings.crops == (64,)
    assert study.settings.batch_sizes == (4, 8)
    assert study.dataset.fields_read == ("image",)
    assert [f.name for f in study.dataset.fields] == ["image", "label", "name"]
    text = " ".join(study.notes)
    assert "Left out: crop 200: the smallest image has a side of 90 pixels." in text
    assert "Left out: whole images: the images differ in size" in text
    assert "Left out: batches of 16: the dataset has 9 samples." in text
    chosen = lmdbloader.lab.bench(whole, batch_sizes=[2], crops=[128, 200], only=["sweep"], **QUICK)
    assert chosen.settings.crops == (64,)
    assert "Chosen instead: crop 64." in chosen.notes
    # Single images train, too: from their half-size copies.
    assert all(row.training is not None for row in chosen.sweep)


def test_images_with_odd_sides_train(tmp_path: Path) -> None:
    lmdbloader.write(({"image": np.full((33, 47, 3), i, np.uint8)} for i in range(4)), tmp_path / "odd")
    study = lmdbloader.lab.bench(tmp_path / "odd", batch_sizes=[2], crops=[15, None], only=["sweep"], **QUICK)
    assert study.settings.crops == (15, None)
    assert all(row.training is not None and row.training.num_steps >= 2 for row in study.sweep)


def test_images_of_one_pixel_do_not(tmp_path: Path) -> None:
    lmdbloader.write(({"image": np.full((33, 47, 3), i, np.uint8)} for i in range(4)), tmp_path / "d")
    with pytest.raises(OptionError, match=r"1 pixel have no half .*--model none"):
        lmdbloader.lab.bench(tmp_path / "d", batch_sizes=[2], crops=[1], only=["sweep"], **QUICK)


def test_small_images_are_read_whole(tmp_path: Path) -> None:
    lmdbloader.write(({"image": np.full((10, 12, 3), i, np.uint8)} for i in range(4)), tmp_path / "small")
    study = lmdbloader.lab.bench(tmp_path / "small", batch_sizes=[2], only=["sweep"], model=None, **QUICK)
    assert study.settings.crops == (None,)
    assert "Left out: crop 16 and crop 64: the smallest image has a side of 10 pixels." in study.notes
    assert "Chosen instead: whole images." in study.notes


def test_a_crop_that_is_not_a_multiple_of_the_scale_is_left_out(pairs: Path) -> None:
    study = lmdbloader.lab.bench(pairs, batch_sizes=[2], crops=[15, 16], only=["threads"], **QUICK)
    assert study.settings.crops == (16,)
    assert "crop 15" in study.notes[1] and "multiple of the scale" in study.notes[1]


def test_a_dataset_without_images_is_loaded(tmp_path: Path) -> None:
    samples = ({"signal": np.arange(5, dtype=np.float32), "label": i} for i in range(6))
    lmdbloader.write(samples, tmp_path / "signals")
    study = survives(lmdbloader.lab.bench(tmp_path / "signals", batch_sizes=[2], only=["sweep"], **QUICK))
    assert study.settings.crops == (None,) and study.settings.model is None
    assert [row.source for row in study.sweep] == ["lmdbloader", "dataloader"]
    assert any("the dataset has no images" in note for note in study.notes)
    with pytest.raises(OptionError, match="has no image field to compare"):
        lmdbloader.lab.bench(tmp_path / "signals", baseline="auto", **QUICK)


def test_a_view_is_measured_as_it_is(pairs: Path) -> None:
    view = lmdbloader.LMDBDataset(pairs, fields=["hr"]).select(range(5))
    study = lmdbloader.lab.bench(view, batch_sizes=[4, 8], crops=[16], only=["threads"], **QUICK)
    assert study.dataset.num_samples == 5 and study.dataset.fields_read == ("hr",)
    assert study.settings.batch_sizes == (4,)
    with pytest.raises(OptionError, match="transforms of its own"):
        lmdbloader.lab.bench(view.scaled())


def test_threads_and_workers_are_counted_up(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.study.experiment.count_cores", lambda: 1)
    study = survives(
        lmdbloader.lab.bench(pairs, batch_sizes=[8, 48], crops=[16], only=["threads", "oversubscription"], **QUICK)
    )
    assert [row.num_threads for row in study.threads] == [1]
    assert {row.batch_size for row in study.threads} == {48}
    assert study.threads[0].turns == (study.threads[0].samples_per_s,)
    found = [(row.source, row.num_workers, row.per_core) for row in study.oversubscription]
    assert found == [(source, n, float(n)) for source in ("lmdbloader", "dataloader") for n in (1, 2, 3, 4)]
    for row in study.oversubscription:
        first = next(r for r in study.oversubscription if r.source == row.source)
        assert row.turns == (row.samples_per_s,)
        assert row.of_one_per_core == pytest.approx(row.samples_per_s / first.samples_per_s)


def test_processes_load_at_the_same_time(pairs: Path) -> None:
    lines: list[str] = []
    study = survives(
        lmdbloader.lab.bench(
            pairs, batch_sizes=[8], crops=[16], only=["isolation"], processes=[1, 2], progress=lines.append, **QUICK
        )
    )
    found = [(row.num_processes, row.source, row.batch_size) for row in study.isolation]
    assert found == [(n, source, 8) for n in (1, 2) for source in ("lmdbloader", "dataloader")]
    begun = [line.partition("; about")[0] for line in lines]
    assert "isolation: 1 process, batches of 8" in begun and "isolation: 2 processes, batches of 8" in begun
    for row in study.isolation:
        assert 0 < row.slowest <= row.fastest <= row.samples_per_s
        assert row.num_processes * row.slowest <= row.samples_per_s * 1.001 <= row.num_processes * row.fastest * 1.002
        assert row.workers_each >= 1
        assert row.turns == (pytest.approx(row.samples_per_s),)


def test_a_process_answers_every_command(pairs: Path, tmp_path: Path) -> None:
    files, _ = extract_files(lmdbloader.LMDBDataset(pairs), ["lr", "hr"], tmp_path / "files")
    material = BenchData(lmdbloader.LMDBDataset(pairs), files)
    here, there = Pipe()
    here.send(bytes(current_process().authkey))
    here.send(material)
    for source in material.sources:
        here.send((LoaderSetting(source, 8, 16, 1 if source == "lmdbloader" else 0), 0.001, 0.0))
        here.send(None)
    server = threading.Thread(target=serve, args=(there,))
    server.start()
    answers = [here.recv() for _ in range(2 * len(material.sources))]
    here.close()
    server.join(60)
    assert not server.is_alive()
    there.close()
    assert answers[::2] == [None] * len(material.sources)  # it is ready
    assert min(answers[1::2]) > 0


def test_the_first_load_of_a_process_does_not_count(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    monkeypatch.setattr(
        isolation_process,
        "take_turn",
        lambda feed, seconds, after_seconds=0.0: turns.append(after_seconds) or BatchTimes(8, 1.0, (1.0,), 0.0),
    )
    here, there = Pipe()
    setting = LoaderSetting("lmdbloader", 8, 16, 1)
    for message in (bytes(current_process().authkey), BenchData(lmdbloader.LMDBDataset(pairs), None)):
        here.send(message)
    for _ in range(2):
        here.send((setting, 0.001, 0.5))
        here.send(None)
    server = threading.Thread(target=serve, args=(there,))
    server.start()
    assert [here.recv() for _ in range(4)] == [None, 8.0, None, 8.0]
    here.close()
    server.join(60)
    there.close()
    assert turns == [0.0, 0.5, 0.5]


def test_processes_go_when_all_are_ready() -> None:
    told: list[str] = []

    class Recorder:
        def prepare(self, setting: LoaderSetting, seconds: float) -> None:
            told.append("prepare")

        def wait_until_ready(self) -> None:
            told.append("wait")

        def go(self) -> None:
            told.append("go")

        def result(self) -> float:
            told.append("result")
            return 2.0

    helpers: Any = [Recorder(), Recorder()]
    assert take_turns(helpers, LoaderSetting("lmdbloader", 8, 16, 1), 0.1) == [2.0, 2.0]
    assert told == [word for word in ("prepare", "wait", "go", "result") for _ in range(2)]


@pytest.mark.parametrize(("sums", "expected"), [([7], [7]), ([7, 1], [1, 7]), ([9, 1, 5], [5]), ([9, 1, 5, 3], [3, 5])])
def test_the_turn_in_the_middle_is_that_of_all_processes(sums: list[float], expected: list[float]) -> None:
    assert [sum(turn) for turn in middle_turns([[total - 1, 1] for total in sums])] == expected


def test_a_process_that_ends_is_an_error(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.study.isolation.PROGRAM", ("-c", "raise SystemExit('no room')"))
    with pytest.raises(WorkerError, match=r"ended with status 1 and said:\nno room"):
        lmdbloader.lab.bench(pairs, batch_sizes=[8], crops=[16], only=["isolation"], processes=[1], **QUICK)


# torch's handler of SIGCHLD raises wherever the main thread is, which may be in a destructor.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_is_an_error(pairs: Path) -> None:
    material = BenchData(lmdbloader.LMDBDataset(pairs), None)
    with (
        open_endless(material, LoaderSetting("dataloader", 2, 16, 1)) as feed,
        pytest.raises(WorkerError, match=r"^a worker process of torch's DataLoader has ended .*--num-workers"),
        feed.stream() as stream,
    ):
        next(stream)
        (worker,) = multiprocessing.active_children()
        worker.kill()
        for _ in stream:
            pass


def test_every_source_gives_the_same_batches(pairs: Path, tmp_path: Path) -> None:
    dataset = lmdbloader.LMDBDataset(pairs).select([3])
    from lmdbloader.conversion.extraction import extract

    extract(pairs, tmp_path / "files", samples=[3], image_format="png")
    material = BenchData(dataset, find_files(tmp_path / "files", ["lr", "hr"]))
    batches = []
    for source in material.sources:
        setting = LoaderSetting(source, 2, 96, 1 if source == "lmdbloader" else 0)
        with open_endless(material, setting) as feed, feed.stream() as stream:
            batches.append([next(stream) for _ in range(2)][1])
    for batch in batches:
        assert [(image.dtype, tuple(image.shape)) for image in batch] == [
            (torch.uint8, (2, 3, 48, 48)), (torch.uint8, (2, 3, 96, 96)),
        ]  # fmt: skip
        assert all(torch.equal(image, first) for image, first in zip(batch, batches[0], strict=True))


def test_with_a_gpu_memory_is_pinned_and_paged(pairs: Path) -> None:
    material = BenchData(lmdbloader.LMDBDataset(pairs), None)
    plan = BenchSetup(material, (8,), (16,), 0.01, 1, 1, 0, "cuda", 96, lambda line: None)
    found = [(s.source, s.is_pinned, s.num_workers) for s in settings_of(plan)]
    assert found == [("lmdbloader", True, 1), ("dataloader", True, 0), ("dataloader", False, 0)]


def test_loading_alone_ends_in_host_memory_for_every_source(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[LoaderSetting] = []
    trained: list[LoaderSetting] = []

    def turn(feed: EndlessLoader, seconds: float) -> BatchTimes:
        loaded.append(feed.setting)
        return BatchTimes(8, 1.0, (1.0,), 0.0)

    def training_turn(feed: EndlessLoader, *args: Any, **options: Any) -> TrainingTurn:
        trained.append(feed.setting)
        return TrainingTurn(8, np.ones((1, 5)), None)

    class StubLoader(EndlessLoader):
        def __init__(self, material: BenchData, setting: LoaderSetting) -> None:
            super().__init__(material, replace(setting, is_pinned=False))
            self.setting = setting

    monkeypatch.setattr("lmdbloader.lab.study.endless_loader.EndlessLoader", StubLoader)
    monkeypatch.setattr("lmdbloader.lab.study.sweeps.take_turn", turn)
    monkeypatch.setattr("lmdbloader.lab.study.sweeps.take_training_turn", training_turn)
    material: Any = BenchData(lmdbloader.LMDBDataset(pairs), None)
    trainer: Any = object()
    rows = sweep(BenchSetup(material, (8,), (16,), 0.01, 1, 1, 0, "cuda", 96, lambda line: None), trainer)
    assert {setting.device for setting in loaded} == {None}
    assert {setting.device for setting in trained} == {"cuda"}
    assert [row.is_pinned for row in rows] == [True, True, False]


def test_a_gpu_trains_for_a_second_before_it_is_watched(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0, "watched": 0.0}

    class Stub:
        device = torch.device("cuda")

        def step(self, batch: Any, timer: Any) -> None:
            clock["now"] += 0.3

    class Timer:
        def __init__(self, device: torch.device) -> None: ...
        def start(self) -> None: ...
        def lap(self, phase: str) -> None: ...
        def rows(self) -> Any:
            return np.ones((4, 5))

    @contextmanager
    def sampled(device: torch.device) -> Iterator[list[Any]]:
        clock["watched"] = clock["now"]
        yield []

    monkeypatch.setattr("lmdbloader.lab.study.training.StepTimer", Timer)
    monkeypatch.setattr("lmdbloader.lab.study.training.sampled", sampled)
    monkeypatch.setattr("lmdbloader.base.stopwatch.time", SimpleNamespace(perf_counter=lambda: clock["now"]))
    trainer: Any = Stub()
    with open_endless(BenchData(lmdbloader.LMDBDataset(pairs), None), LoaderSetting("lmdbloader", 8, 16, 1)) as feed:
        turn = take_training_turn(feed, trainer, 0.1, warm_up=False)
    assert clock["watched"] >= 1
    assert turn.num_samples == 8 * 4  # steps before do not count


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_sizes": [0]}, "expected sizes of at least 1"),
        ({"batch_sizes": []}, "expected sizes of at least 1"),
        ({"batch_sizes": [1000]}, "fewer than the smallest batch size, 1000"),
        ({"crops": [0]}, "expected sizes of at least 1, or None"),
        ({"only": ["tape"]}, "only='tape': expected some of sweep, threads"),
        ({"only": []}, "expected at least one of each"),
        ({"seconds": 0}, "expected more than 0 seconds"),
        ({"seconds": float("nan")}, "expected more than 0 seconds"),
        ({"repeats": 0}, "at least 1 turn"),
        ({"processes": [0]}, "at least 1 process"),
        ({"num_workers": -1}, "at least 0 workers"),
        ({"model": "vgg"}, "model='vgg': expected one of srcnn915"),
        ({"device": "tape"}, "device='tape': expected 'cpu'"),
        ({"device": "cuda:77"}, "device='cuda:77': torch sees"),
        ({"baseline": "no such folder"}, "there is no such folder"),
    ],
)
def test_options_out_of_range_are_refused(pairs: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        lmdbloader.lab.bench(pairs, **options)
    assert expected in str(caught.value)


def test_batches_that_memory_does_not_hold_are_left_out(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmdbloader.lab.study import setup

    free = {"nbytes": 0}
    machine = type("M", (), {"memory": property(lambda self: type("F", (), {"free_nbytes": free["nbytes"]}))})
    monkeypatch.setattr(setup, "describe", machine)
    dataset = lmdbloader.LMDBDataset(pairs)
    notes: list[str] = []
    free["nbytes"] = 4 * 8 * 3 * (96**2 + 48**2) * 7
    assert setup.choose_batch_sizes(dataset, [4, 8, 16], [None], 1, notes) == (4, 8)
    assert notes == ["Left out: batches of 16: the free memory does not hold enough of them."]
    free["nbytes"] = 1
    with pytest.raises(OptionError, match="does not hold enough batches of 4 samples"):
        setup.choose_batch_sizes(dataset, [4], [None], 1, notes)


def test_an_empty_dataset_is_refused(pairs: Path) -> None:
    with pytest.raises(OptionError, match="has no samples"):
        lmdbloader.lab.bench(lmdbloader.LMDBDataset(pairs).select([]))


def test_the_reason_why_a_gpu_was_not_watched_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.study.training.find_spec", lambda name: None)
    assert "install lmdbloader[gpu]" in why_unknown()
    monkeypatch.setattr("lmdbloader.lab.study.training.find_spec", lambda name: object())
    assert why_unknown().startswith("nvidia-ml-py is installed, but NVML")
