"""A Loader's place in its epochs: of the next iteration, of an iterator, and as plain values that can be saved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from lmdbloader.base.arguments import shown, whole
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.store.rows import text_of
from lmdbloader.transforms.base import SeveralViews, Transform
from lmdbloader.transforms.functions import described, is_compiled

STATE_VERSION = 2
_KINDS = {
    "version": Integral, "epoch": Integral, "position": Integral, "length": Integral, "seed": Integral, "order": str,
    "content_digest": str, "since": Integral,
}  # fmt: skip


@dataclass(slots=True)
class Place:
    """The place of an iterator.

    Attributes:
        epoch: Its epoch.
        start: Position in the epoch's order at which it began.
        seed: Of the order and of the random choices.
        since: Iterations that were begun between the last `set_epoch` and this one.
        num_steps: Steps since then; all ranks make them together.
        is_ended: Whether its iterator has ended: it is complete, failed, was closed or deleted.
        is_complete: Whether the epoch's last batch was given.
    """

    epoch: int
    start: int
    seed: int = 0
    since: int = 0
    num_steps: int = 0
    is_ended: bool = False
    is_complete: bool = False


@dataclass(slots=True)
class Coming:
    """The next iteration of a Loader, and what the numbers of `set_epoch` mean.

    Attributes:
        seed: Of the order and of all random choices.
        is_drawn: Whether nobody has given the seed. An epoch that comes again then has another one.
        epoch: Of the next iteration.
        start: Position in the epoch's order at which it begins.
        begun: The last epoch that was begun with this seed; -1 before any.
        shift: What is added to the numbers of `set_epoch`, if a framework counts from 0 again after a restart.
        since: Iterations that were begun since the last `set_epoch`; None before any.
        is_restored: Whether the place comes from a state, and no batch was taken since.
    """

    seed: int
    is_drawn: bool
    epoch: int = 0
    start: int = 0
    begun: int = -1
    shift: int = 0
    since: int | None = None
    is_restored: bool = False

    def set_epoch(self, number: int) -> None:
        """Go to the beginning of an epoch. A restored place is kept if the number may mean its epoch."""
        if self.is_restored:
            # A framework may number an epoch, and iterate several times before it numbers the next one.
            named = self.epoch - (self.since or 0)
            if number == self.epoch or number <= named:
                self.shift = (self.epoch if number == self.epoch else named) - number
                return
            self.shift, self.is_restored = 0, False
        self.epoch, self.start, self.since = number + self.shift, 0, 0
        if self.is_drawn and self.epoch <= self.begun:
            from lmdbloader.loader.seeds import mixed

            self.seed, self.begun = mixed(self.seed), -1

    def restore(self, place: Place) -> None:
        """Go to a place that was saved."""
        self.seed, self.epoch, self.start, self.since = place.seed, place.epoch, place.start, place.since or None
        self.begun, self.shift, self.is_restored = place.epoch - 1, 0, True

    def place(self) -> Place:
        """Return the place of the next iteration."""
        return Place(self.epoch, self.start, self.seed, self.since or 0)

    def saved(self) -> Place:
        """Return the place of the next iteration for a state; `set_epoch` has named no epoch that is not begun."""
        return replace(self.place(), since=(self.since or 0) if self.is_restored else 0)

    def begin(self) -> None:
        """Note that the next iteration has begun."""
        self.begun, self.epoch, self.start, self.is_restored = self.epoch, self.epoch + 1, 0, False
        self.since = None if self.since is None else self.since + 1

    def at(self, place: Place, position: int) -> Coming:
        """Return a copy that continues an iterator's epoch at a position."""
        copy = replace(self)
        copy.restore(Place(place.epoch, position, place.seed, place.since))
        copy.shift = self.shift
        return copy


def identity(dataset: LMDBDataset, order: str, length: int, transforms: Sequence[Any]) -> dict[str, Any]:
    """Return the values that determine the orders of a loader, but for the seed; a position is valid only there.

    Args:
        dataset: The one that is read; equal rows have equal digests, however they were selected.
        order: The text of the Loader's order; equal texts mean equal orders.
        length: Positions of the order, of one epoch if they differ.
        transforms: The loader's, added as text; plain functions by their names. No position depends on them.
    """
    digest = dataset.reader.manifest.content_digest
    if (rows := text_of(dataset.stored_rows)) != text_of(range(len(dataset.reader))):
        digest += f", rows {rows}"
    texts = [str(t) if _has_text(t) else described(t).split(" (")[0] for t in transforms]
    return {"length": length, "order": order, "content_digest": digest, "transforms": ", ".join(texts)}


def _has_text(transform: Any) -> bool:
    """Return whether the text of a transform or function shows its arguments, and no address in memory."""
    is_own = isinstance(transform, Transform | SeveralViews) or type(transform).__module__.startswith("lmdbloader.")
    return is_own or is_compiled(transform)


def state_of(place: Place, same: Mapping[str, Any]) -> dict[str, Any]:
    """Return the place at which a loader continues as whole numbers and text; `same` is its identity."""
    return {
        "version": STATE_VERSION, "epoch": place.epoch, "position": place.start, "since": place.since,
        "seed": place.seed, **same,
    }  # fmt: skip


def place_of(state: Any, same: Mapping[str, Any]) -> Place:
    """Return the place of a state.

    Args:
        state: Of `state_of`.
        same: The loader's identity, and its seed.

    Raises:
        OptionError: It is not a state, or it is of another version, dataset, order or seed.
    """
    expected = f"expected what a Loader's state_dict() returned, version {STATE_VERSION}"
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        raise OptionError(f"load_state_dict({shown(state)}): {expected}")
    for name, kind in _KINDS.items():
        if not isinstance(state.get(name), kind) or isinstance(state[name], bool):
            raise OptionError(f"load_state_dict: {name!r} is {shown(state.get(name))}; {expected}")
    for name, other in _MUST_AGREE.items():
        if state[name] != same[name]:
            raise OptionError(
                f"load_state_dict: the state is of {other}: its {name} is {state[name]!r}, this loader's is "
                f"{same[name]!r}. A position is not valid there; use the same, or set_epoch({state['epoch']}) to start "
                "that epoch."
            )
    if (transforms := state.get("transforms", same["transforms"])) != same["transforms"]:
        warnings.warn(
            f"load_state_dict: the state was saved with the transforms [{transforms}]; those of this loader are "
            f"[{same['transforms']}]. The remaining samples are the same, but their pixels are not. If you intend "
            "this, call state.pop('transforms') first.",
            stacklevel=3,
        )
    epoch, position, since = (int(state[name]) for name in ("epoch", "position", "since"))
    if not 0 <= epoch < 2**63 or not 0 <= position <= same["length"]:
        raise OptionError(
            f"load_state_dict: epoch {epoch} and position {position}; expected an epoch of at least 0 and a "
            f"position from 0 to {same['length']}"
        )
    return Place(epoch, position, int(same["seed"]), min(max(since, 0), epoch))


_MUST_AGREE = {
    "content_digest": "another dataset, or of other samples of it",
    "length": "another number of samples",
    "order": "another order",
    "seed": "another seed",
}


def epoch_in(state: Any) -> int:
    """Return the epoch of a state, 0 if it has none."""
    try:
        return whole("epoch", state.get("epoch") if isinstance(state, dict) else None, 0, 2**63 - 1)
    except OptionError:
        return 0
