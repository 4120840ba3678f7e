"""WebDataset: shards of tar files, read one after the other through a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pixels import Batch, make_batch

NAME = "WebDataset"
PACKAGES = ("webdataset", "torchvision", "pillow")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "16 shards; pixels as raw bytes in the tar; shards and a buffer of 1,000 samples are shuffled; batches are made in "
    "the workers (WebLoader, batch_size=None, persistent workers)"
)
_SHARDS = 16
_BUFFER = 1000


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write one tar entry a field, the pixels as they are."""
    import webdataset as wds

    names = [name for name in samples if name not in ("index", "label")]
    each = -(-len(samples["index"]) // _SHARDS)
    with wds.ShardWriter(str(folder / "%04d.tar"), maxcount=each, verbose=0) as writer:
        for number, index in enumerate(samples["index"]):
            sample = {"__key__": f"{int(index):08d}"}
            if "label" in samples:
                sample["cls"] = int(samples["label"][number])
            for name in names:
                value = samples[name][number]
                sample["jpg" if isinstance(value, bytes) else name] = bytes(value)
            writer.write(sample)


class _Decode:
    def __init__(self, job: Any) -> None:
        self.shapes = dict(job.shapes.items())

    def __call__(self, stored: dict[str, Any]) -> dict[str, Any]:
        sample: dict[str, Any] = {"index": int(stored["__key__"])}
        if "cls" in stored:
            sample["label"] = int(stored["cls"])
        if "jpg" in stored:
            sample["image"] = stored["jpg"]
        for name, shape in self.shapes.items():
            if name in stored:
                sample[name] = np.frombuffer(stored[name], np.uint8).reshape(shape)
        return sample


class Loader:
    """Epochs of a WebLoader."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        import webdataset as wds

        shards = sorted(map(str, folder.glob("*.tar")))
        dataset = (
            wds.WebDataset(shards, shardshuffle=len(shards), seed=seed)
            .shuffle(_BUFFER)
            .map(_Decode(job))
            .batched(batch_size, collation_fn=make_batch, partial=True)
        )
        self._loader = wds.WebLoader(
            dataset, batch_size=None, shuffle=False, num_workers=workers, persistent_workers=workers > 0
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)


open = Loader
