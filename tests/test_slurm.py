"""The job scripts run to their end on a stand-in for a cluster, which warns them, kills them and submits them again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from slurm_cluster import SCRIPTS, Cluster

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.cli import main

ROOT = Path(__file__).resolve().parent.parent
NUM_IMAGES = 60
# Converted again at most: one part.
MOST_AGAIN = 12
STOP_AT = "040.png"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster whose folder has a space in its name."""
    return Cluster(tmp_path / "my cluster")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small images, with a space in its name."""
    folder = tmp_path_factory.mktemp("source") / "my photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def content(images: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content digest of the images' dataset."""
    out = tmp_path_factory.mktemp("whole") / "train.lmdb"
    lmdbloader.convert(images, out, workers=1, layout="images")
    return digest(out)


def digest(path: Path) -> str:
    return lmdbloader.LMDBDataset(path).reader.manifest.content_digest


def settings(cluster: Cluster, images: Path, **more: str) -> dict[str, str]:
    vault = cluster.folder / "the vault"
    return {"SOURCE": str(images), "VAULT": str(vault), "OPTIONS": "--layout images", **more}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_a_job_script_parses(path: Path) -> None:
    child = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert (child.returncode, child.stderr) == (0, "")
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert directives and max(directives) < first_command, "Slurm reads none behind the first command"
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(lines)


# --- The environment ---


@pytest.mark.parametrize("name", ["convert", "convert_parts", "train"])
def test_a_job_without_the_command_says_what_to_set(name: str, cluster: Cluster, images: Path) -> None:
    # In the clone's folder, where bash would find the folder lmdbloader instead.
    variables = settings(cluster, images, PATH="/usr/bin:/bin", SLURM_JOB_ID="" if name == "convert_parts" else "71")
    job = cluster.submit(name, **variables, TRAIN="train.lmdb", RESULTS=str(cluster.folder / "results"))
    assert job.end() == 127
    assert "set SETUP=/path/to/venv" in job.log
    assert not (cluster.folder / "submitted").exists()


# --- Converting ---


def test_converting_puts_a_dataset_into_the_vault_once(cluster: Cluster, images: Path, content: str) -> None:
    variables = settings(cluster, images)
    vault = cluster.folder / "the vault"
    job = cluster.submit("convert", **variables)
    assert job.end() == 0, job.log
    assert names(vault) == ["train.lmdb"] and digest(vault / "train.lmdb") == content
    job = cluster.submit("convert", **{**variables, "SOURCE": "/nowhere"})
    assert job.end() == 0 and "already exists; AGAIN=1 converts it again" in job.log
    cluster.opened()
    job = cluster.submit("convert", "--layout", "images", "--subset", "8", **variables, AGAIN="1")
    assert job.end() == 0, job.log
    assert names(vault) == ["train.lmdb"] and len(lmdbloader.LMDBDataset(vault / "train.lmdb")) == 8
    job = cluster.submit("convert", **{**variables, "SOURCE": "/nowhere"}, NAME="other.lmdb")
    assert job.end() != 0 and names(vault) == ["train.lmdb"]


@pytest.mark.parametrize("how", ["limit", "cancelled", "lost for another node"])
def test_a_conversion_that_is_stopped_goes_on(how: str, cluster: Cluster, images: Path, content: str) -> None:
    job = cluster.submit("convert", **settings(cluster, images), STOP_AT=STOP_AT).wait_until_there()
    if how == "limit":
        assert job.warn().end() == 0
        assert "the next job continues" in job.log
    elif how == "cancelled":
        assert job.cancel().end() in (130, 143)
    else:
        assert job.lose_node().end() == -9
    assert cluster.is_requeued == (how == "limit")
    vault = cluster.folder / "the vault"
    assert names(vault) == ["train.lmdb.partial"]
    assert STOP_AT in cluster.opened()

    job.variables.pop("STOP_AT")
    if how.endswith("another node"):
        job.variables["NODE"] = "node2"
    job = cluster.requeue(job)
    assert job.end() == 0, job.log
    again = [name for name in cluster.opened() if name < STOP_AT]
    assert len(again) <= MOST_AGAIN, again
    assert "resuming: " in job.log
    assert names(vault) == ["train.lmdb"] and digest(vault / "train.lmdb") == content


def test_a_job_that_got_no_further_is_not_queued_again(cluster: Cluster, images: Path) -> None:
    job = cluster.submit("convert", **settings(cluster, images), STOP_AT="001.png", STOP_EARLY="1")
    assert job.wait_until_there().warn().end() == 1
    assert "made no progress within its time limit" in job.log and not cluster.is_requeued


