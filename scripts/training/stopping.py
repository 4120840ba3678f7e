"""SIGTERM, as a job scheduler sends it to a training run: the step ends and the checkpoint is written first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopping:
    """Whether a run was asked to stop, for a `with` statement.

    Within `saving_first` a signal is only noted, so that the loop can save and stop after its step. Elsewhere the run
    stops at once, as after Ctrl-C.

    Attributes:
        is_requested: Whether the signal has come.
    """

    def __init__(self, *, can_save: bool) -> None:
        """Prepare.

        Args:
            can_save: Whether the run has a checkpoint; without one it always stops at once.
        """
        self.is_requested = False
        self._can_save = can_save
        self._is_saving_first = False
        self._before: object = signal.SIG_DFL

    def __enter__(self) -> Stopping:
        self._before = signal.signal(signal.SIGTERM, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    @contextmanager
    def saving_first(self) -> Iterator[None]:
        """Only note a signal until the block ends; the block itself stops after it has saved.

        Raises:
            KeyboardInterrupt: The signal has come, and the block has come to its end.
        """
        self._is_saving_first = self._can_save
        try:
            yield
        finally:
            self._is_saving_first = False
        if self.is_requested:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        if not self._is_saving_first:
            raise KeyboardInterrupt
