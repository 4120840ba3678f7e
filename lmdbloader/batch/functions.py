"""Functions: the user's functions of samples and batches, as they are called for the fields of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.batch.collate import Formed, collate
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.batch.sample import Batch, Form
from lmdbloader.batch.turns import in_turn, in_turn_of_main
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import Field, image_of
from lmdbloader.transforms.functions import call, described, is_compiled
from lmdbloader.transforms.of_torchvision import check_pixels, in_step

if TYPE_CHECKING:
    from lmdbloader.batch.degraded import DegradeStep
    from lmdbloader.batch.steps import OwnStep

I64 = npt.NDArray[np.int64]
OwnTransform = Callable[[Any], Any] | None
# Calls what calls functions of the user; None calls it at once.
Run = Callable[[Callable[[], Any]], Any] | None


class Functions:
    """A dataset's own transform and the functions of a Loader, for the fields of a pipeline.

    Attributes:
        in_python: The functions that are called in Python.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        fields: Mapping[str, Field],
        own: OwnTransform,
        functions: Sequence[Callable[[Any], Any]],
        clips: Any = None,
    ) -> None:
        """Bind functions to fields; compiled functions are compiled for them.

        Args:
            pipeline: Of some or all of the image fields.
            fields: All fields, by name.
            own: The dataset's own transform.
            functions: Functions of whole batches, and compiled functions.
            clips: The Clips, if samples are windows.

        Raises:
            KernelError: Numba is not installed.
            OptionError: A function does not suit the fields, or Numba cannot compile it; or a compiled function that
                names no fields may move images without the arrays of their size.
        """
        self._kinds = {name: f.kind for name, f in fields.items()}
        stored = pipeline.reader.fields.values()
        self._images = {name: image_of(f, stored) for name, f in fields.items() if f.kind in ("boxes", "points")}
        self._pipeline, self._clips = pipeline, clips
        self._own: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
        self._check_pixels([*([] if own is None else [own]), *functions])
        self._steps: Mapping[int, OwnStep | DegradeStep] = {}
        if any(map(is_compiled, functions)):
            from lmdbloader.batch.steps import bound

            self._steps = bound(functions, pipeline, self._kinds, None if clips is None else clips.frames)
        kinds: Mapping[str, str] = self._kinds
        self._functions = {}
        for place, function in enumerate(functions):
            if (step := self._steps.get(place)) is None:
                self._functions[place] = in_step(function, kinds)
            else:
                kinds = step.kinds
        self._num_places = len(functions)
        self.in_python = list(self._functions.values())

    def _check_pixels(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        """Raise OptionError if torchvision's transforms would take the floats of the pipeline for others."""
        found = {o.name: o.values for o in self._pipeline.outputs}
        check_pixels(functions, {name: v.limits for name, v in found.items() if v.dtype.is_floating_point})

    def _of_samples(self, transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the dataset's own transform as it is called for these fields; the last one is kept.

        Raises:
            OptionError: As `in_step`; or it would take the floats of the pipeline for others.
        """
        if type(transform) is MethodType:  # a new object for every call; to keep it would keep its dataset alive
            return in_step(transform, self._kinds, self._images)
        own = self._own
        if own is None or own[0] is not transform:
            self._check_pixels([transform])
            own = self._own = (transform, in_step(transform, self._kinds, self._images))
        return own[1]

    def finish(
        self,
        batch: Any,
        transform: OwnTransform,
        *,
        epoch: int,
        position: int,
        samples: I64,
        draws: I64,
        run: Run = None,
    ) -> Any:
        """Return a batch of a Loader after the dataset's own transform and the functions, each called once for it.

        Args:
            batch: A named tuple of stacked values; or a `Batch` of samples, for a transform.
            transform: Called with each sample of a `Batch`; None if there is none.
            epoch, position: Determine the random numbers of batch functions, with the pipeline's seed; see `call`.
            samples: (B,) sample numbers of the batch.
            draws: (B,) numbers that differ for samples that come more than once.
            run: Calls what calls the transform and the functions; None calls it at once.

        Raises:
            OptionError: The transform or a function returned no batch.
        """
        is_fresh, seed = True, self._pipeline.seed
        if isinstance(batch, Batch):
            is_fresh = False
            if transform is not None:
                function = self._of_samples(transform)
                batch = in_turn(function, partial(each, function, batch), run)
            batch = collate(batch)
        for place in range(self._num_places):
            if (step := self._steps.get(place)) is not None:
                run_step = step.run if self._clips is None else partial(self._clips._of_frames, step.run)
                batch = run_step(batch, draws, seed=seed, epoch=epoch, is_fresh=is_fresh)
            else:
                function = self._functions[place]
                called = partial(call, seed=seed, epoch=epoch, position=position, place=place, samples=samples)
                batch = in_turn(function, partial(called, function, batch), run)
                is_fresh = False  # it may keep what it returned, or have returned one tensor twice
        return batch

    def changed(self, batch: Batch, transform: Callable[[Any], Any], form: Form) -> list[Any]:
        """Return the samples of a dataset after its own transform, in a form."""
        function = self._of_samples(transform)
        changed: list[Any] = in_turn_of_main(function, partial(each, function, batch))
        return changed if form is None else Formed(changed, form)


def each(transform: Callable[[Any], Any], samples: Sequence[Any]) -> list[Any]:
    """Return samples after a Python function that is called with each.

    Raises:
        OptionError: It raised StopIteration, which a loop would take for the end of the epoch.
    """
    try:
        return [transform(sample) for sample in samples]
    except StopIteration as error:
        raise OptionError(
            f"{described(transform)} raised StopIteration, which would end a loop without an error. Give next() a "
            "default value, or catch the exception."
        ) from error
