"""Writes the reference in docs/reference from the docstrings and from the command's parsers.

    python scripts/make_reference.py

A page keeps its own text. What stands between a line such as `<!-- generated: lmdbloader.Loader -->` and the next
`<!-- end -->` is replaced: by the section of a public name, by `names` (all of them in a table), or by `commands` (the
help of every command). A test makes the pages again and compares them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import griffe

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MARKER = re.compile(r"^<!-- generated: (?P<what>\S+) -->\n(?:.*?\n)??<!-- end -->$", re.MULTILINE | re.DOTALL)
_WIDTH = 88
_FLAG = re.compile(r"\s*# doctest: \+\w+(?=$)")
_LIKE_FUNCTIONS = {"lmdbloader.lab.Plan", "lmdbloader.lab.Profile", "lmdbloader.lab.checkup.Finding"}
_EXPLAINING = "lmdbloader.conversion.from_files.convert"
_REFERRING = "The other arguments are [those of `convert`](conversion.md#lmdbloaderconvert)."
_LISTED = {"parameters": "Arguments", "attributes": "Attributes", "raises": "Errors", "warns": "Warnings"}


class Options(griffe.Extension):
    """Gives functions decorated with `with_options` the parameters and the docstring that they have at run time."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite one function (called by griffe for every function)."""
        if any(decorator.callable_path.endswith(".with_options") for decorator in func.decorators):
            _take_options(func)


def _take_options(function: griffe.Function) -> None:
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
    # Every one of these functions has options of `convert`, which explains them; the others refer to it.
    if function.path != _EXPLAINING:
        shared = inspect.signature(importlib.import_module("lmdbloader").convert).parameters
        function.extra["reference"]["shared"] = shared.keys() - written.keys()


def _default(value: object) -> str:
    return "..." if callable(value) else repr(value)


class Package:
    """The public objects, read from the source by griffe."""

    def __init__(self) -> None:
        sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
        loader = griffe.GriffeLoader(
            search_paths=[ROOT, ROOT / "scripts"], docstring_parser="google", extensions=griffe.load_extensions(Options)
        )
        for name in ("lmdbloader", "superresolution", "classification", "training"):
            loader.load(name)
        self._modules = loader.modules_collection

    def find(self, name: str) -> Any:
        """Return the object of a dotted name; if a function hides a module of the same name, the function.

        Raises:
            KeyError: There is none.
        """
        member: Any = self._modules[name]
        member = member.final_target if member.is_alias else member
        return member[member.name] if member.is_module and member.name in member.members else member


# --- One section ---


def section(name: str, obj: Any, *, level: int = 3) -> str:
    """Return the section of a public name: its signature and its docstring, as Markdown."""
    parts = [f"{'#' * level} {_heading(name, obj)}", f"```python\n{signature(name.rpartition('.')[2], obj)}\n```"]
    parts += _docstring(obj)
    if obj.is_class:
        for member in obj.members.values():
            if not member.is_alias and not member.name.startswith("_") and member.is_function and member.docstring:
                parts.append(section(f"{name}.{member.name}", member, level=level + 1))
        parts += _properties(obj)
    return "\n\n".join(parts)


def _heading(name: str, obj: Any) -> str:
    """Return the title of a section: of a class, a function with the same letters would have the same anchor."""
    return f"class {name}" if obj.is_class and name in _LIKE_FUNCTIONS else name


def signature(name: str, obj: Any) -> str:
    """Return the first line of a function or class, on several lines if it is long; of a value its type."""
    if not (obj.is_class or obj.is_function):
        return f"{name}: {obj.annotation}" if obj.annotation else f"{name} = {obj.value}"
    parameters = list(_parameters(obj))
    returns = f" -> {obj.returns}" if obj.is_function and obj.returns else ""
    wrapped = "".join(f"@{label}\n" for label in ("classmethod", "staticmethod") if label in obj.labels)
    head = wrapped + ("class " if obj.is_class else "def ")
    line = f"{head}{name}({', '.join(parameters)}){returns}"
    if obj.is_class and not parameters:
        return f"class {name}"
    if len(line) <= _WIDTH:
        return line
    body = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{head}{name}(\n{body}){returns}"


def _parameters(obj: Any) -> Iterator[str]:
    kinds = griffe.ParameterKind
    marked = False
    for parameter in obj.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.keyword_only and not marked:
            yield "*"
        marked = marked or parameter.kind in (kinds.keyword_only, kinds.var_positional)
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        typed = f": {parameter.annotation}" if parameter.annotation else ""
        has_default = parameter.default is not None and not stars
        equals = f"{' = ' if typed else '='}{parameter.default}" if has_default else ""
        yield f"{stars}{parameter.name}{typed}{equals}"


