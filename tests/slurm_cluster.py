"""A stand-in for a Slurm cluster: it runs job scripts, warns them, kills them and loses their nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts" / "slurm"
PATIENCE_SECONDS = 120.0
# Like the real one, `srun` kills its command when it gets TERM; and a step has signals of its own.
_COMMANDS = {
    "srun": """
setsid "$@" & step=$!
echo $step > "$CLUSTER/step"
trap 'kill -KILL -- -$step' TERM
wait $step
""",
    "scancel": """
[[ "$*" == "--signal=TERM $SLURM_JOB_ID" ]] || exit 1
kill -TERM -- "-$(cat "$CLUSTER/step")"
""",
    "scontrol": """
case "$1" in
    show) echo first-node; echo second-node ;;
    requeue) [[ -z "${NO_REQUEUE:-}" && "$2" == "$SLURM_JOB_ID" ]] && touch "$CLUSTER/requeued" ;;
esac
""",
    # Runs a job, or each task of an array, at once.
    "sbatch": """
job=$(( $(cat "$CLUSTER/jobs" 2> /dev/null || echo 100) + 1 )) tasks=none
echo $job > "$CLUSTER/jobs"
while [[ "$1" == --* ]]; do
    echo "$1" >> "$CLUSTER/submitted"
    case "$1" in
        --array=*) range="${1#--array=}"; tasks="$(seq "${range%-*}" "${range#*-}")" ;;
        --dependency=afterok:*) [[ "$(cat "$CLUSTER/status-${1##*:}")" == 0 ]] || { echo "$job"; exit; } ;;
    esac
    shift
done
status=0
for task in $tasks; do
    [[ "$task" == none ]] || export SLURM_ARRAY_TASK_ID="$task"
    SLURM_JOB_ID=$job bash "$@" >&2 || status=$?
done
echo $status > "$CLUSTER/status-$job"
echo "$job;cluster"
""",
    "lmdbloader": f'exec "{sys.executable}" "{ROOT / "tests" / "slurm_convert.py"}" "$@"\n',
    "torchrun": f'exec "{sys.executable}" "{ROOT / "tests" / "slurm_train.py"}" "$@"\n',
}


class Cluster:
    """Its nodes share a folder, of which each job's `$TMPDIR` is a part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_jobs = 0
        (folder / "bin").mkdir(parents=True)
        (folder / "node").mkdir()
        for name, text in _COMMANDS.items():
            (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
            (folder / "bin" / name).chmod(0o755)

    def submit(self, name: str, *words: str, **variables: str) -> Job:
        """Start the job script `name` with a number of its own."""
        self._num_jobs += 1
        return self._start(name, words, {"SLURM_JOB_ID": str(70 + self._num_jobs), **variables})

    def requeue(self, job: Job) -> Job:
        """Start a job that asked for it, or whose node was lost, once more."""
        (self.folder / "requeued").unlink(missing_ok=True)
        return self._start(job.name, job.words, job.variables)

    @property
    def is_requeued(self) -> bool:
        """Whether a job has asked to be queued again."""
        return (self.folder / "requeued").exists()

    def opened(self) -> list[str]:
        """Return the names of the images that were opened since the last call, each once."""
        path = self.folder / "opened"
        names = sorted(set(path.read_text().split())) if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def _start(self, name: str, words: tuple[str, ...], variables: dict[str, str]) -> Job:
        for mark in ("there", "step"):
            (self.folder / mark).unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "node"),
            "CLUSTER": str(self.folder),
            "SLURM_CPUS_PER_TASK": "1",
            "NODE": "node1",
            **variables,
        }
        command = ["bash", str(SCRIPTS / f"{name}.sbatch"), *words]
        with open(self.folder / "log", "w") as log:
            batch = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        return Job(name, words, variables, batch, self.folder)


class Job:
    """A job that runs.

    Attributes:
        name, words, variables: What was submitted.
    """

    def __init__(
        self, name: str, words: tuple[str, ...], variables: dict[str, str], batch: subprocess.Popen[bytes], folder: Path
    ) -> None:
        self.name, self.words, self.variables = name, words, variables
        self._batch, self._folder = batch, folder

    def wait_until_there(self) -> Job:
        """Wait until its work has come to where the test wants it."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not (self._folder / "there").exists():
            assert self._batch.poll() is None and time.monotonic() < until, self.log
            time.sleep(0.01)
        return self

    def warn(self) -> Job:
        """Do what Slurm does some time before the time limit: send the signal of --signal to the batch shell only."""
        directive = re.search(r"^#SBATCH --signal=B:(\w+)@\d+$", (SCRIPTS / f"{self.name}.sbatch").read_text(), re.M)
        assert directive is not None
        self._batch.send_signal(signal.Signals[f"SIG{directive[1]}"])
        return self

    def cancel(self) -> Job:
        """Send SIGTERM to all its processes, as `scancel` does."""
        self._send_all(signal.SIGTERM)
        return self

    def lose_node(self) -> Job:
        """Kill all its processes at once, with no signal before; wait until they are gone."""
        lost = self._send_all(signal.SIGKILL)
        self._batch.wait(PATIENCE_SECONDS)
        psutil.wait_procs(lost, PATIENCE_SECONDS)
        return self

    def _send_all(self, number: signal.Signals) -> list[psutil.Process]:
        batch = psutil.Process(self._batch.pid)
        processes = [batch, *batch.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return processes

    def end(self) -> int:
        """Wait for its end; return its exit status."""
        try:
            return self._batch.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.lose_node()
            raise AssertionError(f"still runs: {self.log}") from None

    @property
    def log(self) -> str:
        """What it has printed since it was started."""
        return (self._folder / "log").read_text("utf-8")
