"""What all experiments of a study share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmdbloader.lab.arms import Arm, LoaderKind, Material
from lmdbloader.loader.torch_loader import accelerator

# Of the sections that do not go through all sizes: the one that is nearest to this.
_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """The data, and the options of `bench` as far as they can be measured.

    Attributes:
        material: What is read.
        num_samples: Of the whole dataset, for the time of an epoch.
        cores: That this process may use: as many threads the Loader has.
        notes: Gets a sentence about each thing that is left out.
    """

    material: Material
    num_samples: int
    batch_sizes: Sequence[int]
    crops: Sequence[int | None]
    seconds: float
    repeats: int
    processes: Sequence[int]
    cores: int
    num_workers: int
    notes: list[str]

    def arm(self, source: LoaderKind, **changes: Any) -> Arm:
        """Return the arm of a source with the middle batch size and the last crop, where nothing else is given."""
        size = min(self.batch_sizes, key=lambda size: abs(size - _BATCH_SIZE))
        workers = self.cores if source == "lmdbloader" else self.num_workers
        made = Arm(source, size, workers, self.crops[-1], is_pinned=accelerator() is not None)
        return replace(made, **changes)
