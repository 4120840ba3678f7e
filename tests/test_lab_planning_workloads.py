"""Several workloads: the hardest decides, data that several read is stored once, and wrong files say what to write."""

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

Capture = pytest.CaptureFixture[str]
CLASSIFIER = {
    "batch_size": 128,
    "step_seconds": 0.087,
    "example_size": "64KiB",
    "gpus": 4,
    "data": {"imagenet": "150GB"},
}
DETECTOR = {
    "batch_size": 16,
    "step_seconds": 0.4,
    "example_size": "300KB",
    "gpus": 8,
    "experiments": [1, 2],
    "data": {"coco": "19GB", "imagenet": "150 GB"},
}
SCANS = {
    "batch_size": 4,
    "example_flops": "1T",
    "device_flops": "20T",
    "example_size": "40MB",
    "data": {"scans": "9TB"},
}


def write(folder: Path, name: str, body: Any) -> str:
    path = folder / f"{name}.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


def test_the_hardest_decides_and_the_union_is_stored(tmp_path: Path) -> None:
    found = plan_shared([write(tmp_path, "classifier", CLASSIFIER), write(tmp_path, "detector", DETECTOR)])
    assert found.names == ("classifier", "detector")
    assert found.hardest_reads == found.hardest_bandwidth == 0
    assert found.data == {"imagenet": 150 * 10**9, "coco": 19 * 10**9} and found.dataset_nbytes == 169 * 10**9
    assert found.readers == {"imagenet": ("classifier", "detector"), "coco": ("detector",)}
    # One experiment of the first file, and one or two of the second, all of them as if they were the hardest.
    assert (found.plans[0].fewest.experiments, found.plans[0].most.experiments) == (2, 3)
    assert round(found.plans[0].most.reads[0].reads_per_s) == round(3 * 4 * 128 / 0.087)
    words = " ".join(str(found).split())
    assert "2 workloads on one storage, 2 to 3 experiments at the same time." in words
    assert "classifier is the hardest, and decides." in words
    assert "Storage must hold 169 GB: 2 datasets; 1 of them is read by several and stored once." in words
    assert max(map(len, str(found).splitlines())) <= 88


def test_the_rule_of_the_document() -> None:
    # n = concurrent experiments x batch, here in ten experiments of the example for small files.
    small = {"name": "small", "batch_size": 256, "step_seconds": 0.2, "example_size": "64KiB", "gpus": 4}
    large = {"name": "large", "batch_size": 64, "step_seconds": 2, "example_size": "500K", "gpus": 4}
    found = plan_shared([small, large], experiments=(5, 10))
    alone = plan(preset="small-files")
    assert found.names[found.hardest_reads] == found.names[found.hardest_bandwidth] == "small"
    assert (found.plans[0].fewest, found.plans[0].most) == (alone.fewest, alone.most)
    assert found.serving == alone.serving


def test_one_may_need_the_most_reads_and_another_the_most_bandwidth() -> None:
    found = plan_shared([{"name": "a", **CLASSIFIER}, {"name": "b", **SCANS}], experiments=4)
    assert (found.names[found.hardest_reads], found.names[found.hardest_bandwidth]) == ("a", "b")
    words = " ".join(str(found).split())
    assert "a needs the most reads a second, and b the most bandwidth." in words
    assert "For b it must also deliver 3.2 GB/s in reads of 40 MB." in words
    assert found.as_json()["hardest_bandwidth"] == "b"


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.integers(1, 512), st.floats(0.01, 10), st.integers(1000, 10**8), st.integers(1, 8)),
        min_size=1,
        max_size=5,
    ),
    mix=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_what_serves_the_hardest_serves_every_mix(kinds: list[tuple[int, float, int, int]], mix: list[int]) -> None:
    bodies = [
        {"name": str(i), "batch_size": n, "step_seconds": t, "example_size": size, "gpus": gpus}
        for i, (n, t, size, gpus) in enumerate(kinds)
    ]
    shared = plan_shared(bodies, experiments=len(mix))
    running = [plan_shared([bodies[i % len(bodies)]], experiments=1).plans[0].most for i in mix]
    hardest = shared.plans[shared.hardest_reads].most
    assert sum(each.reads[0].reads_per_s for each in running) <= hardest.reads[0].reads_per_s * (1 + 1e-9)
    widest = shared.plans[shared.hardest_bandwidth].most
    assert sum(each.nbytes_per_s for each in running) <= widest.nbytes_per_s * (1 + 1e-9)
    for each in shared.serving:
        for way, needed in each.needed.items():
            alone = [plan.serving[shared.serving.index(each)].needed[way] for plan in shared.plans]
            assert needed == (max(low for low, _ in alone), max(high for _, high in alone))
    json.loads(json.dumps(shared.as_json(), allow_nan=False))


