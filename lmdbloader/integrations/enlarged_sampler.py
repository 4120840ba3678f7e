"""Lets the sampler of BasicSR, neosr and traiNNer say which epoch it is, and leave out what a resumed run has read."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

# Of each program: the module and the class of its models, whose `resume_training` gets the saved state.
PROGRAMS = {
    "basicsr": ("models.base_model", "BaseModel"),
    "neosr": ("models.base", "base"),
    "traiNNer": ("models.base_model", "BaseModel"),
}


def option(options: Any, name: str) -> Any:
    """Return an option of a dict or of traiNNer's structs; None if it is not there.

    >>> option({"scale": 2}, "scale"), option({"scale": 2}, "gt_size")
    (2, None)
    """
    return options.get(name) if isinstance(options, Mapping) else getattr(options, name, None)


def adapt_sampler(program: str, kind: type) -> None:
    """Let a program's EnlargedSampler give the datasets of one type pairs of numbers: the epoch, and the draw.

    There are as many draws in an epoch as samples, times `dataset_enlarge_ratio`; a draw's sample is the remainder of
    its division by the number of samples. The order of the draws is BasicSR's; neosr's own is that of a GPU. A resumed
    run leaves out the draws that it has trained on in the interrupted epoch.

    Args:
        program: The package.
        kind: The type of the datasets; nothing changes for others.
    """
    sampler = importlib.import_module(f"{program}.data.data_sampler").EnlargedSampler
    module, name = PROGRAMS[program]
    models = getattr(importlib.import_module(f"{program}.{module}"), name)
    resumed: dict[str, int] = {}
    load, order = models.resume_training, sampler.__iter__

    def resume_training(self: Any, resume_state: Any) -> Any:
        resumed.update(_trained(self.opt, resume_state))
        return load(self, resume_state)

    def iterate(self: Any) -> Iterator[Any]:
        if not isinstance(self.dataset, kind):
            return iter(order(self))
        generator = torch.Generator("cpu").manual_seed(self.epoch)
        draws = torch.randperm(self.total_size, generator=generator, device="cpu")
        left = draws[self.rank :: self.num_replicas][_read_before(self, resumed) :]
        return zip(itertools.repeat(self.epoch), left.tolist())

    models.resume_training, sampler.__iter__ = resume_training, iterate


def _trained(options: Any, state: Any) -> dict[str, int]:
    """Return the epoch of a saved state, the batches trained until then in all epochs, and the size of a batch."""
    train = option(options, "datasets")["train"]
    size = option(train, "batch_size_per_gpu") or option(train, "batch_size")
    if not option(options, "dist"):
        size *= option(options, "num_gpu") or 1
    steps = option(train, "accumulate") or option(train, "accum_iter") or 1
    return {"epoch": state["epoch"], "batches": int(state["iter"]) * steps, "size": size}


def _read_before(sampler: Any, resumed: Mapping[str, int]) -> int:
    """Return the number of draws that a resumed run has trained on in the sampler's epoch, in this process."""
    if not resumed or resumed["epoch"] != sampler.epoch:
        return 0
    in_epoch: int = sampler.num_samples // resumed["size"]  # the programs drop the incomplete last batch
    batches = resumed["batches"] - resumed["epoch"] * in_epoch
    if not 0 <= batches <= in_epoch:
        warnings.warn(
            f"the saved state has {resumed['batches']} batches in epoch {resumed['epoch']}, but an epoch has "
            f"{in_epoch}: the dataset or the batch size has changed. The epoch begins again, with the same draws.",
            stacklevel=2,
        )
        return 0
    return batches * resumed["size"]
