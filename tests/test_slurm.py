"""The job scripts parse, and run to their end with stand-ins for a cluster's commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "scripts" / "slurm").glob("*.sbatch"))
STUBS = {
    "srun": 'exec "$@"',
    "lmdbloader": f'exec "{sys.executable}" -m lmdbloader "$@"',
    "torchrun": 'printf "%s\\n" "$@" > "$TOLD"',
    "scontrol": "echo first-node; echo second-node",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH begins with the stand-ins."""
    (tmp_path / "bin").mkdir()
    for name, line in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "node").mkdir()
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "node"),
        "TOLD": str(tmp_path / "told"),
    }


def run(name: str, environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    path = ROOT / "scripts" / "slurm" / f"{name}.sbatch"
    return subprocess.run(["bash", str(path)], env={**environment, **more}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_job_script_parses(path: Path) -> None:
    child = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert (child.returncode, child.stderr) == (0, "")
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert directives and max(directives) < first_command, "Slurm reads none behind the first command"


def test_converting_puts_a_dataset_into_the_vault_once(
    environment: dict[str, str], photos: Path, tmp_path: Path
) -> None:
    vault = tmp_path / "vault" / "datasets"
    told = {"SOURCE": str(photos), "VAULT": str(vault), "OPTIONS": "--write-mode jpg --max-resolution 64"}
    child = run("convert", environment, **told)
    assert child.returncode == 0, child.stderr
    assert [p.name for p in vault.iterdir()] == ["train.lmdb"]
    assert len(lmdbloader.LMDBDataset(vault / "train.lmdb")) == 8
    assert list((tmp_path / "node").iterdir()) == [], "the node's disk is left as it was"
    child = run("convert", environment, **{**told, "SOURCE": "/nowhere"})
    assert child.returncode == 0 and "is there; AGAIN=1 converts anew" in child.stderr
    child = run("convert", environment, **told, AGAIN="1")
    assert child.returncode == 0 and [p.name for p in vault.iterdir()] == ["train.lmdb"]
    child = run("convert", environment, **{**told, "SOURCE": "/nowhere"}, NAME="other.lmdb")
    assert child.returncode != 0 and [p.name for p in vault.iterdir()] == ["train.lmdb"]


def test_training_reads_the_nodes_own_copies(environment: dict[str, str], photos: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        lmdbloader.convert(photos, tmp_path / f"{name}.lmdb", workers=1)
    told = {
        "TRAIN": str(tmp_path / "train.lmdb"),
        "VAL": str(tmp_path / "val.lmdb"),
        "SCRIPT": "train_classifier.py",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_ID": "77",
    }
    child = run("train", environment, **told)
    assert child.returncode == 0, child.stderr
    words = (tmp_path / "told").read_text().split("\n")[:-1]
    copies = [str(tmp_path / "node" / f"{name}.lmdb") for name in ("train", "val")]
    at = words.index("train_classifier.py")
    assert words[at + 1 : at + 4] == [copies[0], "--val", copies[1]]
    assert words[:4] == ["--nnodes", "2", "--nproc-per-node", "4"]
    assert words[words.index("--rdzv-endpoint") + 1] == "first-node:20077"
    assert all((Path(copy) / "manifest.json").is_file() for copy in copies)
    (tmp_path / "told").unlink()
    child = run("train", environment, **{**told, "VAL": "/nowhere.lmdb"})
    assert child.returncode != 0 and "there is no such folder" in child.stderr
    assert not (tmp_path / "told").exists(), "it does not train without what it should"


def test_the_options_of_training_exist() -> None:
    """The options in the job script are those of the script that it starts."""
    text = (ROOT / "scripts" / "slurm" / "train.sbatch").read_text("utf-8")
    script = (ROOT / "scripts" / "training" / "classifier_options.py").read_text("utf-8")
    for option in ("--model", "--progressive", "--checkpoint", "--val"):
        assert option in text and f'"{option}"' in script