def test_a_batch_that_does_not_fit_is_named() -> None:
    body = {**SCANS, "gpu_memory": "80GiB", "example_memory": "30GiB"}
    assert "A batch of 4 of workload 1 does not fit its GPU; 2 do." in " ".join(str(plan_shared([body])).split())


def test_files_that_name_no_data_say_how() -> None:
    text = " ".join(str(plan_shared([{"batch_size": 8, "step_seconds": 1}])).split())
    assert 'The files name no datasets. To add up their sizes: "data": {"imagenet": "150GB"}' in text


GOOD = {"batch_size": 8, "step_seconds": 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"colour": "red"}, "a.json: 'colour' is not a key. The keys are name, batch_size, step_seconds"),
        ('{"batch_size": 8,\n "step_seconds": 1,\n}', "a.json, line 3, column 1: is not JSON ("),
        ("batch_size: 8", "is not JSON (expecting value): 'batch_size: 8'. A whole file is: {\"batch_size\": 128"),
        ("[1]", 'a.json: has a list; expected an object: {"batch_size": 128, "step_seconds": 0.087}'),
        ("[" * 100_000, "a.json: is nested too deeply"),
        ({"batch_size": 8}, 'Write "step_seconds": 0.087'),
        ({}, 'Write "batch_size": 128, "step_seconds": 0.087'),
        ({"batch_size": 8, "device_flops": "7T"}, 'Write "example_flops": "4G"'),
        ({**GOOD, "batch_size": "many"}, "a.json: batch_size='many': expected a whole number of at least 1. Write "),
        ({**GOOD, "example_size": "big"}, "expected a size such as 64KiB, 500K, 1.5GB or 1e6, or a number of bytes. W"),
        ({**GOOD, "experiments": [10, 5]}, 'experiments is [10, 5]; expected a number, or a range: "experiments": [5'),
        ({**GOOD, "experiments": True}, "experiments is True; expected a number"),
        ({**GOOD, "experiments": "5-ten"}, "experiments is '5-ten'; expected a number"),
        ({**GOOD, "name": ""}, 'name is \'\'; expected text: "name": "ResNet-50"'),
        ({**GOOD, "data": "150GB"}, 'data is \'150GB\'; expected sizes by name: "data": {"imagenet": "150GB"}'),
        ({**GOOD, "data": {"a": "much"}}, 'Write "data": {"a": "150GB"}'),
        ({**GOOD, "preset": "resnet51"}, "no such preset; expected one of resnet50-v100"),
    ],
)
def test_a_wrong_file_says_what_to_write(tmp_path: Path, body: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        plan_shared([write(tmp_path, "a", body)])


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "a", {**GOOD, "data": {"x": "1GB"}})
    with pytest.raises(OptionError, match=re.escape('same size: "data": {"x": 1000000000}; if not, another name')):
        plan_shared([first, write(tmp_path, "b", {**GOOD, "data": {"x": "2GB"}})])
    with pytest.raises(OptionError, match=r"both are named 'a'.*\"name\": \"a-2\""):
        plan_shared([first, first])
    with pytest.raises(OptionError, match=re.escape(f"{tmp_path / 'c.json'}: cannot be read (No such file")):
        plan_shared([tmp_path / "c.json"])
    (tmp_path / "d.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not UTF-8 text"):
        plan_shared([tmp_path / "d.json"])
    with pytest.raises(OptionError, match="expected at least one file"):
        plan_shared([])
    with pytest.raises(OptionError, match="workload=3: expected a file, or a mapping"):
        plan_shared([3])  # type: ignore[list-item]


def test_the_command_takes_several_files(tmp_path: Path, capsys: Capture) -> None:
    files = [write(tmp_path, "classifier", CLASSIFIER), write(tmp_path, "scans", SCANS)]
    words = ["plan", *(word for file in files for word in ("--workload", file))]
    assert main([*words, "--experiments", "5-10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 workloads on one storage, 5 to 10 experiments at the same time.")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dataset_nbytes"] == 9150 * 10**9 and set(found["workloads"]) == {"classifier", "scans"}
    with pytest.raises(SystemExit):
        main([*words, "--gpus", "4"])
    assert '--gpus together with --workload: write it into the file: "gpus": 4' in capsys.readouterr().err
    assert main(["plan", "--workload", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err


def test_a_single_workload_needs_no_list(tmp_path: Path) -> None:
    file = write(tmp_path, "classifier", CLASSIFIER)
    assert plan_shared(file) == plan_shared([file]) == plan_shared(str(file))
    assert plan_shared({"name": "a", **CLASSIFIER}) == plan_shared([{"name": "a", **CLASSIFIER}])
