"""A study, `print`ed as text, and written to JSON and read back with every type checked."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lmdbloader.errors import FormatError
from lmdbloader.lab.study.rows import StudyFigures
from lmdbloader.lab.study.text import as_text

STUDY_VERSION = 1
T = TypeVar("T")
_NAMES = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Study(StudyFigures):
    """A whole study. `print(study)` shows its tables; a section that was not asked for is empty.

    Attributes:
        release: Of lmdbloader that measured.
        created: When it ended, as "2026-01-31T12:00:00Z".
        seconds: How long all of it took.
        environment: All that reproduces it: `machine.describe_environment(path)`.
        machine: The same as text to show: (name, value) of each line, and the load before the study.
        cores: Cores that the process could use.
        dataset: The dataset.
        baseline: The folder of files; None if there was none.
        settings: How.
        sweep: Batch sizes, crops, sources, and pinned memory.
        threads: Scaling by threads.
        oversubscription: More threads or workers than cores.
        isolation: Several processes at the same time.
        notes: The parts that were left out and why, in sentences.
        cold: Passes from a cold page cache; empty in studies of older releases.
    """

    def __str__(self) -> str:
        """Return the conclusion, the tables and the findings in 100 columns, and lines to paste."""
        return as_text(self)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {"study_version": STUDY_VERSION, **to_plain(self)}

    @classmethod
    def from_json(cls, value: Any) -> Study:
        """Return the study from the result of `as_json`.

        Args:
            value: Parsed JSON.

        Raises:
            FormatError: It is not a study, of another version, or an entry is missing, unknown or of another type.
        """
        if not isinstance(value, Mapping) or "study_version" not in value:
            raise FormatError(
                f"study: found {value!r:.80}; expected the JSON object that `lmdbloader bench --json` writes"
            )
        found = value["study_version"]
        if found != STUDY_VERSION or isinstance(found, bool):
            raise FormatError(
                f"study: version {found!r:.80}; this release reads {STUDY_VERSION}. Measure again, or use the "
                "release that measured."
            )
        return from_plain(cls, {key: entry for key, entry in value.items() if key != "study_version"}, "study")


def to_plain(value: Any) -> Any:
    """Return a value with every dataclass in it as a dict, every tuple as a list.

    Args:
        value: Dataclasses, tuples, lists and mappings of them, text, numbers, None.

    Raises:
        FormatError: A number is not finite: JSON has no such number.

    >>> to_plain({"edges": (0.5, 1.0)})
    {'edges': [0.5, 1.0]}
    """
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(f"JSON has no number for {value}; give None if there is no figure")
    return value


def from_plain(kind: type[T], value: Any, where: str) -> T:
    """Return a dataclass made of the result of `to_plain`, with every type checked.

    Args:
        kind: The dataclass; its fields are dataclasses, text, numbers, bools, None, literals, mappings and tuples.
        value: Parsed JSON.
        where: Its name in error messages.

    Raises:
        FormatError: A field is missing, unknown or of another type.
    """
    made: T = _checked(kind, value, where)
    return made


def _checked(kind: Any, value: Any, where: str) -> Any:
    """Return a value as a type that may also be a union, a tuple or a mapping."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (inner,) = [choice for choice in get_args(kind) if choice is not type(None)]
        return _checked(inner, value, where)
    if origin is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise _unlike(where, value, f"one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _unlike(where, value, "a list")
        return tuple(_checked(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None:  # Mapping[str, ...]
        if not isinstance(value, Mapping):
            raise _unlike(where, value, "an object")
        return {str(key): _checked(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(kind, value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _unlike(where, value, "an object")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    # A field that has a default is younger than the others.
    younger = {f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    for name in names:
        if name not in value and name not in younger:
            raise FormatError(f"{where}: {name!r} is missing; there are {', '.join(map(str, value)) or 'no entries'}")
    for name in value:
        if name not in names:
            raise FormatError(f"{where}: unknown entry {name!r:.80}; expected {', '.join(names)}")
    return kind(**{name: _checked(hints[name], value[name], f"{where}.{name}") for name in names if name in value})


def _scalar(kind: type, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif type(value) is kind:
        return value
    raise _unlike(where, value, _NAMES[kind])


def _unlike(where: str, value: Any, expected: str) -> FormatError:
    return FormatError(f"{where} is {value!r:.80}; expected {expected}")
