"""The seed of a Loader without one: drawn from torch's generator, rank 0's on all ranks, another one in each worker."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from typing import Any

import torch
from torch.utils.data import get_worker_info

from lmdbloader.base.arguments import shown
from lmdbloader.errors import OptionError

# How long a rank waits for the seed of rank 0.
_PATIENCE = timedelta(minutes=5)


def draw_seed() -> int:
    """Return a seed of 63 bits from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())


def mixed(seed: int, word: int = 0) -> int:
    """Return a seed of 63 bits that follows from another one and a word, both of 64 bits.

    >>> mixed(3) == mixed(3) != mixed(3, 1)
    True
    """
    words = seed.to_bytes(8, "little") + word.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1


class DrawnSeed:
    """Where a seed is drawn, and with whom it has to agree."""

    def __init__(self, seed: int, name: str, shard: Any) -> None:
        """Offer it to the other ranks if this is rank 0 of several; nobody waits here.

        Args:
            seed: Drawn in this process.
            name: Of the dataset and its rows. The Loaders of one name agree in the order in which they were made.
            shard: The Loader's argument.
        """
        self._name, self._shard = name, shard
        self._process, self._worker = os.getpid(), _worker()
        self._key: str | None = None
        self.is_settled = False
        if shard is not None and self.can_agree:
            self._offer(seed)

    @property
    def can_agree(self) -> bool:
        """Whether this process can ask rank 0 for its seed."""
        group = torch.distributed
        return _worker() is None and group.is_available() and group.is_initialized() and group.get_world_size() > 1

    def settle(self) -> None:
        """Keep the seed, as it was saved."""
        self.is_settled, self._worker = True, _worker()

    def agreed(self, seed: int, world_size: int, *, orders: bool) -> int:
        """Return the seed to use instead of `seed` in this process, for `world_size` ranks that share one order.

        Args:
            seed: The one so far.
            world_size: The number of ranks that share the order.
            orders: Whether the order depends on the seed.

        Raises:
            OptionError: The ranks cannot agree.
        """
        worker = _worker()
        if world_size == 1:
            if worker is not None and worker != self._worker:
                seed, self._worker = mixed(seed, worker), worker
            return seed
        # Ranks that get one Loader from another process have its seed already.
        is_copied = worker is None and self._shard == "auto" and self._process != os.getpid()
        if self.is_settled or is_copied:
            return seed
        if self.can_agree:
            seed, self.is_settled = self._from_rank_0(seed), True
        elif orders:
            where = "in a worker process of torch" if worker is not None else "before init_process_group"
            raise OptionError(
                f"Loader(..., shard={shown(self._shard)}): without a seed each rank would shuffle differently, and "
                f"{where} the ranks cannot agree on one. Write Loader(..., seed=0), with the same number on every rank."
            )
        return seed

    def _from_rank_0(self, seed: int) -> int:
        if self._key is None:
            self._offer(seed)
        if torch.distributed.get_rank() == 0:
            return seed
        try:
            store = _store()
            store.wait([self._key], _PATIENCE)
            return int(store.get(self._key))
        except RuntimeError as error:
            raise OptionError(
                f"Loader(..., shard={shown(self._shard)}): no seed came from rank 0. Make the same Loaders in the same "
                "order on every rank, or write Loader(..., seed=0)."
            ) from error

    def _offer(self, seed: int) -> None:
        """Number the Loaders of this name on this rank; rank 0 leaves its seed for the others."""
        store, rank = _store(), torch.distributed.get_rank()
        number = store.add(f"lmdbloader/{self._name}/made by {rank}", 1)
        self._key = f"lmdbloader/{self._name}/seed {number}"
        if rank == 0:
            store.set(self._key, str(seed))


def _worker() -> int | None:
    """Return the seed of torch's worker process; None outside one."""
    info = get_worker_info()
    return None if info is None else int(info.seed) % 2**64


def _store() -> Any:
    """Return what all ranks can write to, on any backend but MPI and without waiting for each other."""
    return torch.distributed.distributed_c10d._get_default_store()
