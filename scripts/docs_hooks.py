"""MkDocs hooks: pages for the command line and notebooks; and drawings inlined into pages."""

from __future__ import annotations

import argparse
import configparser
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
CLI_PAGE = "reference/cli.md"
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

    from lmdbloader.cli import make_parser
    from scripts.docs_notebooks import page

    files.append(File.generated(config, CLI_PAGE, content=cli_page(make_parser())))
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
