"""The labels that `dataset.targets` returns: a list that cannot be changed in place."""

from __future__ import annotations

from typing import Any, NoReturn

from lmdbloader.errors import OptionError

OTHER_LABELS = (
    "batches are read from the file and would not change. For other labels, a tensor with one for each sample, write "
    "Loader(dataset, ..., transforms=[lmdbloader.transforms.WithIndices(lambda batch, i: "
    "batch._replace(label=labels[i]))]), or a subclass with its own __getitem__. For fewer samples write "
    "dataset.select(numbers)."
)


class Targets(list[int]):
    """Labels as a list, which is equal to a plain one; copies, also by `list`, are plain lists."""

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise OptionError(
            f"dataset.targets cannot be changed in place (a copy can, list(dataset.targets)): {OTHER_LABELS}"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (tuple(self),)
