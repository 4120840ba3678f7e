"""The forms of samples and batches: named tuples, and on request tuples or dicts for code that expects those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from lmdbloader.errors import OptionError

Form = Literal["tuple", "dict"] | Mapping[str, str] | None


class ListName(str):
    """A key of a sample's dict, equal to its text, whose values are a list in a batch even if all have one shape."""

    __slots__ = ()


class JsonName(str):
    """A key of a sample's dict, equal to its text, whose values are as JSON has them, also lists and dicts."""

    __slots__ = ()


def check_form(as_: Any, names: Sequence[str] | None) -> Form:
    """Return a checked form; a mapping is copied.

    Args:
        as_: As given.
        names: The fields of what gets the form; None if a function may change them.

    Raises:
        OptionError: It is not a form, or it names a field that does not exist.
    """
    if as_ is None or (isinstance(as_, str) and as_ in ("tuple", "dict")):
        return cast(Form, as_)
    is_table = isinstance(as_, Mapping) and bool(as_)
    if not is_table or not all(isinstance(text, str) for pair in as_.items() for text in pair):
        raise OptionError(
            f"as_={as_!r}: expected 'tuple', 'dict', None for named tuples, or a dict from new names to fields, such "
            "as {'pixel_values': 'image', 'labels': 'label'}"
        )
    if names is not None and (missing := [field for field in as_.values() if field not in names]):
        raise OptionError(f"as_={as_!r}: no field {missing[0]!r}; there are {', '.join(names)}")
    return dict(as_)


def in_form(value: Any, as_: Form, *, is_batch: bool = False) -> Any:
    """Return a sample or a batch in a form.

    Args:
        value: A named tuple, or a dict that a function has made of one.
        as_: "tuple" gives a tuple, "dict" a dict of the fields, a mapping a dict with its names; None changes nothing.
        is_batch: Whether it is a batch; the names of a sample's dict say how `collate` makes one of them.

    Raises:
        OptionError: It is something else, or lacks a field.
    """
    if as_ is None:
        return value
    if as_ == "tuple" and type(value) is tuple:
        return value
    if hasattr(value, "_asdict"):
        if as_ == "tuple":
            return tuple(value)
        marks = {} if is_batch else marks_of(value)
        value = {marks.get(name, str)(name): item for name, item in value._asdict().items()}
    if not isinstance(value, dict) or as_ == "tuple":
        raise OptionError(
            f"as_={as_!r}: a function returned a {type(value).__name__}; expected a named tuple of fields. Return "
            "`sample._replace(field=...)` from it, or leave out as_."
        )
    if isinstance(as_, str):
        return value
    if missing := [field for field in as_.values() if field not in value]:
        raise OptionError(f"as_={as_!r}: no field {missing[0]!r}; there are {', '.join(map(str, value))}")
    marks = marks_of(value)
    return {marks.get(field, str)(name): value[field] for name, field in as_.items()}


def marks_of(sample: Any) -> dict[str, type[str]]:
    """Return the fields of a sample that torch's collate function would not make the same batch of.

    Returns:
        By name: ListName, of values that are a list in a batch even if all have one shape, or JsonName.
    """
    if isinstance(sample, dict):
        return {name: type(name) for name in sample if isinstance(name, ListName | JsonName)}
    lists, json = getattr(sample, "_lists", ()), getattr(sample, "_json", ())
    return {**dict.fromkeys(lists, ListName), **dict.fromkeys(json, JsonName)}


def num_samples(batch: Any) -> int:
    """Return the number of samples of a batch in any form."""
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0])
