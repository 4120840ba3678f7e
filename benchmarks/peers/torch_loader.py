"""Torch's DataLoader with its fast settings, for the stores whose users read sample by sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pixels import make_batch
from torch.utils.data import DataLoader, Dataset

SETTINGS = "DataLoader(shuffle=True, persistent_workers=True), one collate function that makes the float32 batch"


def open_loader(dataset: Dataset[Any], batch_size: int, workers: int, seed: int) -> DataLoader[Any]:
    """Return a DataLoader whose samples are dicts as make_batch takes them."""
    return DataLoader(
        dataset, batch_size, shuffle=True, num_workers=workers, collate_fn=make_batch, persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


class Stored(Dataset[Any]):
    """Samples of a folder with `labels.txt`, which has a label, or nothing, in the line of each sample."""

    def __init__(self, job: Any, folder: Path) -> None:
        self.job, self.folder = job, str(folder)
        lines = (folder / "labels.txt").read_text().split("\n")[:-1]
        self.labels = [int(line) if line else None for line in lines]

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a sample with these fields."""
        label = self.labels[index]
        return {"index": index, **fields} if label is None else {"index": index, "label": label, **fields}


def write_labels(samples: dict[str, Any], folder: Path) -> None:
    """Write labels.txt of Stored."""
    labels = samples.get("label", [""] * len(samples["index"]))
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))


def pixel_fields(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of pixels or files."""
    return {name: column for name, column in samples.items() if name not in ("index", "label")}
