"""MkDocs hooks: pages for the command line, names of other libraries, notebooks; and drawings inlined into pages."""

from __future__ import annotations

import argparse
import configparser
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from lmdbloader.base.foreign_names import Table
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
CLI_PAGE = "reference/cli.md"
NAMES_PAGE = "reference/names.md"
_NAMES_HEAD = """\
# Names of other libraries

An argument that another library has is accepted if it means the same here, such as FFCV's
`Loader(ds, 16, order=OrderOption.RANDOM)`. Any other is an `OptionError` that says what to write, and for a mistyped
one it names the right one. The same holds for attributes of datasets: `ds.filter` is an `AttributeError` with the line
`dataset.where("label == 3")`.
"""
_TITLES = {"attributes": "Attributes of a dataset", "samples": "Attributes of a sample or a batch"}
_CLI_HEAD = """\
---
tags: [CLI, command line]
---

# Command line

The output of `lmdbloader --help` and `lmdbloader COMMAND --help`. `python -m lmdbloader` is the same command.
"""


def commands_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of every command, in the order of the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def cli_page(parser: argparse.ArgumentParser) -> str:
    """Return the page of a command: its help, and a section with the help of each of its commands."""
    # argparse reads the terminal's width, and newer Pythons colour its output.
    with mock.patch.dict(os.environ, {"COLUMNS": "82", "NO_COLOR": "1"}):
        parts = [_CLI_HEAD, _block(parser.format_help())]
        for name, command in commands_of(parser):
            parts += [f"## {name}\n", _block(command.format_help())]
    return "\n".join(parts)


class _Value:
    """Stands for the value of an argument."""

    def __repr__(self) -> str:
        return "VALUE"


def names_page(tables: Mapping[str, Table]) -> str:
    """Return the page of the names that other libraries have: a table for each function."""
    parts = [_NAMES_HEAD]
    for call, table in tables.items():
        parts.append(f"## {_TITLES.get(call, call)}\n\n| name | of | here |\n| --- | --- | --- |")
        for name, entry in table.items():
            accepted = [
                f"`{value!r}` is " + (", ".join(f"`{own}={meant!r}`" for own, meant in same.items()) or "accepted")
                for value in (True, False, None, 0, "", {}, "random", "sequential", "auto")
                if (same := entry.same(value)) is not None
            ]
            # Two pairs of brackets would be a link, except in code.
            advice = re.sub(r"(`[^`]*`)|([\[\]])", lambda found: found[1] or f"\\{found[2]}", entry.advice(_Value()))
            here = ". ".join(filter(None, ["; ".join(accepted), advice[:1].upper() + advice[1:]]))
            parts.append(f"| `{name}` | {entry.of} | {here} |")
        parts[-1] += "\n"
    return "\n".join(parts)


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    """Link to the repository if setup.cfg names it (MkDocs calls this once it has read mkdocs.yml)."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg", "utf-8")
    if url := metadata.get("repository", "url", fallback="").strip():
        config.repo_url, config.repo_name = url, "lmdbloader"
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages of the command line and of the notebooks (MkDocs calls this once it has listed docs/)."""
    from mkdocs.structure.files import File

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from lmdbloader.base.foreign_names import TABLES

    from lmdbloader.cli import make_parser
    from scripts.docs_notebooks import page

    files.append(File.generated(config, CLI_PAGE, content=cli_page(make_parser())))
    files.append(File.generated(config, NAMES_PAGE, content=names_page(TABLES)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Put drawings into the page, where they take its colours in light and dark (MkDocs calls this for each page)."""

    def inlined(found: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found["source"]))
        drawing = (Path(config.docs_dir) / source).read_text("utf-8")
        labelled = drawing.replace("<svg ", f'<svg aria-label="{found["text"]}" ', 1)
        return f'<div class="drawing-frame">{labelled}</div>'

    return re.sub(r'<img alt="(?P<text>[^"]*)" src="(?P<source>[^":]+\.svg)" ?/?>', inlined, html)


def _block(text: str) -> str:
    return f"~~~text\n{text.rstrip()}\n~~~\n"
