"""Griffe extension for the reference: doctests become code blocks, and options made at run time become parameters."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

_FLAG = re.compile(r"\s*# doctest: \+\w+(?=$)")


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring; Markdown would take `>>>` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring (called by griffe for every object)."""
        if obj.is_function and any(decorator.callable_path.endswith(".with_options") for decorator in obj.decorators):
            take_options(obj)
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def take_options(function: griffe.Function) -> None:
    """Give a function the parameters and the docstring that its decorator `with_options` makes at run time."""
    made = getattr(importlib.import_module(function.module.path), function.name)
    written = {parameter.name: parameter.annotation for parameter in function.parameters}
    function.parameters = griffe.Parameters(
        *(
            griffe.Parameter(
                name,
                annotation=written.get(name, str(parameter.annotation)),
                kind=griffe.ParameterKind(parameter.kind.description),
                default=None if parameter.default is parameter.empty else _default(parameter.default),
            )
            for name, parameter in inspect.signature(made).parameters.items()
        )
    )
    if function.docstring is not None:
        function.docstring.value = inspect.getdoc(made) or ""


def _default(value: object) -> str:
    return "..." if callable(value) else repr(value)


def fenced(docstring: str) -> str:
    """Return a docstring with a fence around each of its doctests, which end at an empty line.

    >>> print(fenced("Add.\\n\\n>>> 1 + 1  # doctest: +SKIP\\n2\\n\\nThat is all."))
    Add.
    <BLANKLINE>
    ~~~pycon
    >>> 1 + 1
    2
    ~~~
    <BLANKLINE>
    That is all.
    """
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        begins = line.startswith(">>> ") and not inside
        ends = inside and not line.strip()
        lines += ["~~~pycon"] * begins + ["~~~"] * ends + [_FLAG.sub("", line)]
        inside = begins or (inside and not ends)
    return "\n".join(lines + ["~~~"] * inside)
