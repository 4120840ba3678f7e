"""SanitizeBoxes, which removes boxes that are too small, with their labels."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch

from lmdbloader.base.arguments import number
from lmdbloader.errors import OptionError
from lmdbloader.transforms.functions import thread_safe


@thread_safe
class SanitizeBoxes:
    """Remove boxes without area, such as those outside a crop, with their labels, from a sample or a whole batch.

    Give it to a Loader after the other transforms, or as a dataset's own transform.

    Attributes:
        boxes: The field of boxes.
        others: Fields with a value for each box.
        min_size: Boxes that are narrower or lower than this many pixels are dropped.

    >>> SanitizeBoxes("boxes", "labels")
    SanitizeBoxes('boxes', 'labels', min_size=1.0)
    """

    def __init__(self, boxes: str = "boxes", *others: str, min_size: float = 1.0) -> None:
        """Check the arguments.

        Args:
            boxes: The field of boxes, (n, 4).
            others: Fields with a value for each box, (n, ...): labels, scores, points.
            min_size: Least width and least height in pixels, more than 0.

        Raises:
            OptionError: A name is not text, or `min_size` is not more than 0.
        """
        if wrong := [name for name in (boxes, *others) if not isinstance(name, str)]:
            raise OptionError(
                f"SanitizeBoxes({wrong[0]!r}): expected names of fields, SanitizeBoxes('boxes', 'labels')"
            )
        self.boxes, self.others, self.min_size = boxes, others, number("min_size", min_size)
        if not 0 < self.min_size < inf:
            raise OptionError(f"SanitizeBoxes(min_size={min_size!r}): expected a number of pixels above 0")

    def __repr__(self) -> str:
        return f"SanitizeBoxes({', '.join(map(repr, (self.boxes, *self.others)))}, min_size={self.min_size})"

    def __call__(self, sample: Any) -> Any:
        """Return a sample or a batch without such boxes.

        Raises:
            OptionError: A field is missing, or has another length than the boxes; or labels of the boxes would stay.
        """
        values = sample._asdict() if hasattr(sample, "_asdict") else sample
        if missing := [name for name in (self.boxes, *self.others) if name not in values]:
            raise OptionError(f"{self}: no field {missing[0]!r}; there are {', '.join(values)}")
        boxes = values[self.boxes]
        is_batch = isinstance(boxes, list)
        kept = [self._kept(each) for each in (boxes if is_batch else [boxes])]
        self._refuse_to_leave_labels(sample, values, kept)
        changed = {}
        for name in (self.boxes, *self.others):
            column = values[name] if is_batch else [values[name]]
            lengths = [len(value) if getattr(value, "ndim", 0) else None for value in column]
            if lengths != list(map(len, kept)):
                raise OptionError(f"{self}: {name!r} has {lengths} values; expected one for each box")
            chosen = [value[keep] for value, keep in zip(column, kept, strict=True)]
            changed[name] = chosen if is_batch else chosen[0]
        return sample._replace(**changed) if hasattr(sample, "_replace") else {**sample, **changed}

    def _refuse_to_leave_labels(self, sample: Any, values: Mapping[str, Any], kept: list[torch.Tensor]) -> None:
        """Raise OptionError if there are labels, one for each box, which were not named."""
        for name in getattr(sample, "_lists", ("labels",)):
            if name not in values or name in (self.boxes, *self.others):
                continue
            column = values[name] if isinstance(values[name], list) else [values[name]]
            are_labels = len(column) == len(kept) and all(
                isinstance(value, torch.Tensor) and value.shape == keep.shape and not value.is_floating_point()
                for value, keep in zip(column, kept, strict=True)
            )
            if are_labels and any(map(len, kept)):
                names = ", ".join(map(repr, (self.boxes, *self.others, name)))
                raise OptionError(
                    f"{self}: {name!r} has a label for each box, and would keep those of the boxes that are removed. "
                    f"Write SanitizeBoxes({names})."
                )

    def _kept(self, boxes: Any) -> torch.Tensor:
        """Return which boxes (n, 4) stay, (n,) bool."""
        if not isinstance(boxes, torch.Tensor) or boxes.ndim != 2 or boxes.shape[1] != 4:
            raise OptionError(f"{self}: {self.boxes!r} holds {type(boxes).__name__}; expected tensors (n, 4)")
        return ((boxes[:, 2:] - boxes[:, :2]) >= self.min_size).all(1)
