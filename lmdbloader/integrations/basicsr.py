"""The dataset type `LmdbloaderDataset` for the configurations of BasicSR, neosr and traiNNer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.many import ReadsMany
from lmdbloader.errors import OptionError
from lmdbloader.transforms import Normalize, RandomCrop, RandomDihedral, RandomHorizontalFlip, ToDtype, Transform

__all__ = ["LmdbloaderDataset"]

_PROGRAMS = ("basicsr", "neosr", "traiNNer")
# Options of those datasets that this type does not have: a dataset is chosen and paired when it is converted.
_UNKNOWN = ("dataroot_lq", "meta_info_file", "meta_info", "filename_tmpl", "color")


class LmdbloaderDataset(ReadsMany):
    """Pairs from an LMDBDataset, in the form that those programs' paired datasets have: RGB float32 from 0 to 1.

    Compiled code crops, flips and rotates training samples, with new random choices at every read. Import the module
    once, for example at the top of the program's `train.py`: `import lmdbloader.integrations.basicsr`.

    ```yaml
    datasets:
      train:
        name: DIV2K
        type: LmdbloaderDataset
        dataroot_gt: train.lmdb
        gt_size: 96
        use_hflip: true
        use_rot: true
    ```
    """

    def __init__(self, opt: Mapping[str, Any]) -> None:
        """Open the dataset that `dataroot_gt` names.

        Args:
            opt: The section of the configuration: `dataroot_gt`; `phase` and `scale`, which the program adds; `gt_size`
                for training; `use_hflip`, `use_rot`, `mean` and `std`.

        Raises:
            OptionError: The type does not have an option, or the dataset has another scale.
        """
        for name in _UNKNOWN:
            if opt.get(name) is not None:
                raise OptionError(
                    f"LmdbloaderDataset, {name}: {opt[name]}: there is no such option here. Leave it out."
                )
        self.opt = opt
        dataset = LMDBDataset(opt["dataroot_gt"], fields=("lr", "hr"))
        _check_scale(dataset, opt.get("scale"))
        self._view = dataset.transformed(_steps(opt))
        table = dataset.table
        self._sources = table["source"] if "source" in table.column_names else None

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._named(self._view[index], index)

    def _many(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return many samples read in one call."""
        return [self._named(sample, index) for sample, index in zip(self._view._many(numbers), numbers, strict=True)]

    def _named(self, sample: Any, index: int) -> dict[str, Any]:
        path = str(index) if self._sources is None else str(self._sources[int(index)])
        return {"lq": sample.lr, "gt": sample.hr, "lq_path": path, "gt_path": path}


def _steps(opt: Mapping[str, Any]) -> list[Transform]:
    steps: list[Transform] = []
    if opt.get("phase", "train") == "train":
        steps.append(RandomCrop(opt["gt_size"]))
        flips, turns = opt.get("use_hflip", False), opt.get("use_rot", False)
        if turns and not flips:
            raise OptionError("LmdbloaderDataset: use_rot: true needs use_hflip: true. Write both.")
        steps += [RandomDihedral()] if turns else [RandomHorizontalFlip()] if flips else []
    steps.append(ToDtype(torch.float32, scale=True))
    if opt.get("mean") is not None or opt.get("std") is not None:
        steps.append(Normalize(opt["mean"], opt["std"]))
    return steps


def _check_scale(dataset: LMDBDataset, scale: int | None) -> None:
    if scale is None or not len(dataset):
        return
    low, high = (image.shape[1:] for image in dataset[0])
    if high != (low[0] * scale, low[1] * scale):
        raise OptionError(
            f"{dataset.path}: has pairs of {low[0]}x{low[1]} and {high[0]}x{high[1]}, but the configuration has scale: "
            f"{scale}. Convert with --scale {scale}, or correct the scale."
        )


def _register() -> None:
    """Add the type to the registry of each program that is loaded, else of those that are installed."""
    found = [name for name in _PROGRAMS if name in sys.modules]
    found = found or [name for name in _PROGRAMS if importlib.util.find_spec(name) is not None]
    if not found:
        raise ModuleNotFoundError(f"{__name__} needs one of {', '.join(_PROGRAMS)}", name=_PROGRAMS[0])
    for name in found:
        importlib.import_module(f"{name}.utils.registry").DATASET_REGISTRY.register(LmdbloaderDataset)


_register()
