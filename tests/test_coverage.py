"""docs/project/coverage.md has every row, and what it names is there: files, pages, tests, options, stages."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_documented_commands import parse

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "project" / "coverage.md"
COUNTS = {"A": 46, "B": 22, "C": 26, "D": 27}
STATES = {"measured", "tested", "GPU stage", "in prose", "planned"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page.

    Attributes:
        name: Its letter and number.
        claim: What a document says, in our words.
        places: The modules, scripts, tests and pages.
        commands: Markdown, the commands in code spans; words where there is none.
        seen: The state in bold, the date, the figure.
    """

    name: str
    claim: str
    places: str
    commands: str
    seen: str

    @property
    def state(self) -> str:
        """The word in bold at the beginning."""
        found = re.match(r"\*\*([^*]+)\*\*", self.seen)
        return found[1] if found else ""


def rows_of(text: str) -> list[Row]:
    """Return the rows of the page's tables, in order."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| *[A-D]\d+ *\|", line)
    ]
    assert {len(row) for row in cells} <= {5}, "a row has more or fewer than five cells"
    return [Row(*row) for row in cells]


def spans(text: str) -> list[str]:
    """Return what is in a cell's code spans."""
    return re.findall(r"`([^`]+)`", text)


ROWS = rows_of(PAGE.read_text("utf-8"))
COMMANDS = sorted({command for row in ROWS for command in spans(row.commands)})


# What may be wrong with a command


def problem_of(command: str) -> str:
    """Return why a command could not be run, without running it; an empty string if it could."""
    program, *words = shlex.split(command)
    if program == "bash" and words[:1] == ["-n"] and len(words) == 2:
        return "" if (ROOT / words[1]).is_file() else f"{words[1]} is not there"
    if program == "python" and words[:2] == ["-m", "pytest"]:
        return problem_of_pytest(words[2:])
    if program in ("lmdbloader", "make") or (program == "python" and words[0].startswith(("scripts/", "benchmarks/"))):
        with pytest.MonkeyPatch.context() as patch:
            return said(lambda: parse([program, *words], patch))
    return "not a kind of command that this page has"


def said(run: Callable[[], Any]) -> str:
    """Run a parser; return the last line that it prints where it refuses, otherwise an empty string."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            run()
        except (SystemExit, AssertionError, FileNotFoundError) as error:
            return (printed.getvalue().strip() or f"{error}").splitlines()[-1]
    return ""


@functools.cache
def names_of_tests(file: str) -> tuple[str, ...]:
    """Return the names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return tuple(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def problem_of_pytest(words: list[str]) -> str:
    """Return what is wrong with the files and the choice of tests; each word of the choice has to select some."""
    parser = argparse.ArgumentParser(prog="pytest", add_help=False)
    parser.add_argument("files", nargs="+")
    parser.add_argument("-k", dest="chosen", default="")
    parsed: list[argparse.Namespace] = []
    refused = said(lambda: parsed.append(parser.parse_args(words)))
    if refused:
        return refused
    (options,) = parsed
    missing = [file for file in options.files if not (ROOT / file).is_file()]
    if missing:
        return f"{missing[0]} is not there"
    names = [name for file in options.files for name in names_of_tests(file)]
    alternatives = options.chosen.split(" or ")
    idle = [word for word in alternatives if not any(word in name for name in names)]
    return f"no test has {idle[0]!r} in its name" if idle or not names else ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("lmdbloader plan --batch-size 8 --step-secs 1", "unrecognized arguments: --step-secs 1"),
        ("python scripts/demo.py --secondss 20", "unrecognized arguments: --secondss 20"),
        ("python scripts/nothing.py", "No such file"),
        ("python benchmarks/gpu/run.py --stages feed --out x", "invalid choice"),
        ("python -m pytest tests/test_nothing.py", "is not there"),
        ("python -m pytest tests/test_coverage.py -k 'command or comand'", "'comand'"),
        ("python -m pytest tests/test_coverage.py --lf", "unrecognized arguments"),
        ("make dema", "dema"),
        ("bash -n scripts/slurm/nothing.sbatch", "is not there"),
        ("rm -r try", "not a kind of command"),
    ],
)
def test_a_planted_mistake_in_a_command_is_found(command: str, why: str) -> None:
    assert why in problem_of(command)


# The page


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row.name for row in ROWS] == [
        f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)
    ]


def test_every_row_is_complete() -> None:
    assert {row.name: found for row in ROWS if (found := list(complaints(row)))} == {}


def complaints(row: Row) -> Iterator[str]:
    """Yield what is missing in a row."""
    if not all((row.claim, row.places, row.commands, row.seen)):
        yield "a cell is empty"
    if "TODO" in row.commands + row.seen:
        yield "something is still to be done"
    if row.state not in STATES:
        yield f"{row.state!r} is not a state; there are {', '.join(sorted(STATES))}"
    pages = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", row.places)]
    if not pages and not spans(row.places):
        yield "no place is named"
    yield from (f"{name} is not there" for name in spans(row.places) if not (ROOT / name).exists())
    yield from (f"docs/{page} is not there" for page in pages if not (PAGE.parent / page).is_file())
    commands = spans(row.commands)
    if not commands and row.state not in ("in prose", "planned"):
        yield "no command shows it"
    stages = any(command.startswith("python benchmarks/gpu/run.py --stages ") for command in commands)
    if stages != ("GPU stage" in row.seen):
        yield "a row is of a GPU stage if one of its commands runs one"
    if row.state not in ("in prose", "planned") and not re.search(r"\b2026-\d\d-\d\d\b", row.seen):
        yield "no date"


def test_every_command_is_one_that_can_be_run() -> None:
    assert {command: problem for command in COMMANDS if (problem := problem_of(command))} == {}