def test_the_tasks_of_an_array_make_datasets_of_their_own(cluster: Cluster, images: Path) -> None:
    variables = settings(cluster, images)
    job = cluster.submit("convert", **variables, SLURM_ARRAY_TASK_ID="1")
    assert job.end() == 2 and "NAME=part-%a.lmdb" in job.log
    assert not (cluster.folder / "the vault").exists()
    for task in ("1", "2"):
        (cluster.folder / f"part {task}").symlink_to(images)
        variables["SOURCE"] = str(cluster.folder / "part %a")
        job = cluster.submit("convert", "--layout", "images", "--subset", "%a", **variables, SLURM_ARRAY_TASK_ID=task,
                             NAME="part %a.lmdb")  # fmt: skip
        assert job.end() == 0, job.log
    vault = cluster.folder / "the vault"
    assert [len(lmdbloader.LMDBDataset(vault / f"part {task}.lmdb")) for task in (1, 2)] == [1, 2]


def test_options_with_spaces_are_quoted(cluster: Cluster, images: Path, tmp_path: Path) -> None:
    for half, side in ("my hr", 16), ("my lr", 8):
        (tmp_path / half).mkdir()
        Image.new("RGB", (side, side)).save(tmp_path / half / "a.png")
    options = f"--hr '{tmp_path}/my hr' --lr \"{tmp_path}/my lr\""
    job = cluster.submit("convert", **settings(cluster, images, SOURCE="", OPTIONS=options))
    assert job.end() == 0, job.log
    assert tuple(lmdbloader.LMDBDataset(cluster.folder / "the vault" / "train.lmdb").fields) == ("lr", "hr")
    job = cluster.submit("convert", **settings(cluster, images, OPTIONS="--hr 'no end", NAME="b"))
    assert job.end() != 0 and "unmatched single quote" in job.log


def test_work_on_other_storage_is_copied_to_the_vault(cluster: Cluster, images: Path, content: str) -> None:
    work, vault = cluster.folder / "my scratch", cluster.folder / "the vault"
    variables = settings(cluster, images, WORK=str(work))
    job = cluster.submit("convert", **variables, STOP_AT=STOP_AT).wait_until_there()
    assert job.warn().end() == 0 and names(work) == ["train.lmdb.partial"] and names(vault) == []
    job.variables.pop("STOP_AT")
    assert cluster.requeue(job).end() == 0
    assert names(work) == [] and names(vault) == ["train.lmdb"]
    assert digest(vault / "train.lmdb") == content
    # A finished dataset that was not copied yet is not converted again, even where the vault's is to be replaced.
    lmdbloader.stage(vault / "train.lmdb", work)
    cluster.opened()
    job = cluster.submit("convert", **variables, AGAIN="1")
    assert job.end() == 0 and "nothing to do" in job.log
    assert names(work) == [] and names(vault) == ["train.lmdb"]


# --- Converting in parts ---


@pytest.fixture
def noted(cluster: Cluster) -> Callable[[], list[list[str]]]:
    """Return what was asked of `lmdbloader` on the cluster since the last call, where it only notes its words."""
    program = """#!/bin/bash
printf '%s\\0' "$@" >> "$CLUSTER/words"
echo >> "$CLUSTER/words"
[[ -z "${FAIL:-}" || "$*" != *"$FAIL"* ]]
"""
    (cluster.folder / "bin" / "lmdbloader").write_text(program)

    def words() -> list[list[str]]:
        lines = (cluster.folder / "words").read_text().splitlines()
        (cluster.folder / "words").unlink()
        return [line.split("\0")[:-1] for line in lines]

    return words


def test_parts_are_planned_made_and_joined_by_jobs(
    cluster: Cluster, noted: Callable[[], list[list[str]]], images: Path, content: str
) -> None:
    more = "--account='my account' --partition=cpu"
    variables = settings(cluster, images, PARTS="3", SLURM_JOB_ID="", SUBMIT=more, NAME="my train.lmdb")
    job = cluster.submit("convert_parts", **variables)
    assert job.end() == 0, job.log
    assert "submitted: plan 101, parts 102, join 103" in job.log
    given = (cluster.folder / "submitted").read_text().splitlines()
    assert "--account=my account" in given and "--array=0-2" in given
    assert [word for word in given if "dep" in word] == [
        "--dependency=afterok:101",
        "--kill-on-invalid-dep=yes",
        "--dependency=afterany:102",
    ]
    commands = noted()
    assert [command[0] for command in commands] == ["convert"] * 4 + ["join"]
    for _ in range(2):  # jobs that are submitted once more do no harm
        assert [main(command) for command in commands] == [0] * 5
    vault = cluster.folder / "the vault"
    assert names(vault) == ["my train.lmdb"] and digest(vault / "my train.lmdb") == content
    assert len(LMDBDataset(vault / "my train.lmdb").reader.manifest.parts) == 3


