"""Loaders in fastai's training with several processes."""

from __future__ import annotations

from typing import Any

from fastai import distributed

from lmdbloader.integrations.shares import check_share
from lmdbloader.loader.loader import Loader

__all__ = ["DistributedTrainer"]


class DistributedTrainer(distributed.DistributedTrainer):  # type: ignore[misc]
    """fastai's callback for several processes, which leaves each process the share that its Loader reads.

    It takes the place of `learner.distrib_ctx()`, which works with fastai's own DataLoaders alone. Start the processes
    with `torchrun` or `accelerate launch`.

    >>> options = {"transforms": steps, "shard": "auto", "pad": True, "as_": "tuple"}  # doctest: +SKIP
    >>> loaders = DataLoaders(Loader(train, 16, shuffle=True, **options), Loader(val, 16, **options))  # doctest: +SKIP
    >>> Learner(loaders, model, loss_func=loss, cbs=DistributedTrainer()).fit(5)  # doctest: +SKIP
    """

    def _wrap_dl(self, dl: Any) -> Any:
        """Return a loader as it is, if it is a Loader.

        Raises:
            OptionError: The processes would read the same samples, or different numbers of batches.
        """
        if not isinstance(dl, Loader):
            return super()._wrap_dl(dl)
        check_share("DistributedTrainer", dl, distributed.rank_distrib(), distributed.num_distrib())
        return dl
