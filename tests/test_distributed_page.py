"""The program of the page on several GPUs trains in two processes, and continues in the middle of an epoch."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import torch
from loading_scripts import make_class_datasets

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "distributed.md"
SECONDS = 300
# Trains without a break, with a break after the third step of the second epoch, and then to the end: in one process,
# because torch takes long to import.
PROGRAM = """
import os, sys
import torch
import train

def run(checkpoint, port):
    os.environ["MASTER_PORT"] = port
    sys.argv = ["train.py", "train.lmdb", "val.lmdb", "--epochs", "2", "--batch-size", "3", "--save-steps", "3",
        "--checkpoint", checkpoint]
    train.main()

class Stopped(Exception): ...

ports = sys.argv[1:]
run("whole.pt", ports[0])
step, taken = torch.optim.SGD.step, 0

def step_and_stop(self, *args):
    global taken
    taken += 1
    if taken == int(os.environ["STEPS"]):
        raise Stopped
    return step(self, *args)

torch.optim.SGD.step = step_and_stop
try:
    run("broken.pt", ports[1])
except Stopped:
    pass
# Not while the exception holds the model: gloo can hang if the process group ends with the model.
torch.distributed.destroy_process_group()
torch.optim.SGD.step = step
state = torch.load("broken.pt", weights_only=True)["loader"]
print("stopped in epoch", state["epoch"], "at", state["position"])
run("broken.pt", ports[2])
"""


def free_ports(count: int) -> list[str]:
    """Return the numbers of ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def run_ranks(folder: Path, **variables: str) -> list[str]:
    """Run the program in two processes; return what each printed."""
    ports = free_ports(3)
    children = [
        subprocess.Popen(
            [sys.executable, "program.py", *ports],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={
                **os.environ, **variables, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "CUDA_VISIBLE_DEVICES": "",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        return [child.communicate(timeout=SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()


def test_the_program_of_the_page_continues_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    make_class_datasets(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(blocks[0], "utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    # 4 classes of 12 samples are 8 steps of 2 ranks with 3 samples. The checkpoint is that of 3 steps in epoch 1.
    first, second = run_ranks(tmp_path, STEPS="13")
    lines = first.splitlines()
    assert "stopped in epoch 1 at 18" in lines, first
    scores = [line for line in lines if line.startswith("epoch")]
    assert [line[:8] for line in scores] == ["epoch 0:", "epoch 1:", "epoch 0:", "epoch 1:"], first
    assert scores[:2] == scores[2:]
    assert "epoch 0" not in second, second  # one rank prints
    whole, broken = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "broken.pt"))
    assert all(torch.equal(value, broken["model"][name]) for name, value in whole["model"].items())
    assert whole["loader"] == broken["loader"]