# --- Training ---


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    for name in ("train", "val"):
        lmdbloader.write([{"label": 0}], folder / f"{name}.lmdb")
    return folder


def training(cluster: Cluster, datasets: Path, **more: str) -> dict[str, str]:
    return {
        "TRAIN": str(datasets / "train.lmdb"),
        "SCRIPT": str(ROOT / "scripts" / "train_classifier.py"),
        "RESULTS": str(cluster.folder / "my results"),
        "OPTIONS": "--model tiny --epochs 2",
        **more,
    }


def words_of(cluster: Cluster) -> list[str]:
    return [str(word) for word in json.loads((cluster.folder / "given").read_text())]


def test_super_resolution_gets_one_process_and_no_options_of_the_classifier(cluster: Cluster, datasets: Path) -> None:
    variables = training(cluster, datasets, SCRIPT=str(ROOT / "scripts" / "train_sr.py"), SLURM_GPUS_ON_NODE="4")
    del variables["OPTIONS"]
    job = cluster.submit("train", **variables)
    assert job.end() == 0, job.log
    words = words_of(cluster)
    assert words[words.index("--nproc-per-node") + 1] == "1"
    assert words[-2:] == ["--checkpoint", str(cluster.folder / "my results" / "checkpoint.pt")]


def test_training_reads_the_nodes_own_copies(cluster: Cluster, datasets: Path) -> None:
    variables = {
        **training(cluster, datasets),
        "VAL": str(datasets / "val.lmdb"),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_ID": "77",
    }
    log = str(cluster.folder / "my log")
    job = cluster.submit("train", "--log-json", log, **variables)
    assert job.end() == 0, job.log
    words = words_of(cluster)
    copies = [str(cluster.folder / "node" / f"{name}.lmdb") for name in ("train", "val")]
    at = words.index(str(ROOT / "scripts" / "train_classifier.py"))
    assert words[at + 1 : at + 4] == [copies[0], "--val", copies[1]]
    assert words[:4] == ["--nnodes", "2", "--nproc-per-node", "4"]
    assert words[words.index("--rdzv-endpoint") + 1] == "first-node:20077"
    assert words[-2:] == ["--log-json", log] and "--resume" not in words
    assert all((Path(copy) / "manifest.json").is_file() for copy in copies)
    (cluster.folder / "given").unlink()
    job = cluster.submit("train", **{**variables, "VAL": "/nowhere.lmdb"})
    assert job.end() != 0 and "there is no such folder" in job.log
    assert not (cluster.folder / "given").exists(), "it does not train without what it should"


def test_training_that_is_stopped_goes_on_from_its_checkpoint(cluster: Cluster, datasets: Path) -> None:
    variables = training(cluster, datasets)
    # The time limit: the step ends, and is in the checkpoint.
    job = cluster.submit("train", **variables, WAIT_AT_STEP="2").wait_until_there()
    assert job.warn().end() == 0, job.log
    assert "the next job continues" in job.log and cluster.is_requeued
    # A node that is lost: what came after the checkpoint is done again.
    job = cluster.requeue(job).wait_until_there()
    assert job.lose_node().end() == -9
    # A job that saves nothing is not queued again.
    job.variables["SAVES_NOTHING"] = "1"
    job.variables["WAIT_AT_STEP"] = "1"
    job = cluster.requeue(job).wait_until_there()
    assert job.warn().end() == 1
    assert "made no progress within its time limit" in job.log and not cluster.is_requeued
    job.variables.pop("WAIT_AT_STEP")
    job = cluster.requeue(job)
    assert job.end() == 0, job.log
    assert "--resume" in words_of(cluster)
    assert (cluster.folder / "steps").read_text().split() == ["0", "1", "2", "3", "3", "3", "4", "5"]


def test_the_tasks_of_an_array_train_into_folders_of_their_own(cluster: Cluster, datasets: Path) -> None:
    variables = training(cluster, datasets, SLURM_ARRAY_TASK_ID="3")
    job = cluster.submit("train", **variables)
    assert job.end() == 2 and "my results/%a" in job.log
    job = cluster.submit("train", "--seed", "%a", **{**variables, "RESULTS": str(cluster.folder / "seed %a")})
    assert job.end() == 0, job.log
    words = words_of(cluster)
    assert words[words.index("--checkpoint") + 1] == str(cluster.folder / "seed 3" / "checkpoint.pt")
    assert words[-2:] == ["--seed", "3"]