def _docstring(obj: Any) -> Iterator[str]:
    sections = obj.docstring.parsed if obj.docstring else []
    # A class may explain its arguments where it takes them.
    init = obj.members.get("__init__") if obj.is_class else None
    if init is not None and not init.is_alias and init.docstring:
        sections = [*sections, *(part for part in init.docstring.parsed if part.kind.value != "text")]
    shared = obj.extra["reference"].get("shared", ())
    for part in sections:
        kind = part.kind.value
        if kind == "text":
            yield fenced(part.value)
        elif kind in _LISTED:
            named = ((getattr(item, "name", None) or str(item.annotation).strip("()"), item) for item in part.value)
            shown = [_item(name, item.description) for name, item in named if name not in shared]
            yield f"**{_LISTED[kind]}**\n\n" + "\n".join(shown)
            if shared and kind == "parameters":
                yield _REFERRING
        elif kind in ("returns", "yields"):
            yield f"**{kind.capitalize()}** " + " ".join(_flat(item.description) for item in part.value)
        elif kind == "examples":
            for said, text in part.value:
                yield fenced(text) if said.value == "text" else f"```pycon\n{text}\n```"
        else:
            raise ValueError(f"{obj.path}: found a section {kind} in its docstring, which the reference does not show")


def _properties(obj: Any) -> Iterator[str]:
    found = [
        _item(member.name, member.docstring.value)
        for member in obj.members.values()
        if not member.is_alias and not member.name.startswith("_") and "property" in member.labels and member.docstring
    ]
    if found:
        yield "**Properties**\n\n" + "\n".join(found)


def _item(name: str, text: str) -> str:
    """Return an item of a list, its further paragraphs indented; code in it keeps its lines."""
    blocks = re.split(r"\n\s*\n", fenced(inspect.cleandoc(text)))
    first, *others = [block if block.startswith(("```", "- ")) else _flat(block) for block in blocks]
    rest = "".join("\n\n" + re.sub(r"(?m)^(?=.)", "  ", block) for block in others)
    return f"- `{name}`: {first}{rest}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def fenced(docstring: str) -> str:
    """Return a docstring with a fence around each of its doctests, which end at an empty line.

    >>> print(fenced("Add.\\n\\n>>> 1 + 1  # doctest: +SKIP\\n2\\n\\nThat is all."))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    That is all.
    """
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        begins = line.startswith(">>> ") and not inside
        ends = inside and not line.strip()
        lines += ["```pycon"] * begins + ["```"] * ends + [_FLAG.sub("", line)]
        inside = begins or (inside and not ends)
    return "\n".join(lines + ["```"] * inside)


# --- All names, all commands ---


def sections_of(text: str) -> list[str]:
    """Return what a page has sections of: the public names, and `names` or `commands`."""
    return [found["what"] for found in MARKER.finditer(text)]


def names(package: Package, pages: Sequence[Path]) -> str:
    """Return a table of all public names, each with its page and its first sentence."""
    rows = []
    for page in pages:
        for name in sections_of(page.read_text("utf-8")):
            if "." in name:
                obj = package.find(name)
                first = re.split(r"(?<=\.)\s", _flat(obj.docstring.value), maxsplit=1)[0] if obj.docstring else ""
                first = first.replace("|", "\\|")
                anchor = _heading(name, obj).lower().replace(".", "").replace(" ", "-")
                rows.append(f"| [`{name}`]({page.name}#{anchor}) | {first} |")
    return "\n".join(["| name | |", "| --- | --- |", *sorted(rows, key=str.lower)])


def commands() -> str:
    """Return the help of the command and of each of its commands."""
    from lmdbloader.cli import make_parser

    parser = make_parser()
    # argparse reads the terminal's width, and newer Pythons color its output.
    with mock.patch.dict(os.environ, {"COLUMNS": "82", "NO_COLOR": "1"}):
        parts = [_text(parser.format_help())]
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    parts += [f"## {name}", _text(getattr(command, "format_all_help", command.format_help)())]
    return "\n\n".join(parts)


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


# --- Pages ---


def made(path: Path, package: Package, pages: Sequence[Path]) -> str:
    """Return a page with its generated parts made again."""

    def part(found: re.Match[str]) -> str:
        what = found["what"]
        text = names(package, pages) if what == "names" else commands() if what == "commands" else ""
        text = text or section(what, package.find(what))
        return f"<!-- generated: {what} -->\n{text}\n<!-- end -->"

    return MARKER.sub(part, path.read_text("utf-8"))


def pages_of(folder: Path = REFERENCE) -> list[Path]:
    """Return the pages that have generated parts."""
    return [path for path in sorted(folder.glob("*.md")) if MARKER.search(path.read_text("utf-8"))]


def main() -> None:
    """Write every page that has changed."""
    package, pages = Package(), pages_of()
    for path in pages:
        text = made(path, package, pages)
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
