"""The worked examples of "Feeding the beast" come out as its formulas say, and plans scale as the arithmetic does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.cli import main
from lmdbloader.errors import OptionError
from lmdbloader.lab.planning import PRESETS, STORAGE, Plan, plan

KIB, MIB, GIB = 2**10, 2**20, 2**30


def reads(found: Plan) -> dict[str, int]:
    return {way.name: round(way.reads_per_s) for way in found.most.reads}


# What "Feeding the beast" works out, in the order of its text.


def test_resnet_50_on_a_v100() -> None:
    found = plan(preset="resnet50-v100")
    preset = found.preset
    assert preset is not None and found.flops_samples_per_s == 1750
    assert round(found.step_seconds, 4) == 0.0879 and int(1000 * found.step_seconds) == 87
    assert round(found.most.samples_per_s) == 1457
    assert found.fit is not None
    assert round(found.fit.batch_nbytes / GIB, 2) == 12.97
    assert found.fit.fits and found.fit.largest_power == 128
    assert "1,750 samples a second by its FLOPS, 1,457 published" in str(found)
    # Of another model nothing was published.
    other = str(plan(preset="resnet50-v100", example_flops="1G", device_flops="7T"))
    assert "7,000 samples a second by its FLOPS\n" in other
    assert "12.97 GiB fits in 16.00 GiB" in str(found)
    assert any("single precision" in note for note in preset.notes)


def test_imagenet_on_four_v100() -> None:
    given = plan(batch_size=128, step_seconds=0.087, example_size="64KiB", gpus=4, dataset_size="150GB")
    for found in (given, plan(preset="imagenet-4xv100")):
        assert found.most.samples_per_step == 512
        assert round(found.most.samples_per_s) == 5885
        assert round(found.most.nbytes_per_s / 1e6, 1) == 385.7
        assert int(found.most.nbytes_per_s / MIB) == 367
        assert found.serving["spinning disk"]["sample"] == (45, 45)
        assert found.serving["SATA SSD"]["sample"] == (1, 1)  # "fit a modern SSD"
        assert reads(found) == {"sample": 5885, "record": 1471, "block": 184}
        assert "386 MB/s (368 MiB/s)" in str(found)
    assert "are MiB/s" in str(plan(preset="imagenet-4xv100"))


def test_a_team_on_nfs_needs_half_of_the_published_rate() -> None:
    given = plan(batch_size=64, step_seconds=2, example_size="500K", gpus=4, experiments=(5, 10))
    for found in (given, plan(preset="team-on-nfs")):
        assert (found.fewest.samples_per_s, found.most.samples_per_s) == (640, 1280)
        assert (found.fewest.nbytes_per_s, found.most.nbytes_per_s) == (0.32e9, 0.64e9)
        assert "640 to 1,280 a second" in str(found) and "320 MB/s to 640 MB/s" in str(found)
        # "Possible with NFS storage offerings, e.g. GCP Filestore or AWS EFS."
        for storage in ("NFS, Filestore basic SSD", "NFS, AWS EFS elastic"):
            assert found.serving[storage]["sample"] == (1, 1)
        assert "a decent NFS serves" in str(found)
    words = " ".join(str(plan(preset="team-on-nfs")).split())
    assert "600 MB/s to 1.28 GB/s" in words and "0.32 to 0.64 GB/s. The formula is right." in words


def test_small_files_are_an_expensive_problem() -> None:
    given = plan(batch_size=256, step_seconds=0.2, example_size="64KiB", gpus=4, experiments=(5, 10))
    for found in (given, plan(preset="small-files")):
        assert (round(found.fewest.samples_per_s), round(found.most.samples_per_s)) == (25_600, 51_200)
        assert (round(found.fewest.nbytes_per_s / MIB), round(found.most.nbytes_per_s / MIB)) == (1600, 3200)
        assert "expensive on shared storage" in str(found) and "weaker GPUs" in str(found)
        # Larger reads are the way out.
        assert reads(found)["block"] == 1600


def test_a_fifth_of_the_data_on_local_disks() -> None:
    found = plan(preset="small-files", cache_fraction=0.2)
    text = str(found)
    assert "20,480 to 40,960" in text and "1.25 times faster" in " ".join(text.split())
    assert "the shared storage serves 40,960 reads a second and 2.68 GB/s" in " ".join(text.split())
    assert "Infinity" not in json.dumps(plan(preset="small-files", cache_fraction=1).as_json())


def test_local_disks_are_the_friend_of_one_researcher() -> None:
    found = plan(batch_size=16, step_seconds=0.03, example_size="40K", dataset_size="30GB")
    assert "1 SATA SSD in the machine can serve it" in str(found) and "lmdbloader stage" in str(found)


# What follows from the arithmetic.


@given(memory=st.integers(1, 10**12), example=st.integers(1, 10**9), model=st.integers(1, 10**11))
def test_the_largest_batch_is_the_largest(memory: int, example: int, model: int) -> None:
    options: dict[str, Any] = {"gpu_memory": memory, "example_memory": example, "model_memory": model}
    found = plan(batch_size=1, step_seconds=1, **options).fit
    assert found is not None
    assert (found.largest + 1) * example + model > memory
    if found.largest:
        assert found.largest * example + model <= memory
        assert found.largest_power <= found.largest < 2 * found.largest_power
        largest = plan(batch_size=found.largest, step_seconds=1, **options).fit
        assert largest is not None and largest.fits
    more = plan(batch_size=found.largest + 1, step_seconds=1, **options).fit
    assert more is not None and not more.fits


@pytest.mark.parametrize(
    ("storage", "read_nbytes", "reads_per_s"),
    [
        ("spinning disk", 4096, 131),
        ("spinning disk", 64 * KIB, 131),
        ("spinning disk", 64 * KIB + 130_000_000, 1 / (1 / 131 + 1)),
        ("SATA SSD", 4096, 98_000),
        ("SATA SSD", 560_000, 1000),
        ("NFS, Filestore basic HDD", 180 * MIB, 1),
    ],
)
def test_reads_a_second_of_one_device(storage: str, read_nbytes: int, reads_per_s: float) -> None:
    kind = next(kind for kind in STORAGE if kind.name == storage)
    assert kind.reads_of(read_nbytes) == pytest.approx(reads_per_s)


def test_one_machine_gets_only_so_much_of_a_network_file_system() -> None:
    text = str(plan(batch_size=256, step_seconds=0.1, example_size="1MiB", gpus=8))
    assert "NFS, AWS EFS elastic gives one machine at most 1.57 GB/s" in " ".join(text.split())
    assert "--codec delta" in text and "--codec delta" not in str(plan(batch_size=8, step_seconds=0.1))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_names_its_source_and_makes_a_plan(name: str) -> None:
    found = plan(preset=name)
    assert PRESETS[name].source and PRESETS[name].name == name
    if PRESETS[name].images_per_s is not None:
        assert found.most.samples_per_s == pytest.approx(PRESETS[name].images_per_s)
    stated = found.as_json()
    assert stated["preset"]["source"] == PRESETS[name].source
    assert set(stated["sources"]) == {kind.name for kind in STORAGE}
    assert all(kind.source for kind in STORAGE)
    assert " ".join(PRESETS[name].source.split()) in " ".join(str(found).split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": None, "step_seconds": None}, "batch_size and step_seconds"),
        ({"step_seconds": None}, "step_seconds"),
        *(({"batch_size": value}, "batch_size=") for value in (0, 1.5, True)),
        *(({"step_seconds": value}, "step_seconds=") for value in (0, float("nan"), float("inf"), "fast")),
        ({"gpus": 0}, "gpus=0"),
        *(({"experiments": value}, "experiments=") for value in (0, (10, 5), (1, 2, 3))),
        ({"example_size": "big"}, "example_size='big'"),
        ({"dataset_size": "64"}, "dataset_size='64'"),
        *(({"cache_fraction": value}, "cache_fraction=") for value in (1.5, -0.1, True)),
        ({"gpu_memory": "16GB"}, "gpu_memory and example_memory"),
        ({"model_memory": "16GB"}, "gpu_memory and example_memory"),
        ({"preset": "resnet51"}, "preset='resnet51'"),
        ({"preset": "team-on-nfs", "batch_size": 7, "step_seconds": None}, "step_seconds"),
        ({"step_seconds": None, "example_flops": "4G"}, "device_flops"),
        ({"step_seconds": None, "device_flops": "4G"}, "example_flops"),
        ({"step_seconds": None, "device_flops": "4G", "preset": "small-data"}, "example_flops"),
        ({"example_flops": "4G", "device_flops": "7T"}, "step_seconds=1"),
        *(
            ({"step_seconds": None, "example_flops": value, "device_flops": "7T"}, "example_flops=")
            for value in ("many", 0, float("inf"), True)
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=re.escape(named)):
        plan(**{"batch_size": 8, "step_seconds": 1, **options})


# From floating-point operations, for what no preset covers.


def test_the_time_of_a_step_follows_from_flops() -> None:
    memory: dict[str, Any] = {"gpu_memory": "16GiB", "example_memory": "103MiB", "model_memory": "98MiB"}
    theory = plan(batch_size=128, example_flops=4e9, device_flops=7e12, **memory)
    assert theory.most.samples_per_s == pytest.approx(1750)
    assert theory.step_seconds == pytest.approx(128 / 1750)
    assert theory.fit is not None and round(theory.fit.batch_nbytes / GIB, 2) == 12.97
    assert "1,750 samples a second by its FLOPS" in str(theory)
    published = plan(batch_size=128, example_flops="4 GFLOPs", device_flops=7e12 * 1457 / 1750)
    assert round(published.most.samples_per_s) == 1457 and round(published.step_seconds, 4) == 0.0879
    assert plan(preset="resnet50-v100").step_seconds == pytest.approx(published.step_seconds)
    # ResNet-152: half the batch, twice the work.
    double = plan(batch_size=64, example_flops="8G", device_flops="7T")
    assert double.most.samples_per_s == pytest.approx(875)
    assert double.step_seconds == pytest.approx(theory.step_seconds)


# The command.

Capture = pytest.CaptureFixture[str]


def test_every_option_arrives_and_json_is_alone(capsys: Capture) -> None:
    words = ["--preset", "resnet50-v100", "--experiments", "2-3", "--dataset-size", "1TB", "--cache-fraction", "25%"]
    memory = ["--gpu-memory", "32GiB", "--example-memory", "200MiB", "--model-memory", "1GiB"]
    flops = ["--example-flops", "4G", "--device-flops", "5.828 TFLOPS", "--gpus", "2"]
    assert main(["plan", *words, *memory, *flops, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert (found["fewest"]["experiments"], found["most"]["experiments"], found["gpus"]) == (2, 3, 2)
    assert (found["cache_fraction"], found["dataset_nbytes"]) == (0.25, 10**12)
    assert found["fit"]["largest"] == 31 * 1024 // 200 and round(found["step_seconds"], 4) == 0.0879
    assert found["sentences"] and found["sources"]["spinning disk"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--batch-size and --step-seconds"),
        (["--batch-size", "8"], "--step-seconds: not given"),
        (["--batch-size", "many", "--step-seconds", "1"], "--batch-size"),
        (["--batch-size", "8", "--step-seconds", "1", "--experiments", "5-"], "--experiments"),
        (["--batch-size", "8", "--step-seconds", "1", "--example-size", "64 apples"], "--example-size 64 apples: "),
        (["--batch-size", "8", "--example-flops", "4G"], "--device-flops: not given"),
    ],
)
def test_wrong_usage(words: list[str], named: str, capsys: Capture) -> None:
    try:
        status: Any = main(["plan", *words])
    except SystemExit as stopped:
        status = stopped.code
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "" and named in captured.err
