"""Renders docstrings for the site: a doctest between paragraphs becomes a code block."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FLAG = re.compile(r"\s*# doctest: \+\w+(?=$)")


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring; Markdown would take `>>>` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring (called by griffe for every object)."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


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
