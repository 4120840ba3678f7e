"""The recorder as a callback of Lightning's Trainer; importing this module imports Lightning."""

from __future__ import annotations

import logging
from typing import Any

from lmdbloader.base.lightning import import_lightning
from lmdbloader.errors import OptionError
from lmdbloader.lab.profiling.recorder import Recorder
from lmdbloader.lab.profiling.results import Profile

__all__ = ["ProfileCallback"]

_logger = logging.getLogger("lmdbloader")


class ProfileCallback(import_lightning("callbacks", __name__).Callback):  # type: ignore[misc]
    """Records steps of a Trainer's fit, and logs their bottleneck.

    The work of Lightning between two batches, and its copy to the device, count as waiting for
    data; validation does not count. If a checkpoint is written, the phase in which that happens does not count either.
    The work of callbacks that run after this one at the end of a step counts as waiting for data.

    >>> callback = ProfileCallback(steps=50)  # doctest: +SKIP
    >>> trainer = lightning.Trainer(callbacks=[callback])  # doctest: +SKIP
    >>> trainer.fit(model, loader)  # doctest: +SKIP
    >>> print(callback.profile)  # doctest: +SKIP

    Attributes:
        profile: Set after `steps` steps, or when training ends; None before, and if training ended in the warm-up.
    """

    def __init__(self, *, steps: int = 100, warmup: int | None = None) -> None:
        """Prepare.

        Args:
            steps: To measure; the rest of the training is not recorded.
            warmup: Steps before that; None means until the batches that were read ahead at the beginning are used up.

        Raises:
            OptionError: A number is out of its range.
        """
        super().__init__()
        if steps < 1 or (warmup is not None and warmup < 0):
            raise OptionError(f"steps={steps}, warmup={warmup}: expected at least 1 and at least 0")
        self.profile: Profile | None = None
        self._steps, self._warmup = steps, warmup
        self._left = 0
        self._recorder: Recorder | None = None
        self._is_saving = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        recorder = Recorder(trainer.train_dataloader, warmup=self._warmup, device=pl_module.device)
        self._left = recorder.warmup + self._steps
        self._is_saving = False
        self._recorder = recorder.__enter__()
        recorder.ask()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave out the time between two epochs."""
        if self._recorder is not None:
            self._recorder.leave_out()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note that a batch has come."""
        if self._recorder is not None:
            self._leave_out_saving()
            self._recorder.got(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note the end of the forward pass."""
        self._lap("forward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Note the end of the backward pass."""
        self._lap("backward")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the end of a step; the last one ends the recording."""
        if self._recorder is None:
            return
        if not self._leave_out_saving():
            self._recorder.lap("update")
        self._left -= 1
        if self._left:
            self._recorder.ask()
        else:
            self._end(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Note that a checkpoint is being written; Lightning does not report its end."""
        self._is_saving = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave out the time of validation."""
        if self._recorder is not None:
            self._recorder.leave_out()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the recording if the training was shorter than it."""
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop to record."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.__exit__(None, None, None)

    def _leave_out_saving(self) -> bool:
        """Leave the time since the last lap out if a checkpoint was written in it; return whether that was so."""
        was_saving, self._is_saving = self._is_saving, False
        if was_saving and self._recorder is not None:
            self._recorder.leave_out()
        return was_saving

    def _lap(self, phase: str) -> None:
        if self._recorder is not None:
            self._recorder.lap(phase)

    def _end(self, trainer: Any) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.__exit__(None, None, None)
        try:
            self.profile = recorder.profile()
        except OptionError as error:
            _logger.warning("lmdbloader: no profile: %s", error)
            return
        if trainer.is_global_zero:
            _logger.info("lmdbloader: profile\n%s", self.profile)
