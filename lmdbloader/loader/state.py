"""A Loader's place in its epochs: kept by the iterator, and as plain values that can be saved."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError, WorkerError
from lmdbloader.format.digests import CONTENT_SCHEMES, scheme_of
from lmdbloader.loader.batch_reader import LEFT_OUT
from lmdbloader.store import Damage
from lmdbloader.store.rows import text_of

I64 = npt.NDArray[np.int64]
STATE_VERSION = 2
_KINDS = {
    "version": Integral, "epoch": Integral, "position": Integral, "length": Integral, "seed": Integral, "order": str,
    "content_digest": str,
}  # fmt: skip


@dataclass(slots=True)
class Place:
    """The place of an iterator.

    Attributes:
        epoch: Its epoch.
        start: Position in the epoch's order at which it began.
        num_steps: Steps since then; all ranks make them together.
        is_ended: Whether its iterator has ended: it is complete, failed, was closed or deleted.
        is_complete: Whether the epoch's last batch was given.
    """

    epoch: int
    start: int
    num_steps: int = 0
    is_ended: bool = False
    is_complete: bool = False


class Batches(Iterator[Any]):
    """The iterator of a loop, which counts each batch when the loop gets it.

    It does not refer to batches, whose memory is free when the loop no longer holds them. Several threads may share it:
    each batch goes to one of them.
    """

    __slots__ = ("__weakref__", "_failure", "_items", "_locks", "_note", "place")

    def __init__(self, items: Iterator[Any], place: Place, note: Callable[[Damage], None]) -> None:
        """Start to give items (batch or `LEFT_OUT`, damage), update a place, and call `note` with each damage."""
        self._items, self.place, self._note = items, place, note
        # By process: a fork may copy a lock that is held by a thread of the parent.
        self._locks = {os.getpid(): threading.RLock()}
        # The thread in which an error ended the iterator, and the error.
        self._failure: tuple[int, str] | None = None

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            WorkerError: An error has ended the iterator in another thread; or it was in use when this process was
                forked.
        """
        with self._lock():
            place = self.place
            if place.is_ended:
                self._raise_failure_of_another()
                raise StopIteration
            self._check_idle()
            try:
                while True:
                    batch, damaged = next(self._items)
                    place.num_steps += 1
                    for one in damaged:
                        self._note(one)
                    if batch is not LEFT_OUT:
                        return batch
            except StopIteration:
                place.is_ended = place.is_complete = True
                raise
            except BaseException as error:
                # As text: the traceback of the error would keep batches alive.
                self._failure = threading.get_ident(), f"{type(error).__name__}: {error}"
                place.is_ended = True
                raise

    def begin_at(self, epoch: int, items: Callable[[Place], Iterator[Any]]) -> bool:
        """Go to the beginning of an epoch unless a batch was taken; return whether none was taken."""
        with self._lock():
            if self.place.num_steps or self.place.is_ended:
                return False
            if epoch != self.place.epoch:
                self.place.epoch, self.place.start = epoch, 0
                self._items = items(self.place)
            return True

    def close(self) -> None:
        """End; the threads skip the groups that they have not started. Waits for a thread that is getting a batch."""
        self.place.is_ended = True
        close = getattr(self._items, "close", None)
        if close is not None:
            with self._lock():
                close()

    def _lock(self) -> threading.RLock:
        process = os.getpid()
        return self._locks.get(process) or self._locks.setdefault(process, threading.RLock())

    def _check_idle(self) -> None:
        """Raise WorkerError if a batch is being given outside this process's lock."""
        if getattr(self._items, "gi_running", False):
            raise WorkerError(
                "this iterator of a Loader was in the middle of a batch, in another thread when this process was "
                "forked or in the code that a signal handler has interrupted: it cannot continue here. Make a new one "
                "with iter(loader), after load_state_dict(state_dict()) to keep the place."
            )

    def _raise_failure_of_another(self) -> None:
        if self._failure is not None and self._failure[0] != threading.get_ident():
            raise WorkerError(
                f"this iterator of a Loader has ended in another thread, which got the error: {self._failure[1]}"
            )

    def __del__(self) -> None:
        if (place := getattr(self, "place", None)) is not None:  # Ctrl-C may come before `__init__` has set it
            place.is_ended = True


