"""The labels that `dataset.targets` returns: a list that cannot be changed in place."""

from __future__ import annotations

from typing import Any, NoReturn

from lmdbloader.errors import OptionError

OTHER_LABELS = (
    "samples are read from the dataset's file, so this would change no batch. For other labels write labels = "
    "torch.tensor([...]), one for each sample, and Loader(dataset, ..., transforms=[WithIndices(lambda batch, i: "
    "batch._replace(label=labels[i]))]), with WithIndices of lmdbloader.transforms; or a subclass with its own "
    "__getitem__. For fewer samples write dataset.select(numbers)."
)


class Targets(list[int]):
    """Labels as a list, which is equal to a plain one; copies, also by `list`, are plain lists."""

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise OptionError(f"dataset.targets cannot be changed in place, list(dataset.targets) can: {OTHER_LABELS}")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (tuple(self),)
