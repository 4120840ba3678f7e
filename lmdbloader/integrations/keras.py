"""Loaders in Keras: a callback that gives a Loader the epochs of `fit`."""

from __future__ import annotations

from typing import Any

import keras

from lmdbloader.errors import OptionError
from lmdbloader.loader.loader import Loader

__all__ = ["Epochs"]


class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the epoch of a Loader to that of `fit`, also if a run resumes with `initial_epoch` or BackupAndRestore.

    Keras begins iterations that it does not finish; without the callback each of them counts as an epoch. A Loader with
    a place from `load_state_dict` continues there in the first epoch.

    >>> model.fit(loader, epochs=5, callbacks=[Epochs(loader)])  # doctest: +SKIP
    """

    def __init__(self, loader: Loader) -> None:
        """Prepare.

        Args:
            loader: The Loader that is given to `fit`; if it continues in the middle of an epoch, with its place.
        """
        super().__init__()
        # Keras reads a batch before the first call, to learn its shapes.
        self._loader, self._place = loader, loader.state_dict()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set it.

        Raises:
            OptionError: The Loader continues in the middle of another epoch.
        """
        place, self._place = self._place, {"position": 0, "epoch": -1}
        if place["epoch"] == epoch:
            self._loader.load_state_dict(place)
        elif place["position"] == 0:
            self._loader.set_epoch(epoch)
        else:
            raise OptionError(
                f"Epochs: the loader continues in the middle of epoch {place['epoch']}, but this is epoch {epoch} of "
                f"fit. Write model.fit(..., initial_epoch={place['epoch']})."
            )