@dataclass(frozen=True, slots=True)
class Identity:
    """The values that determine the orders of a loader; a position is valid only if they are equal.

    Attributes:
        length: Samples in the order, of one epoch if they differ.
        seed: Of the order and of the random choices.
        order: Its kind and its parameters; of a list the digest.
        content_digest: Of the dataset and, for a view, of its rows.
    """

    length: int
    seed: int
    order: str
    content_digest: str

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Return a loader's place as whole numbers and text."""
        return {
            "version": STATE_VERSION, "epoch": epoch, "position": position, "length": self.length, "seed": self.seed,
            "order": self.order, "content_digest": self.content_digest,
        }  # fmt: skip

    def place(self, state: Any) -> tuple[int, int]:
        """Return the epoch and the position of a state.

        Raises:
            OptionError: It is not a state, or it is of a newer release, or of another dataset, order or seed.
        """
        version = state.get("version") if isinstance(state, dict) else None
        if not _is(version, Integral):
            raise OptionError(f"load_state_dict({shown(state)}): expected what a Loader's state_dict() returned")
        if version != STATE_VERSION:
            raise OptionError(
                f"load_state_dict: the state has version {version}; this release reads {STATE_VERSION}. Use the "
                "release that saved it."
            )
        for name, kind in _KINDS.items():
            if not _is(state.get(name), kind):
                expected = "text" if kind is str else "a whole number"
                raise OptionError(f"load_state_dict: {name!r} is {shown(state.get(name))}; expected {expected}")
        for name, other in _MUST_AGREE.items():
            if state[name] != getattr(self, name):
                raise OptionError(
                    f"load_state_dict: the state is of {other}: its {name} is {state[name]!r}, this loader's is "
                    f"{getattr(self, name)!r}{_incomparable(name, state[name], getattr(self, name))}. A position is "
                    f"not valid there; use the same, or set_epoch({state['epoch']}) to start that epoch."
                )
        epoch, position = int(state["epoch"]), int(state["position"])
        if not 0 <= epoch < 2**63 or not 0 <= position <= self.length:
            raise OptionError(
                f"load_state_dict: epoch {epoch} and position {position}; expected an epoch of at least 0 and a "
                f"position from 0 to {self.length}"
            )
        return epoch, position


def _incomparable(name: str, one: str, other: str) -> str:
    """Return a note if two content digests cannot show whether the datasets are equal."""
    schemes = {scheme_of(one), scheme_of(other)} if name == "content_digest" else set()
    if len(schemes) < 2 or not schemes <= set(CONTENT_SCHEMES):
        return ""
    return (
        f" (digests of two schemes, {' and '.join(sorted(schemes))}, cannot be compared: one of the datasets was made "
        "by an older release or with another --digest)"
    )


_MUST_AGREE = {
    "content_digest": "another dataset, or of other samples of it",
    "length": "another number of samples",
    "order": "another order",
    "seed": "another seed",
}


def identity(dataset: LMDBDataset, order: str, length: int, seed: int) -> Identity:
    """Return the values that determine the orders of a loader.

    Args:
        dataset: The one that is read; equal rows have equal digests, however they were selected.
        order: The text of the Loader's order; equal texts mean equal orders.
        length: Positions of the order.
        seed: The Loader's.
    """
    digest = dataset.reader.manifest.content_digest
    if (rows := text_of(dataset.stored_rows)) != text_of(range(len(dataset.reader))):
        digest += f", rows {rows}"
    return Identity(length, seed, order, digest)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
