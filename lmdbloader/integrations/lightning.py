"""Loaders in Lightning: a DataModule that gives each process its share."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from lmdbloader.base.arguments import listed
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import NotFoundError, OptionError
from lmdbloader.loader.loader import Loader
from lmdbloader.loader.mixing import Mix
from lmdbloader.loader.views import check_evaluation, view_of
from lmdbloader.transforms import Transform
from lmdbloader.transforms.compilation import is_random

__all__ = ["DataModule"]

Path = str | os.PathLike[str]
Steps = Sequence[Transform | Callable[[Any], Any]]
_IN_ORDER = {"order": "sequential", "shuffle": None, "weights": None, "num_samples": None, "repeat": 1}


# The package has two names; a program uses one of them.
_HOMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _import_lightning(module: str) -> Any:
    """Return a module below `lightning.pytorch`, of the package that is imported already, else of an installed one.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
    """
    for name in sorted(_HOMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(f"{_HOMES[name]}.{module}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise
    raise ModuleNotFoundError(f"{__name__} needs Lightning: pip install lightning", name="lightning")


class DataModule(_import_lightning("core").LightningDataModule):  # type: ignore[misc]
    """Loaders for a Trainer; each process reads its share. In one process `trainer.fit(model, loader)` is enough.

    The training loader shuffles. It pads the last step, or drops it with `drop_last=True`, so that all processes make
    the same number of steps. With the Trainer's `overfit_batches` it reads the same samples in every epoch. The other
    loaders are sequential. A resumed run continues with the next sample, also after the last step of an epoch.

    >>> data = DataModule("train.lmdb", "val.lmdb", batch_size=64, transforms=steps)  # doctest: +SKIP
    >>> trainer.fit(model, data, ckpt_path="last")  # doctest: +SKIP
    """

    def __init__(
        self,
        train: LMDBDataset | Path | None = None,
        val: LMDBDataset | Path | None = None,
        test: LMDBDataset | Path | None = None,
        predict: LMDBDataset | Path | None = None,
        *,
        batch_size: int,
        transforms: Steps = (),
        eval_transforms: Steps | None = None,
        **options: Any,
    ) -> None:
        """Prepare.

        Args:
            train: A dataset, or its path.
            val: As `train`.
            test: As `train`.
            predict: As `train`.
            batch_size: Samples in a batch of each process.
            transforms: For training, as for `Loader`.
            eval_transforms: For the other loaders; None means those for training, if none of them is random.
            **options: Those of `Loader`, for all loaders.

        Raises:
            OptionError: `transforms` has random ones, and datasets for evaluation have no `eval_transforms`.
        """
        super().__init__()
        self._datasets = {"train": train, "val": val, "test": test, "predict": predict}
        self._batch_size, self._options = batch_size, options
        self._steps, self._eval_steps = transforms, transforms if eval_transforms is None else eval_transforms
        if eval_transforms is None:
            self._refuse_random(listed("transforms", transforms))
        # Lightning advises more worker processes, and a Loader has threads instead.
        warnings.filterwarnings("ignore", r".*does not have many workers which may be a bottleneck", UserWarning)

    def train_dataloader(self) -> Loader | list[Loader]:
        """Return a Loader for training."""
        options = {"shard": "auto", **self._options}
        if self.trainer is not None and self.trainer.overfit_batches:
            options.update(_IN_ORDER)
        elif all(options.get(name) is None for name in ("order", "shuffle", "weights")):
            options["shuffle"] = True
        if not options.get("drop_last"):
            options.setdefault("pad", True)
        return self._loader("train", self._steps, options)

    def val_dataloader(self) -> Loader | list[Loader]:
        """Return a Loader for validation; an empty list if no dataset was given."""
        return self._loader("val", self._eval_steps, self._in_order(pad=True))

    def test_dataloader(self) -> Loader | list[Loader]:
        """Return a Loader for tests."""
        return self._loader("test", self._eval_steps, self._in_order(pad=True))

    def predict_dataloader(self) -> Loader | list[Loader]:
        """Return a Loader for predictions, in which no sample is repeated."""
        return self._loader("predict", self._eval_steps, self._in_order(pad=False))

    def _in_order(self, *, pad: bool) -> dict[str, Any]:
        return {"shard": "auto", **self._options, **_IN_ORDER, "drop_last": False, "pad": pad}

    def _refuse_random(self, transforms: Steps) -> None:
        """Raise OptionError if a dataset for evaluation would get random transforms."""
        others = [name for name, dataset in self._datasets.items() if name != "train" and dataset is not None]
        random = [type(t).__name__ for t in transforms if is_random(t)]
        if others and random:
            raise OptionError(
                f"DataModule({others[0]}=..., transforms=[...]): {', '.join(random)} would make random choices in "
                "evaluation too. Give those for evaluation as eval_transforms=[...]."
            )

    def _check_classes(self, name: str, dataset: LMDBDataset) -> None:
        """Raise OptionError if a dataset has other classes than the one for training."""
        try:
            train = _opened(self._datasets["train"])
        except NotFoundError:  # on a machine that only evaluates
            return
        check_evaluation(train, dataset, f"DataModule({name}=...)")

    def _loader(self, name: str, steps: Steps, options: dict[str, Any]) -> Loader | list[Loader]:
        """Return a Loader, or no loaders without a dataset.

        Raises:
            OptionError: Its classes are not those of the training data.
        """
        dataset = self._datasets[name]
        if dataset is None:
            return []
        if name != "train" and self._datasets["train"] is not None:
            self._check_classes(name, _opened(dataset))
        return Loader(dataset, self._batch_size, transforms=steps, **options)


def _opened(dataset: Any) -> LMDBDataset:
    """Return what a Loader reads of a dataset."""
    return dataset.union if isinstance(dataset, Mix) else view_of(dataset, "DataModule")
