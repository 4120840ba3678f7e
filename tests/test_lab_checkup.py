"""Every planted problem is named, with a remedy; a healthy machine has none; a pass names what is slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machines import GIB, healthy

import lmdbloader
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.lab.checkup import Checkup, DatasetFacts, dataset_facts, doctor, examine
from lmdbloader.lab.checkup.rehearsal import judge_pass
from lmdbloader.lab.machine import Device, FileSystem, Machine, filesystem_of

MIB = 2**20
H100 = Device("NVIDIA H100", 80 * GIB)
LOCAL = FileSystem("/data", "ext4", "local", "/dev/nvme0n1", "nvme")
NFS = FileSystem("/data", "nfs4", "network", "server:/data", None)
DISK = replace(LOCAL, device="spinning disk")
OVERLAY = FileSystem("/", "overlay", "overlay", "overlay", None)
TMPFS = FileSystem("/dev/shm", "tmpfs", "memory", "tmpfs", None)
UNKNOWN = FileSystem("/x", "fuse.mystery", "unknown", "?", None)
DATASET = DatasetFacts("/data/a.lmdb", 100_000, 5 * GIB, 50_000.0, {"lz4": 0.7, "raw": 0.3}, 96, LOCAL, 0.5)
LARGE = replace(DATASET, data_nbytes=500 * GIB, residency=0.1)

Change = Callable[[Machine], Machine]


def processor(torch: int = 8, **changes: Any) -> Change:
    """Limit cores; `torch` starts that many threads, which in a control group of fewer cores is a fault of its own."""
    return lambda m: pools(torch=torch)(replace(m, processor=replace(m.processor, **changes)))


def memory(**changes: Any) -> Change:
    return lambda m: replace(m, memory=replace(m.memory, **changes))


def libraries(**changes: Any) -> Change:
    return lambda m: replace(m, libraries=replace(m.libraries, **changes))


def pools(**changes: Any) -> Change:
    return lambda m: replace(m, thread_pools=replace(m.thread_pools, **changes))


def gpus(count: int, **changes: Any) -> Change:
    return lambda m: replace(libraries(**changes)(m), devices=(H100,) * count)


def verdicts(found: Checkup) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in found.findings if finding.verdict != "good"}


SEEN = {"torch": "2.8.0+cu128", "torch_cuda": "12.8", "sees_accelerator": True}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m,
        gpus(2, **SEEN),
        # A package from PyPI is a build with CUDA, even without a GPU.
        libraries(torch="2.8.0+cu128", torch_cuda="12.8"),
        pools(torch=4, environment={"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "8"}),
        pools(environment={"OMP_NUM_THREADS": "nonsense", "MKL_NUM_THREADS": ""}),
        processor(quota=64),
        memory(limit_nbytes=32 * GIB, limit_left_nbytes=20 * GIB),
        pools(opencv=1),
    ],
)
def test_a_healthy_machine_has_nothing_to_complain_about(change: Change) -> None:
    for dataset in (None, DATASET, replace(DATASET, residency=None), replace(DATASET, codecs={}, image_side=None)):
        found = examine(change(healthy()), dataset)
        assert verdicts(found) == {} and found.is_healthy
        assert not any(finding.remedy for finding in found.findings)
        assert "No problem found." in str(found)


@pytest.mark.parametrize(
    ("change", "name", "verdict", "words"),
    [
        (processor(1, num_allowed=1), "cores", "problem", ["1 of 8", "affinity of 1", "--cpus-per-task"]),
        (processor(1, quota=1), "cores", "problem", ["1 of 8", "control group that grants 1", "--cpus of Docker"]),
        (processor(4, quota=4), "cores", "note", ["4 of 8", "control group that grants 4"]),
        (processor(1, num_online=1, num_allowed=1), "cores", "note", ["one core"]),
        (gpus(8, **SEEN), "cores", "problem", ["8, for 8 GPUs", "Fewer than 2 for each GPU"]),
        (pools(torch=64), "threads", "problem", ["torch starts 64 threads on 8 cores", "OMP_NUM_THREADS=8"]),
        (pools(opencv=64), "threads", "problem", ["OpenCV starts 64", "cv2.setNumThreads(8)"]),
        (pools(opencv=4), "threads", "note", ["OpenCV 4", "cv2.setNumThreads(0)"]),
        (pools(environment={"MKL_NUM_THREADS": "32"}), "threads", "problem",
         ["MKL_NUM_THREADS=32", "Set MKL_NUM_THREADS=8"]),
        (pools(environment={"OMP_NUM_THREADS": "16,2"}), "threads", "problem", ["OMP_NUM_THREADS=16,2 on 8 cores"]),
        (pools(torch=16, environment={"OMP_NUM_THREADS": "16"}), "threads", "problem", ["torch starts 16 threads"]),
        (memory(available_nbytes=GIB // 2), "memory", "problem", ["512 MiB free of 64 GiB", "--mem of Slurm"]),
        (memory(available_nbytes=4 * GIB), "memory", "note", ["4 GiB free of 64 GiB"]),
        (memory(limit_nbytes=4 * GIB, limit_left_nbytes=100 * MIB), "memory", "problem",
         ["100 MiB free of 4 GiB", "control group on a machine with 64 GiB"]),
        (memory(total_nbytes=0, available_nbytes=0), "memory", "note", ["unknown"]),
        (memory(shm_nbytes=64 * MIB, shm_free_nbytes=64 * MIB), "/dev/shm", "note", ["64 MiB free", "--shm-size"]),
        (memory(shm_free_nbytes=4096), "/dev/shm", "problem", ["4 KiB free of 32 GiB", "Remove what fills it"]),
        (memory(shm_nbytes=None, shm_free_nbytes=None), "/dev/shm", "note", ["none"]),
        (libraries(pillow="Pillow", pillow_version="12.0.0"), "Pillow", "note", ["Pillow 12.0.0", "pillow-simd"]),
        (libraries(libjpeg_turbo=None), "libjpeg-turbo", "note", ["another libjpeg", "wheel"]),
        (libraries(simplejpeg=None), "libjpeg-turbo", "note", ["pip install simplejpeg"]),
        (libraries(simplejpeg=None, libjpeg_turbo=None), "libjpeg-turbo", "problem", ["several times slower"]),
        (gpus(1), "GPU", "problem", ["NVIDIA H100", "2.8.0+cpu is built without GPU support", "pytorch.org"]),
        (gpus(2, torch="2.8.0", torch_cuda="12.8"), "GPU", "problem", ["2 x NVIDIA H100", "does not see it", "driver"]),
        (gpus(1, torch="2.8.0", torch_cuda="12.8", visible_devices=""), "GPU", "problem", ["CUDA_VISIBLE_DEVICES=''"]),
        (gpus(1, torch="2.8.0", torch_cuda="ROCm 6.2"), "GPU", "problem", ["for ROCm 6.2 does not see it"]),
    ],
)  # fmt: skip
def test_each_planted_fault_of_a_machine_is_named(change: Change, name: str, verdict: str, words: list[str]) -> None:
    found = examine(change(healthy()))
    assert verdicts(found) == {name: verdict}
    finding = found.finding(name)
    for word in words:
        assert word in f"{finding.value} {finding.remedy}"
    assert found.is_healthy == (verdict != "problem")
    text = " ".join(str(found).split())
    if verdict == "problem":
        assert f"PROBLEM {name} " in text and f"1 problem found. The first is {name}: {finding.value}" in text
        assert finding.remedy
    else:
        assert "No problem found. 1 note above" in text


@pytest.mark.parametrize(
    ("dataset", "expected", "words"),
    [
        (replace(DATASET, filesystem=NFS, residency=0.99), {"file system": "note"},
         ["nfs4 over the network", "from server:/data", "first epoch", "lmdbloader stage"]),
        (replace(DATASET, filesystem=NFS, residency=0.1), {"file system": "note", "page cache": "note"},
         ["10% of it", "cat "]),
        (replace(DATASET, path="/my data/a", filesystem=NFS, residency=0.1),
         {"file system": "note", "page cache": "note"}, ["cat '/my data/a'/*.mdb >"]),
        (replace(LARGE, filesystem=NFS), {"file system": "problem", "page cache": "note", "order": "note"},
         ["Every epoch comes over the network", 'io="pread"', "quasi_random", "recode /data/a.lmdb OUT --codec delta"]),
        (replace(DATASET, filesystem=TMPFS), {"file system": "note"}, ["tmpfs in memory", "takes 5 GiB of memory"]),
        (replace(DATASET, filesystem=OVERLAY), {"file system": "note"}, ["overlay", "container"]),
        (replace(DATASET, filesystem=DISK, residency=1.0), {"file system": "note"}, ["spinning disk", "sequential"]),
        (replace(LARGE, filesystem=DISK), {"file system": "problem", "page cache": "note", "order": "note"},
         ["130 random reads a second", "quasi_random"]),
        (replace(DATASET, filesystem=UNKNOWN), {"file system": "note"}, ["fuse.mystery"]),
        (LARGE, {"page cache": "note", "order": "note"},
         ["500 GiB, more than the 50 GiB of free memory", "order='quasi_random'", "reads each sample separately",
          "would not: --max-resolution, --codec delta, JPEG."]),
        (replace(LARGE, data_nbytes=60 * GIB), {"page cache": "note", "order": "note"},
         ["`lmdbloader recode /data/a.lmdb OUT --codec delta` loses nothing, and about halves"]),
        (replace(LARGE, data_nbytes=60 * GIB, codecs={"delta": 1.0}), {"page cache": "note", "order": "note"},
         ["would not: --max-resolution, JPEG."]),
        (replace(LARGE, codecs={"jpeg": 1.0}), {"page cache": "note", "order": "note"},
         ["would not: --max-resolution, JPEG."]),
        (replace(DATASET, codecs={"file": 0.9, "jpeg": 0.1}, image_side=2040), {"stored as": "note"},
         ["images of 2040 pixels", "--max-resolution"]),
    ],
)  # fmt: skip
def test_each_planted_fault_of_a_dataset_is_named(
    dataset: DatasetFacts, expected: dict[str, str], words: list[str]
) -> None:
    found = examine(healthy(), dataset)
    assert verdicts(found) == expected
    text = " ".join(str(found).split())
    for word in words:
        assert word in text
    assert all(finding.remedy for finding in found.findings if finding.verdict != "good")
    assert found.is_healthy == ("problem" not in expected.values())


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkup") / "pairs.lmdb"
    lmdbloader.convert(photos, path, patch_size=96, scale=2, workers=1)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import skimage.data
    from PIL import Image

    folder = tmp_path_factory.mktemp("checkup whole")
    (folder / "photos").mkdir()
    for number, name in enumerate(("astronaut", "coffee", "cat")):
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        photograph.save(folder / "photos" / f"{number}.jpg")
    lmdbloader.convert(folder / "photos", folder / "whole.lmdb", workers=1)
    return folder / "whole.lmdb"


def test_facts_of_a_real_dataset(pairs: Path, whole: Path) -> None:
    found = dataset_facts(pairs)
    assert found.num_samples == 48 and found.image_side == 96
    assert found.data_nbytes == sum((pairs / name).stat().st_size for name in ("data.mdb", "index.arrow"))
    assert sum(found.codecs.values()) == pytest.approx(1) and set(found.codecs) <= {"raw", "lz4"}
    assert 1000 < found.sample_nbytes < (96 * 96 + 48 * 48) * 3 + 1
    assert found.filesystem == filesystem_of(pairs)
    assert found.residency is None or found.residency > 0.9  # just written
    other = dataset_facts(whole)
    assert other.codecs and set(other.codecs) <= {"file", "jpeg"}


def test_a_path_that_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        doctor(tmp_path)
    with pytest.raises(FileNotFoundError):
        doctor(tmp_path / "absent")


def test_the_report_and_its_json_say_the_same(pairs: Path) -> None:
    found = doctor(pairs)
    stated = json.loads(json.dumps(found.as_json()))
    assert stated["is_healthy"] == found.is_healthy and stated["summary"] == found.summary()
    assert [finding["name"] for finding in stated["findings"]] == [finding.name for finding in found.findings]
    assert stated["dataset"]["num_samples"] == 48 and stated["machine"]["python"]
    assert stated["profile"] is None
    lines = str(found).splitlines()
    assert max(len(line) for line in lines if str(pairs.parent) not in line) <= 100
    with pytest.raises(KeyError, match=r"no finding 'luck'; there are cores"):
        found.finding("luck")


@pytest.mark.parametrize(
    "options",
    [
        {"path": "x", "batch_size": 8},
        {"path": "x", "step_seconds": 1.0},
        {"batch_size": 8, "step_seconds": 1.0},
        {"crop": 8},
        {"path": "x", "crop": 8},
        {"loader": []},
        {"loader": [], "step_seconds": 1.0, "crop": 8},
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="needs a dataset, batch_size and step_seconds"):
        doctor(**options)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.checkup.rehearsal._SECONDS", 0.6)


@pytest.mark.usefixtures("short")
def test_a_pass_through_a_loader(pairs: Path) -> None:
    found = doctor(pairs, batch_size=8, step_seconds=0.02)
    profile = found.profile
    assert profile is not None and profile.num_steps >= 12
    assert (found.finding("feeding").verdict == "good") == profile.is_healthy
    assert "steps of 20 ms" in found.finding("feeding").value
    assert found.finding("memory growth").verdict == "good"
    assert str(profile) in str(found)
    assert json.loads(json.dumps(found.as_json()))["profile"]["bottleneck"] == profile.bottleneck


@pytest.mark.usefixtures("short")
def test_a_slow_python_function_is_named(pairs: Path) -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.03)
        return batch

    with closing(
        lmdbloader.Loader(lmdbloader.LMDBDataset(pairs), 8, shuffle=True, transforms=[slow], num_threads=1)
    ) as loader:
        found = doctor(pairs, loader=loader, step_seconds=0.002)
    feeding = found.finding("feeding")
    assert feeding.verdict == "problem" and "what holds them up is function" in feeding.value
    assert feeding.remedy and not found.is_healthy
    assert ("steps of 2 ms" in feeding.value and "1 problem" in found.summary()) or len(found.problems) > 1


@pytest.mark.usefixtures("short")
def test_images_of_many_sizes_want_a_crop(whole: Path) -> None:
    with pytest.raises(OptionError, match="need a crop"):
        doctor(whole, batch_size=2, step_seconds=0.01)
    with pytest.raises(OptionError, match=r"batch_size=0.*whole number from 1"):
        doctor(whole, batch_size=0, step_seconds=0.01)
    found = doctor(whole, batch_size=2, step_seconds=0.05, crop=64)
    assert found.profile is not None


def profile_of(bottleneck: str) -> Any:
    return SimpleNamespace(
        is_healthy=bottleneck == "model", stall=0.5, step_seconds=0.02, bottleneck=bottleneck, advice="Change it.",
        num_steps=100,
    )  # fmt: skip


def growth(used: list[int], free: int = 8 * GIB) -> str:
    return judge_pass(profile_of("model"), used, 0.01, free)[1].verdict


def test_memory_that_grows_with_each_step_is_a_problem() -> None:
    leaking = [GIB + step * MIB for step in range(100)]
    assert growth(leaking) == "problem"
    finding = judge_pass(profile_of("model"), leaking, 0.01, 8 * GIB)[1]
    assert "1 MiB more with each step" in finding.value and finding.remedy
    # Buffers that are made once, in the first half; noise; a little in a lot; too few to judge; no figures.
    assert growth([GIB + min(step, 40) * MIB for step in range(100)]) == "good"
    assert growth([GIB + (step % 7) * MIB for step in range(100)]) == "good"
    assert growth([GIB + step * MIB for step in range(100)], free=800 * GIB) == "good"
    assert growth([GIB + (60 if step > 60 else 0) * MIB for step in range(100)]) == "good"
    assert growth([GIB, 2 * GIB]) == growth([0] * 100) == growth([]) == "good"
