"""What went wrong once with keep="memory", and with the advice to keep images or to use the device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from skimage import data as photographs

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.base import system
from lmdbloader.kernels import entries
from lmdbloader.lab.profiling.bottleneck import LoadingCost, _device_side
from lmdbloader.lab.profiling.loader_facts import facts_of
from tests.faults.late_cuda import late_cuda

RESIZES = [T.RandomResizedCrop(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("jpegs") / "src"
    place.mkdir()
    photo = photographs.astronaut()
    for k in range(40):
        Image.fromarray(photo[4 * k : 4 * k + 96, :96]).save(place / f"{k:02}.jpg", quality=90, subsampling=0)
    return place


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v")
def test_a_limit_of_the_address_space_is_no_error(folder: Path) -> None:
    script = (
        "import resource, torch\n"
        "from lmdbloader import Loader, transforms as T\n"
        "from lmdbloader.base import system\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "system.free_memory = lambda: 2**33\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))\n"
        f"loader = Loader({str(folder)!r}, 8, transforms=[T.RandomResizedCrop(20)], shuffle=True, keep='memory')\n"
        "print(len(list(loader)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ})
    assert done.stdout.strip() == "5", done.stderr[-300:]


def test_nothing_is_decoded_in_vain_when_the_budget_is_used_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other images of the call in which it ends are decoded twice, up to 256 for each thread."""
    calls: list[int] = []
    entry = entries.keep_jpeg
    monkeypatch.setattr(entries, "keep_jpeg", lambda *given: calls.append(given[-1]) or entry(*given))
    monkeypatch.setattr(system, "free_memory", lambda: 200_000)
    list(Loader(folder, 40, transforms=RESIZES, shuffle=True, keep="memory", num_threads=1))
    assert calls.count(0) <= sum(map(bool, calls)) + 1, (calls.count(0), sum(map(bool, calls)))


def cost(stage: Any) -> LoadingCost:
    parts = dict.fromkeys(("storage", "verify", "decode", "transform", "function"), 0.0) | {stage: 1.0}
    return LoadingCost(1.0, 0.1, parts, 0.0, 0.0, True)  # type: ignore[arg-type]


def same(sample: Any) -> Any:
    return sample


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "resized JPEGs": (RESIZES, {}),
    "JPEGs in views": (T.Views(RESIZES, [T.RandomCrop(16)]), {}),
    "elastic": ([T.RandomHorizontalFlip(), T.ElasticTransform()], {}),
    "policy": ([T.RandomHorizontalFlip(), T.RandAugment()], {}),
    "buckets": ([], {"buckets": "size"}),
    "own transform": ([T.RandomCrop(16)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_can_be_done(folder: Path, tmp_path: Path, name: str) -> None:
    transforms, options = CASES[name]
    lmdbloader.convert(folder, tmp_path / "d", workers=1, write_mode="original")
    source = LMDBDataset(tmp_path / "d", transform=same if name == "own transform" else None)
    options = {"shuffle": True, "transforms": transforms, "device": "cuda", **options}
    refused = []
    with late_cuda():
        facts = facts_of(Loader(source, 4, **options))
        for stage in ("decode", "transform", "storage"):
            for text, _, _ in _device_side(stage, cost(stage), facts, "cuda"):
                change = next(c for c in ("keep='device'", "on='device'", "keep='memory'") if c in text)
                try:
                    Loader(source, 4, **options, **{change.split("=")[0]: change.split("'")[1]})
                except lmdbloader.errors.OptionError as error:
                    refused.append((stage, change, str(error)[:80]))
    assert not refused


def test_on_device_is_not_advised_where_nothing_would_move_there(folder: Path, tmp_path: Path) -> None:
    """The whole stage "transform" is said to go, and the processor goes on doing all of it."""
    lmdbloader.convert(folder, tmp_path / "d", workers=1, write_mode="original")
    with late_cuda():
        loader = Loader(tmp_path / "d", 4, shuffle=True, transforms=RESIZES, device="cuda")
        there = Loader(tmp_path / "d", 4, shuffle=True, transforms=RESIZES, device="cuda", on="device")
        assert not there._batcher.pipeline.changes_pixels
        texts = [text for text, _, _ in _device_side("transform", cost("transform"), facts_of(loader), "cuda")]
    assert not [text for text in texts if "on='device'" in text]


def test_keep_memory_is_not_advised_where_it_does_not_fit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planes of 4:4:4 JPEGs take 1.4 times the pixels; and ranks share the memory, but each reads every image."""
    from lmdbloader.lab.profiling import loader_facts

    lmdbloader.convert(folder, tmp_path / "d", workers=1, write_mode="original")
    raw = 40 * 96 * 96 * 3
    wrong = []
    for free, ranks in ((int(2.2 * raw), "1"), (6 * raw, "4")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        monkeypatch.setattr(system, "free_memory", lambda free=free: free)
        memory = loader_facts.describe_memory()
        monkeypatch.setattr(loader_facts, "describe_memory", lambda m=memory, f=free: _with_free(m, f))
        loader = Loader(tmp_path / "d", 8, transforms=RESIZES, shuffle=True)
        found = _device_side("decode", cost("decode"), facts_of(loader), "cpu")
        advised = any("keep='memory'" in text for text, _, _ in found)
        kept = Loader(tmp_path / "d", 8, transforms=RESIZES, shuffle=True, keep="memory", num_threads=1)
        list(kept)
        if advised and kept._kept._is_full:  # type: ignore[union-attr]
            wrong.append((free / raw, ranks, kept._kept._num_kept))  # type: ignore[union-attr]
    assert not wrong


def _with_free(memory: Any, free: int) -> Any:
    from dataclasses import replace

    return replace(memory, available_nbytes=free, limit_nbytes=None, limit_left_nbytes=None)
