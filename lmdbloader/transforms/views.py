"""Several views of each image from one read: lists of transforms, and their names in a Loader's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lmdbloader.base.arguments import listed
from lmdbloader.errors import OptionError
from lmdbloader.transforms.base import SeveralViews, Transform
from lmdbloader.transforms.functions import described, is_compiled

# Random choices number views.
_MOST = 2**16


class Views(SeveralViews):
    """Make several views of each sample from one read: a list of transforms for each, alone or in named groups.

    In a batch, a field of images or masks is a list of tensors, one for each view in their order; boxes and points are
    a list for each view. Other fields come once. Views may differ in size and type. Each makes its own random choices,
    which depend on the seed, the epoch, the sample and the number of the view; those of the first view are those of a
    Loader with its list alone. Transforms before `Views` in a Loader's list are drawn once for all views; functions
    after it get the whole batch.

    `as_` of a Loader names views and groups: {"x1": "image[0]", "crops": "image.local", "label": "label"}.

    >>> from lmdbloader.transforms import RandomHorizontalFlip, RandomResizedCrop
    >>> flip = RandomHorizontalFlip()
    >>> views = Views(global_=2 * [[RandomResizedCrop(224), flip]], local=6 * [[RandomResizedCrop(96), flip]])
    >>> len(views)
    8

    Attributes:
        lists: The transforms of each view.
        groups: The first view of each group and the end, which is not in it, by name.
    """

    __slots__ = ("groups", "lists")

    def __init__(self, *lists: Sequence[Transform], **groups: Sequence[Sequence[Transform]]) -> None:
        """Check the lists.

        Args:
            lists: A list of transforms for each view; it may be empty.
            groups: In place of them, lists of such lists by name, such as `local=8 * [[RandomResizedCrop(96)]]`.

        Raises:
            OptionError: One is no list of compiled transforms, there are no views, or both kinds of arguments.
        """
        if bool(lists) == any(map(len, groups.values())):
            raise OptionError(
                f"Views: {'lists and groups; expected one or the other' if lists else 'no views'}. Write "
                "Views([...], [...]), or Views(global_=2 * [[...]], local=8 * [[...]])."
            )
        self.lists: tuple[tuple[Transform, ...], ...] = tuple(_checked(each, "") for each in lists)
        self.groups: dict[str, tuple[int, int]] = {}
        for name, group in groups.items():
            first = len(self.lists)
            self.lists += tuple(_checked(each, name) for each in listed(name, group))
            self.groups[name] = first, len(self.lists)
        if len(self.lists) > _MOST:
            raise OptionError(f"Views: {len(self.lists)} views; expected at most {_MOST}")

    def __len__(self) -> int:
        """Return the number of views."""
        return len(self.lists)

    def __iter__(self) -> Iterator[tuple[Transform, ...]]:
        return iter(self.lists)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Views) and (self.lists, self.groups) == (other.lists, other.groups)

    def __hash__(self) -> int:
        return hash(self.lists)

    def __repr__(self) -> str:
        lists = [str(list(each)) for each in self.lists]
        if not self.groups:
            return f"Views({', '.join(lists)})"
        groups = (f"{name}=[{', '.join(lists[first:end])}]" for name, (first, end) in self.groups.items())
        return f"Views({', '.join(groups)})"

    def names_of(self, field: str) -> list[str]:
        """Return what `as_` may name of a field.

        >>> Views(a=[[]], b=2 * [[]]).names_of("image")
        ['image[0]', 'image[1]', 'image[2]', 'image.a', 'image.b']
        """
        return [f"{field}[{k}]" for k in range(len(self))] + [f"{field}.{name}" for name in self.groups]

    def named(self, batch: Any) -> Any:
        """Return a batch as a dict that also has what `as_` may name; what is no named tuple or dict, unchanged."""
        values: Any = batch._asdict() if hasattr(batch, "_asdict") else batch
        if not isinstance(values, dict):
            return batch
        found = dict(values)
        for field, views in values.items():
            if isinstance(views, list) and len(views) == len(self):
                groups = (views[first:end] for first, end in self.groups.values())
                found.update(zip(self.names_of(field), [*views, *groups], strict=True))
        return found


def _checked(transforms: Any, group: str) -> tuple[Transform, ...]:
    """Return the transforms of one view.

    Raises:
        OptionError: They are no list of compiled transforms.
    """
    if isinstance(transforms, Transform):
        line = f"{group}=[[{transforms}, ...], [...]]" if group else f"[{transforms}, ...], [...]"
        raise OptionError(f"Views: {transforms} is a transform; expected a list of them for each view: Views({line})")
    found = listed("Views", transforms)
    for t in found:
        if isinstance(t, Transform) and not is_compiled(t):
            continue
        if isinstance(t, list | tuple):
            raise OptionError("Views: a list of lists; expected Views(*lists), or a name for the group: Views(a=lists)")
        raise OptionError(
            f"Views: {described(t)} is not a compiled transform of lmdbloader.transforms. Functions of whole batches "
            "come after the views: transforms=[Views(...), function]."
        )
    return found


def split_views(found: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], Views]:
    """Return the transforms of a Loader as it keeps them, those before and after its views, and these.

    Lists in place of `Views` are views.

    Raises:
        OptionError: There are two `Views`, a transform comes after them, or a function that does not suit them.
    """
    found = tuple(found)
    places = [k for k, t in enumerate(found) if isinstance(t, Views | list | tuple)]
    first, end = places[0], places[-1] + 1
    views = found[first] if isinstance(found[first], Views) else None
    if (views is not None and len(places) > 1) or places != list(range(first, end)):
        raise OptionError("transforms: several Views; expected one, with a list for each view: Views([...], [...])")
    if views is None:
        if any(isinstance(found[k], Views) for k in places):
            raise OptionError("transforms: lists and Views; expected all lists in one Views([...], [...])")
        if len(places) == 1:
            raise OptionError("transforms: a list in a list. Write transforms=[...]; or Views([...]) for one view.")
        views = Views(*found[first:end])
    before, after = found[:first], found[end:]
    for t in after:
        _check_after(t)
    for t in before:
        if not isinstance(t, Transform):
            raise OptionError(f"transforms: {described(t)} comes before Views. Functions come after the views.")
    return (*before, views, *after), (*before, *after), views


def _check_after(function: Any) -> None:
    """Raise OptionError if a transform or a function cannot come after views."""
    if isinstance(function, Transform) and not is_compiled(function):
        raise OptionError(
            f"transforms: {function} comes after Views. Put it at the end of each list: Views([..., {function}], ...)."
        )
    from lmdbloader.transforms.batch_functions import CutMix, MixUp
    from lmdbloader.transforms.boxes import SanitizeBoxes
    from lmdbloader.transforms.of_torchvision import is_torchvision, parts_of

    if any(map(is_torchvision, parts_of(function))):
        line = "lambda batch: batch._replace(image=[function(images) for images in batch.image])"
    elif is_compiled(function) or isinstance(function, MixUp | CutMix | SanitizeBoxes):
        line = "def function(batch), in which batch.image is a list of tensors"
    else:
        return
    raise OptionError(f"transforms: {described(function)} does not take several views. Write a function: {line}.")
