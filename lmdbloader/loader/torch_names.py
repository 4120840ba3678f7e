"""Arguments of torch's DataLoader that a Loader does not have: those that change nothing are taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import WeightedRandomSampler

from lmdbloader.base.arguments import shown
from lmdbloader.errors import OptionError

# What to write instead of each.
_INSTEAD = {
    "collate_fn": "write transforms=[function] for a function of the whole batch, or lmdbloader.dataloader(...)",
    "generator": "write seed=0",
    "in_order": "batches always come in order",
    "multiprocessing_context": "a Loader reads with threads",
    "num_workers": "a Loader reads with threads, by default one for each core: write num_threads=...",
    "persistent_workers": "threads live as long as the Loader",
    "pin_memory_device": "write device=...",
    "prefetch_factor": "write prefetch=..., which counts the batches of all threads together",
    "sampler": 'write order=..., weights=... or shard="auto", or lmdbloader.dataloader(dataset, sampler=...)',
    "timeout": "an error in a thread is raised at once",
    "worker_init_fn": "random choices depend on the seed alone: write seed=0",
}
# Values that mean the same here; None does for all of them.
_SAME: dict[str, tuple[Any, ...]] = {
    "in_order": (True,), "persistent_workers": (True, False), "pin_memory_device": ("",), "timeout": (0,)
}  # fmt: skip


def without_torchs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a Loader without those of torch's DataLoader.

    A sampler that is a list of sample numbers is an order, and one that draws by weight gives the weights.

    Raises:
        OptionError: An argument of torch would change something, and a Loader does not have it.
    """
    found = {name: value for name, value in options.items() if name not in _INSTEAD}
    refused = []
    for name in sorted(_INSTEAD.keys() & options.keys()):
        value = options[name]
        if value is None or (name in _SAME and value in _SAME[name]):
            continue
        meant = _drawn_by(value) if name == "sampler" else {}
        if not meant or meant.keys() & found.keys():
            refused.append(f"Loader({name}={shown(value)}): {_INSTEAD[name]}.")
        found.update(meant)
    if refused:
        raise OptionError(" ".join(refused))
    return found


def _drawn_by(sampler: Any) -> dict[str, Any]:
    """Return the arguments of a Loader that draw as a sampler does; none if its own random state draws."""
    if isinstance(sampler, list | tuple | range) or type(sampler).__name__ in ("ndarray", "Tensor"):
        return {"order": sampler}
    if type(sampler) is WeightedRandomSampler and sampler.replacement and sampler.generator is None:
        return {"weights": sampler.weights, "num_samples": sampler.num_samples}
    return {}
