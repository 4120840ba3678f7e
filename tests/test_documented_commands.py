"""Every command in README.md and docs/ is one that its program accepts: all are parsed, none is run."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from test_snippets import DOCUMENTS, ROOT, SHELL

from lmdbloader import cli

PYTHON = re.compile(r"(.*/)?python3?|torchrun")
# What a script for Slurm passes its arguments to.
SLURM = {
    "scripts/slurm/convert.sbatch": ["lmdbloader", "convert", "photos", "out.lmdb"],
    "scripts/slurm/train.sbatch": ["python", "scripts/train_classifier.py", "train.lmdb", "--val", "val.lmdb"],
}
# Their parsers pass what they do not know to pytest.
PASS_ON = {"test", "test-floors", "test-frameworks", "test-python313", "test-aarch64", "test-windows", "docs"}
TARGETS = dict(re.findall(r"^([a-z][a-z0-9-]*):.*?## (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
VARIABLES = {"PYTHON", "PIL", "TORCH_INDEX", "IMAGES", "ARGS"}


def shell_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the text of every shell block, also of those that tests do not run."""
    for found in re.finditer(r"^([ \t]*)(`{3,}|~{3,})(\w+)\n(.*?)^[ \t]*\2", text, re.MULTILINE | re.DOTALL):
        if found[3] in SHELL:
            yield text.count("\n", 0, found.start(4)) + 1, found[4]


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line: of its pipes, substitutions and `bash -c '...'`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if re.fullmatch(r"[();<>|&]+", word):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def commands_in(block: str) -> Iterator[list[str]]:
    """Yield the commands of ours in a block, with the variables that the block sets."""
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", block).splitlines():
        line = re.sub(
            r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), line.strip().removeprefix("$ ")
        )
        for words in simple_commands(line):
            yield from commands_of(words, variables)


def commands_of(words: Sequence[str], variables: dict[str, str]) -> Iterator[list[str]]:
    """Yield the commands of ours that a simple command starts; note the variables that it sets."""
    while words and (found := re.fullmatch(r"(\w+)=(.*)", words[0], re.DOTALL)):
        if found[2] != "$":  # the output of a command, which is one word
            variables[found[1]] = found[2]
        words = words[1:]
    for at, word in enumerate(words):
        if word == "--wrap" or (word == "-c" and at and words[at - 1] == "bash"):
            for inner in simple_commands(words[at + 1].replace("\\$", "$")):
                yield from commands_of(inner, variables)
            return
    if not words or words[0] in ("pip", "git"):
        return
    if words[0] == "docker":  # an image may be called like the command
        starts = [at for at, word in enumerate(words) if word == "lmdbloader" and at][1:]
        words = words[starts[0] :] if starts else []
    if words and words[0] == "sbatch":
        script = next((at for at, word in enumerate(words) if word in SLURM), None)
        if script is not None:
            yield [*SLURM[words[script]], *words[script + 1 :]]
    elif words and words[0] in ("taskset", "time", "nice", "srun"):
        start = next(at for at, word in enumerate(words) if word == "lmdbloader" or PYTHON.fullmatch(word))
        yield list(words[start:])
    elif words and (words[0] in ("lmdbloader", "make") or PYTHON.fullmatch(words[0])):
        yield list(words)


class Parsed(Exception):
    """The program has taken its arguments."""


def parse(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    """Have a command's own parser take its arguments; SystemExit if it refuses them."""
    if words[0] == "make":
        parse_make(words[1:], patch)
    elif words[0] == "lmdbloader":
        parse_lmdbloader(words[1:], patch)
    elif "-m" in words[:2]:
        if words[2] == "lmdbloader":
            parse_lmdbloader(words[3:], patch)
    else:
        place = next((at for at, word in enumerate(words) if re.match(r"(scripts|benchmarks)/.*\.py$", word)), None)
        if place is not None:
            parse_script(ROOT / words[place], words[place + 1 :], patch)


def parse_make(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        assert name in (VARIABLES if equals else TARGETS), f"make has no {word}"
        if equals and name == "ARGS" and not PASS_ON & {*words}:
            line = re.search(rf"^{words[0]}:.*\n(?:\t.*\n)*", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            script = line and re.search(r"(?:scripts|benchmarks)/\S+\.py", line[0])
            if script:
                parse_script(ROOT / script[0], shlex.split(value), patch)


def parse_lmdbloader(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    make = cli.make_parser

    def make_harmless(command_name: str | None = None) -> argparse.ArgumentParser:
        parser = make(command_name)
        for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
            command.set_defaults(run=lambda _: 0)
        return parser

    patch.setattr(cli, "make_parser", make_harmless)
    assert cli.main(words) == 0


def parse_script(script: Path, words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    """Run a script until its parser has taken the arguments."""
    originals = {name: getattr(argparse.ArgumentParser, name) for name in ("parse_args", "parse_known_args")}

    def stopping(name: str) -> Callable[..., NoReturn]:
        def take_and_stop(self: argparse.ArgumentParser, *args: Any) -> NoReturn:
            for known, original in originals.items():  # they call each other
                patch.setattr(argparse.ArgumentParser, known, original)
            originals[name](self, *args)
            raise Parsed

        return take_and_stop

    for name in originals:
        patch.setattr(argparse.ArgumentParser, name, stopping(name))
    patch.setattr(sys, "argv", [str(script), *words])
    patch.setattr(sys, "path", [str(script.parent), str(ROOT / "scripts"), *sys.path])
    before = set(sys.modules)
    try:
        with pytest.raises(Parsed):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        # Modules of several folders have the same names.
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "benchmarks")):
                del sys.modules[name]


def documented() -> list[tuple[str, str]]:
    """Return the place and the words of every command of ours in a shell block."""
    return [
        (f"{document.relative_to(ROOT)}:{line}", shlex.join(words))
        for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]
        for line, block in shell_blocks(document.read_text("utf-8"))
        for words in commands_in(block)
    ]


def test_every_documented_command_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    places = {command: place for place, command in reversed(documented())}
    assert len(places) > 100
    refused = []
    for command, place in places.items():
        with pytest.MonkeyPatch.context() as patch:
            try:
                parse(shlex.split(command), patch)
            except (SystemExit, AssertionError) as error:
                refused.append(f"{place}: {command}: {error} {capsys.readouterr().err}")
    assert refused == []


def test_commands_named_in_sentences_exist() -> None:
    names = {*cli.make_parser()._subparsers._group_actions[0].choices}  # type: ignore[union-attr, arg-type]
    unknown = []
    for document in {*DOCUMENTS, ROOT / "CONTRIBUTING.md"}:
        for program, name in re.findall(r"`(lmdbloader|make) ([a-z][a-z0-9-]*)[^`]*`", document.read_text("utf-8")):
            if name not in (names if program == "lmdbloader" else TARGETS):
                unknown.append(f"{document.relative_to(ROOT)}: {program} {name}")
    assert unknown == []


@pytest.mark.parametrize(
    "command",
    [
        "lmdbloader convert a b --no-such-option", "lmdbloader nonsense", "make nonsense", "make demo COLOR=1",
        "python scripts/get_div2k.py out --parts nonsense", "make bench ARGS=--nonsense",
        "python scripts/train_sr.py train.lmdb --epoch-count 3",
    ],
)  # fmt: skip
def test_a_command_that_is_wrong_is_found(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((SystemExit, AssertionError)):
        parse(shlex.split(command), monkeypatch)
