"""The processes of a run under torchrun: their devices, their group, and sums over all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import distributed

from lmdbloader.errors import OptionError

__all__ = ["choose_device", "is_first", "leave", "process_group", "total", "world_size"]


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes that torchrun has started, if there are any."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End this process with an exit status.

    A thread of gloo that still drops a tensor while the interpreter ends aborts the process (pytorch issue 190489), so
    one of several processes ends without that.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def choose_device(name: str) -> torch.device:
    """Return the device to train on; under torchrun each process of a node has its own.

    Raises:
        OptionError: This machine does not have that device, it would be that of several processes, or they do not know
            of each other.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if int(tasks) > 1 and "WORLD_SIZE" not in os.environ:
        raise OptionError(
            f"srun has started {tasks} processes that do not know of each other: each would train the same and write "
            "the same files. Start one a node, `srun --ntasks-per-node 1 torchrun ...`, as scripts/slurm/train.sbatch "
            "does."
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"{name}: not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"{name}: this script trains on cpu or cuda.")
    if device.type == "cpu":
        return device
    if device.index is not None and (processes := int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > 1:
        raise OptionError(f"--device {name}: {processes} processes of this node would share it. Use --device cuda.")
    device = torch.device("cuda", local_rank if device.index is None else device.index)
    if device.index >= torch.cuda.device_count():
        raise OptionError(f"{device}: there are {torch.cuda.device_count()} CUDA devices here; use --device cpu.")
    torch.cuda.set_device(device)
    return device


def world_size() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first() -> bool:
    """Return whether this is the process that prints and writes files."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def total(*values: float, device: torch.device) -> list[float]:
    """Return the sums of numbers over all processes."""
    if world_size() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(sums)
    return [float(value) for value in sums]
