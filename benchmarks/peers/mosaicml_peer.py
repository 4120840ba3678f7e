"""MosaicML Streaming: shards in its MDS format, read by StreamingDataset from a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pixels import Batch, make_batch, transforms_v2

NAME = "MosaicML Streaming"
PACKAGES = ("mosaicml-streaming", "torchvision", "pillow")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "MDS shards of 64 MB, ndarray columns of fixed shape, or JPEG bytes; StreamingDataset(local=..., shuffle=True), "
    "DataLoader with persistent workers; batches are made in the workers"
)


def _streaming() -> Any:
    transforms_v2()  # streaming imports torchvision
    import streaming

    return streaming


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write MDS shards."""
    columns = {name: "int" for name in ("index", "label") if name in samples}
    for name in samples:
        if name not in columns:
            shape = ",".join(map(str, job.shapes[name])) if name in job.shapes else ""
            columns[name] = f"ndarray:uint8:{shape}" if shape else "bytes"
    with _streaming().MDSWriter(out=str(folder), columns=columns, size_limit="64mb", progress_bar=False) as writer:
        for number in range(len(samples["index"])):
            sample = {name: values[number] for name, values in samples.items()}
            writer.write({name: int(value) if columns[name] == "int" else value for name, value in sample.items()})


class Loader:
    """Epochs of a DataLoader over a StreamingDataset."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        from torch.utils.data import DataLoader

        streaming = _streaming()
        # Shared memory of a process that was killed stops the next one that opens the same folder.
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(
            local=str(folder), shuffle=True, shuffle_seed=seed, batch_size=batch_size, num_canonical_nodes=1
        )
        self._loader = DataLoader(
            dataset, batch_size=batch_size, num_workers=workers, collate_fn=make_batch, persistent_workers=workers > 0
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)


open = Loader
