"""How docstrings become pages: a doctest that stands between paragraphs is shown as the code that it is."""

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
        """Rewrite an object's docstring (griffe calls this for everything that it reads)."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


class Options(griffe.Extension):
    """Shows the keyword arguments of functions that take them from an options class, which griffe cannot see."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Give a decorated function the signature and docstring that it has at run time."""
        if not any(str(decorator.value).startswith("with_options(") for decorator in func.decorators):
            return
        real = getattr(importlib.import_module(func.module.path), func.name)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    name,
                    annotation=found.annotation,
                    kind=griffe.ParameterKind(found.kind.description),
                    default=None if found.default is inspect.Parameter.empty else _source_of(found.default),
                )
                for name, found in inspect.signature(real).parameters.items()
            )
        )
        func.docstring = griffe.Docstring(inspect.getdoc(real) or "", parent=func, parser="google")


def _source_of(default: Any) -> str:
    """Return a default value as the source would show it; of a function, its name."""
    return "lambda line: None" if callable(default) else repr(default)


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
