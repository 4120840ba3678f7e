"""Loaders in the Trainer of Hugging Face Transformers."""

from __future__ import annotations

from typing import Any

import transformers

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.integrations.accelerate import prepare
from lmdbloader.loader.loader import Loader
from lmdbloader.loader.seeds import mixed
from lmdbloader.loader.views import check_evaluation

__all__ = ["Trainer"]


class _Epochs(transformers.TrainerCallback):  # type: ignore[misc]
    """Sets the epoch of a view's random choices, also when a run resumes."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, *, train_dataloader: Any, **others: Any) -> None:
        """Set it; the state has the epochs so far, with a fraction in the middle of one."""
        if isinstance(train_dataloader.dataset, LMDBDataset):
            train_dataloader.dataset.set_epoch(int(state.epoch + 1e-6))


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """The Trainer of Transformers, whose datasets may be Loaders, or transformed views of an LMDBDataset.

    The batch size, order and seed are those of the Loader. A Loader or view without a seed gets the `data_seed` or
    `seed` of the TrainingArguments, so that a resumed run makes the same choices. Give the Loader the names that the
    model expects (`as_`), and for several processes its share (`shard`). A view needs
    `data_collator=lmdbloader.collate`, and `remove_unused_columns=False` for speed. A resumed run continues with the
    next batch, with the augmentation of its epoch.

    >>> names = {"pixel_values": "image", "labels": "label"}  # doctest: +SKIP
    >>> options = {"transforms": steps, "shard": "auto", "pad": True}  # doctest: +SKIP
    >>> loader = Loader(dataset, 32, shuffle=True, as_=names, **options)  # doctest: +SKIP
    >>> Trainer(model, arguments, train_dataset=loader).train(resume_from_checkpoint=True)  # doctest: +SKIP
    """

    train_dataset: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        """Prepare.

        Args:
            *args: Those of Transformers' Trainer.
            **options: The same by name.

        Raises:
            OptionError: The Loaders for training and for evaluation have different classes.
        """
        super().__init__(*args, **options)
        others = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        for other in others.values():
            if isinstance(self.train_dataset, Loader) and isinstance(other, Loader):
                check_evaluation(self.train_dataset.dataset, other.dataset, "Trainer(eval_dataset=...)")
        # Of the next training without a seed of its own; each one gets another.
        self._seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self._unseeded: LMDBDataset | None = None
        self._seeded: LMDBDataset | None = None
        self.add_callback(_Epochs())

    def get_train_dataloader(self) -> Any:
        """Return the prepared Loader, or the DataLoader of another dataset."""
        data = self._unseeded if self.train_dataset is self._seeded else self.train_dataset
        if isinstance(data, Loader):
            if data._drawn is not None and not data._drawn.is_settled:  # a second training goes on
                data._replace_drawn(self._seed)
            return prepare(self.accelerator, data)
        if isinstance(data, LMDBDataset) and data.all_transforms and data._draws is None:
            self._unseeded, self._seeded = data, data.transformed([], seed=self._seed)
            self.train_dataset, self._seed = self._seeded, mixed(self._seed)
        return super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the prepared Loader, or the DataLoader of another dataset; `eval_dataset` as for Transformers."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        return prepare(self.accelerator, chosen) if isinstance(chosen, Loader) else super().get_eval_dataloader(chosen)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the prepared Loader, or the DataLoader of another dataset, `test_dataset`."""
        if isinstance(test_dataset, Loader):
            return prepare(self.accelerator, test_dataset)
        return super().get_test_dataloader(test_dataset)
