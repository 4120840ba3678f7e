"""`lmdbloader plan` prints a table and sentences, or JSON alone, and says which of its options are missing."""

from __future__ import annotations

import json

import pytest

from lmdbloader.cli import main

Capture = pytest.CaptureFixture[str]
IMAGENET = ["--batch-size", "128", "--step-seconds", "0.087", "--example-size", "64KiB", "--gpus", "4"]


def test_the_screen_ends_with_sentences(capsys: Capture) -> None:
    assert main(["plan", *IMAGENET, "--dataset-size", "150GB"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    words = " ".join(captured.out.split())
    assert "samples 5,885 a second" in words and "386 MB/s (368 MiB/s)" in words
    assert "spinning disk 45 14 5" in words
    assert captured.out.index("spinning disk") < captured.out.index("What it means")
    assert max(map(len, captured.out.splitlines())) <= 88


def test_json_is_alone_on_stdout(capsys: Capture) -> None:
    assert main(["plan", *IMAGENET, "--experiments", "5-10", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert round(found["most"]["samples_per_s"]) == 58851 and found["fewest"]["experiments"] == 5
    assert found["sentences"] and found["sources"]["spinning disk"]


def test_every_option_arrives(capsys: Capture) -> None:
    words = ["--preset", "resnet50-v100", "--experiments", "2", "--dataset-size", "1TB", "--cache-fraction", "0.25"]
    memory = ["--gpu-memory", "32GiB", "--example-memory", "200MiB", "--model-memory", "1GiB"]
    assert main(["plan", *words, *memory, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["most"]["experiments"] == 2 and found["cache_fraction"] == 0.25
    assert found["dataset_nbytes"] == 10**12
    assert found["fit"]["largest"] == 31 * 1024 // 200
    assert found["preset"]["name"] == "resnet50-v100"


def test_the_note_about_the_document_is_in_the_output(capsys: Capture) -> None:
    assert main(["plan", "--preset", "team-on-nfs"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "600 MB/s to 1.28 GB/s" in words and "0.32 to 0.64 GB/s. The formula is right." in words


def test_flops_give_the_time_of_a_step(capsys: Capture) -> None:
    words = ["plan", "--batch-size", "128", "--example-flops", "4G", "--device-flops", "7 TFLOPS"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "samples    1,750 a second" in out and "in 73.1 ms or less" in out
    assert max(map(len, out.splitlines())) <= 88
    assert main([*words, "--utilization", "0.83257", "--json"]) == 0
    assert round(json.loads(capsys.readouterr().out)["step_seconds"], 4) == 0.0879
    assert main(words[:5]) == 2
    assert "device_flops: not given" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--batch-size", "8"],
        ["--batch-size", "many", "--step-seconds", "1"],
        ["--batch-size", "8", "--step-seconds", "1", "--experiments", "few"],
        ["--batch-size", "8", "--step-seconds", "1", "--experiments", "5-"],
        ["--batch-size", "8", "--step-seconds", "1", "DB"],
    ],
)
def test_wrong_usage(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *words])
    assert caught.value.code == 2
    assert "usage: lmdbloader" in capsys.readouterr().err


def test_options_that_make_no_sense(capsys: Capture) -> None:
    assert main(["plan", "--batch-size", "8", "--step-seconds", "1", "--example-size", "64 apples"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "example_size='64 apples': expected a size such as 64KiB" in captured.err


def test_nodes_and_their_storage(capsys: Capture) -> None:
    words = ["plan", *IMAGENET[:6], "--gpus", "32", "--nodes", "4", "--dataset-size", "10TB"]
    storage = ["--storage-bandwidth", "2GB/s", "--storage-iops", "50k", "--network-bandwidth", "3GB/s"]
    assert main([*words, *storage, "--node-memory", "256GiB", "--local-disk", "2TB"]) == 0
    out = capsys.readouterr().out
    assert "Storage for 4 nodes of 8 GPUs: 2 GB/s, 50,000 requests a second, 3 GB/s to a node (predicted)" in out
    assert "20% pinned on each node" in out and "predictions" in out
    assert main([*words, *storage, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["cluster"]["ranks_per_node"] == 8
    assert main([*words, "--storage-bandwidth", "16Gb/s"]) == 2
    assert "storage_bandwidth='2GB/s'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plan", "--workload", "a.json", "--nodes", "4"])
    assert "--nodes together with --workload" in capsys.readouterr().err
