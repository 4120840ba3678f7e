"""Several workloads: the hardest decides, data that several read is stored once, and wrong files are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.cli import main
from lmdbloader.errors import OptionError
from lmdbloader.lab import plan, plan_shared

CLASSIFIER = {
    "batch_size": 128, "step_seconds": 0.087, "example_size": "64KiB", "gpus": 4, "data": {"imagenet": "150GB"},
}  # fmt: skip
DETECTOR = {
    "batch_size": 16, "step_seconds": 0.4, "example_size": "300KB", "gpus": 8, "experiments": [1, 2],
    "data": {"coco": "19GB", "imagenet": "150 GB"},
}  # fmt: skip
SCANS = {
    "batch_size": 4, "example_flops": "1T", "device_flops": "20T", "example_size": "40MB", "data": {"scans": "9TB"},
    "gpu_memory": "80GiB", "example_memory": "30GiB",
}  # fmt: skip


def write(folder: Path, name: str, body: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_the_hardest_decides_and_the_union_is_stored(tmp_path: Path) -> None:
    found = plan_shared([write(tmp_path, "classifier", CLASSIFIER), write(tmp_path, "detector", DETECTOR)])
    assert list(found.plans) == ["classifier", "detector"]
    assert found.hardest_reads == found.hardest_bandwidth == "classifier"
    assert found.data == {"imagenet": 150 * 10**9, "coco": 19 * 10**9} and found.dataset_nbytes == 169 * 10**9
    # One experiment of the first file, and one or two of the second, all of them as if they were the hardest.
    hardest = found.plans["classifier"]
    assert (hardest.fewest.experiments, hardest.most.experiments) == (2, 3)
    assert round(hardest.most.reads[0].reads_per_s) == round(3 * 4 * 128 / 0.087)
    words = " ".join(str(found).split())
    assert "2 workloads on one storage, 2 to 3 experiments at the same time." in words
    assert "Storage must hold 169 GB: 2 datasets" in words
    assert max(map(len, str(found).splitlines())) <= 88


def test_the_rule_of_the_document(tmp_path: Path) -> None:
    # n = concurrent experiments x batch, here in ten experiments of the example for small files.
    small = write(tmp_path, "small", {"preset": "small-files"})
    large = write(tmp_path, "large", {"batch_size": 64, "step_seconds": 2, "example_size": "500K", "gpus": 4})
    found, alone = plan_shared([small, large], experiments=(5, 10)), plan(preset="small-files")
    assert found.hardest_reads == found.hardest_bandwidth == "small"
    assert (found.plans["small"].most, found.plans["small"].serving) == (alone.most, alone.serving)


@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.integers(1, 512), st.floats(0.01, 10), st.integers(1000, 10**8), st.integers(1, 8)),
        min_size=1,
        max_size=5,
    ),
    mix=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_what_serves_the_hardest_serves_every_mix(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[int, float, int, int]], mix: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("workloads")
    files = [
        write(folder, str(i), {"batch_size": n, "step_seconds": t, "example_size": size, "gpus": gpus})
        for i, (n, t, size, gpus) in enumerate(kinds)
    ]
    shared = plan_shared(files, experiments=len(mix))
    running = [plan(**json.loads(files[i % len(files)].read_text())).most for i in mix]
    reads, bytes_a_second = shared.plans[shared.hardest_reads].most, shared.plans[shared.hardest_bandwidth].most
    assert sum(each.reads[0].reads_per_s for each in running) <= reads.reads[0].reads_per_s * (1 + 1e-9)
    assert sum(each.nbytes_per_s for each in running) <= bytes_a_second.nbytes_per_s * (1 + 1e-9)


GOOD = {"batch_size": 8, "step_seconds": 1}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"batchsize": 8}, "'batchsize' is not a key; expected batch_size"),
        ({"colour": "red"}, "'colour' is not a key; expected batch_size, step_seconds"),
        ('{"batch_size": 8,\n}', "line 2"),
        ("\udcff", "cannot be read"),
        ("[1]", "expected an object"),
        ("[" * 100_000, "cannot be read"),
        ({"batch_size": 8}, "step_seconds"),
        ({**GOOD, "batch_size": "many"}, "batch_size='many'"),
        ({**GOOD, "experiments": [10, 5]}, "experiments=[10, 5]"),
        ({**GOOD, "data": "150GB"}, "expected an object"),
        ({**GOOD, "data": {"a": "much"}}, "data 'a'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, body: Any, named: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes((body if isinstance(body, str) else json.dumps(body)).encode("utf-8", "surrogateescape"))
    with pytest.raises(OptionError, match=rf"a\.json: .*{re.escape(named)}"):
        plan_shared([path])


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "a", {**GOOD, "data": {"x": "1GB"}})
    with pytest.raises(OptionError, match=r"b\.json: the dataset 'x'"):
        plan_shared([first, write(tmp_path, "b", {**GOOD, "data": {"x": "2GB"}})])
    with pytest.raises(OptionError, match="several files are named a"):
        plan_shared([first, first])
    with pytest.raises(OptionError, match=r"c\.json"):
        plan_shared([tmp_path / "c.json"])
    with pytest.raises(OptionError, match="at least one"):
        plan_shared([])


def test_the_command_takes_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path, "classifier", CLASSIFIER), write(tmp_path, "scans", SCANS)]
    words = ["plan", *(word for file in files for word in ("--workload", str(file)))]
    assert main([*words, "--experiments", "5-10"]) == 0
    words_said = " ".join(capsys.readouterr().out.split())
    assert words_said.startswith("2 workloads on one storage, 5 to 10 experiments at the same time.")
    assert "does NOT fit in 80.00 GiB; the largest batch is 2" in words_said
    assert "scans: Batches of 4 on 1 GPU, 5 to 10 experiments at the same time" in words_said
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hardest_reads"], found["hardest_bandwidth"]) == ("classifier", "scans")
    assert found["dataset_nbytes"] == 9150 * 10**9 and set(found["workloads"]) == {"classifier", "scans"}
