"""The snippets of README.md, docs/ and skills/ run: every Python block, and every command of this package.

A block after `<!-- no-test -->` is left out, one after `<!-- needs: package -->` where the package is not installed.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nursery import Nursery

ROOT = Path(__file__).resolve().parent.parent
# What is generated from docstrings runs as doctests.
GENERATED = "<!-- generated: "
DOCUMENTS = [
    path
    for path in (
        ROOT / "README.md",
        *(page for folder in ("docs", "skills") for page in sorted((ROOT / folder).rglob("*.md"))),
    )
    if GENERATED not in path.read_text("utf-8")
]
PYTHON, SHELL = {"python", "py"}, {"bash", "console", "sh", "shell"}
SECONDS = 300.0
# Measurements and trainings that need not be good here.
SHORTER = {
    "docs/how-to/train-classifier.md": (
        ("--num-train 20 --num-val 5", "--num-train 8 --num-val 2"),
        ("--num-train 32 --num-val 8", "--num-train 8 --num-val 2"),
        ("--epochs 2", "--epochs 1"),
    ),
    "docs/how-to/train-sr.md": (
        ("--epochs 2", "--epochs 1"),
        ("--limit-steps 5", "--limit-steps 1"),
        ("batch_size=16", "batch_size=4"),
        ("RandomCrop(96)", "RandomCrop(32)"),
    ),
    "docs/how-to/feeding.md": (("--seconds 2", "--seconds 0.2"), ("seconds=1)", "seconds=0.1)")),
}
# Of the photographs, so that trainings score fewer of them.
FEW = {"docs/how-to/train-sr.md": ("astronaut", "cat", "coffee")}
# What the scripts import, torch in the first step of training.
OF_SCRIPTS = ("skimage.data", "torch._dynamo")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block: its language, the number of its first line (from 1) and its text without the fence's indent.

    `needs` names a package of others that it needs to run.
    """

    language: str
    line: int
    text: str
    needs: str | None = None


def snippets_of(markdown: str) -> Iterator[Snippet]:
    """Yield the fenced blocks of a document in order, those marked `<!-- no-test -->` just before left out."""
    lines = markdown.splitlines()
    number, marked, needs = 0, False, None
    while number < len(lines):
        fence = re.match(r"(\s*)(`{3,}|~{3,})\s*([\w+-]*)", lines[number])
        if fence is None:
            blank = not lines[number].strip()
            named = re.fullmatch(r"<!-- needs: (\w+) -->", lines[number].strip())
            needs = named[1] if named else (needs if blank else None)
            marked = lines[number].strip() == "<!-- no-test -->" or (marked and blank)
            number += 1
            continue
        indent, marks, language = fence.groups()
        first = number = number + 1
        while number < len(lines) and not re.fullmatch(rf"\s*{re.escape(marks)}{marks[0]}*\s*", lines[number]):
            number += 1
        if not marked:
            body = [line.removeprefix(indent) for line in lines[first:number]]
            yield Snippet(language.lower(), first + 1, "\n".join(body) + "\n", needs)
        number, marked, needs = number + 1, False, None


def commands_of(snippet: Snippet) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and words of this package's commands in a block: `lmdbloader ...`, `python scripts/...`."""
    pending, start = "", 0
    for number, line in enumerate(snippet.text.splitlines(), snippet.line):
        start = start if pending else number
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        command, pending = pending.strip().removeprefix("$ "), ""
        if re.match(r"(lmdbloader|python3? scripts/\S+)(\s|$)", command):
            yield start, shlex.split(command, comments=True)


def run_command(words: list[str], where: str, folder: Path, nursery: Nursery) -> None:
    """Run one command line in a process of its own; fail with its place and output when it does not succeed."""
    if words[:2] == ["lmdbloader", "convert"] and "--workers" not in words:
        words = [*words, "--workers", "1"]  # the same dataset, without processes that take a second to start
    if words[0] != "lmdbloader":
        nursery.load(*OF_SCRIPTS)
        words = [str(ROOT / words[1]), *words[2:]]
    program = nursery.start_command(words, folder / ".program", cwd=folder)
    status = program.end(SECONDS)
    said = program.out + program.errors
    shutil.rmtree(program.folder)
    if status:
        pytest.fail(f"{where}: `{shlex.join(words)}` exited with status {status}:\n{said}", pytrace=False)


def run_python(snippet: Snippet, name: str, namespace: dict[str, object]) -> None:
    """Run one Python block in its document's namespace; fail with the document's line when it raises."""
    try:
        # Padding with empty lines makes the traceback count the document's lines.
        exec(compile("\n" * (snippet.line - 1) + snippet.text, name, "exec"), namespace)
    except Exception as error:
        places = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = places[-1] if places else getattr(error, "lineno", None) or snippet.line
        story = "".join(traceback.format_exception(error))
        pytest.fail(f"{name}:{line}: the block that starts at line {snippet.line} raised:\n{story}", pytrace=False)


def can_import(package: str) -> bool:
    """Return whether a package is installed; one that is there and broken fails in its block."""
    return importlib.util.find_spec(package) is not None


def run_document(document: Path, name: str, folder: Path, patch: pytest.MonkeyPatch, nursery: Nursery) -> None:
    """Run a document's blocks in order in `folder`; they share one namespace, which is `__main__` to them."""
    main = types.ModuleType("__main__")
    patch.setitem(sys.modules, "__main__", main)
    patch.chdir(folder)
    text = document.read_text("utf-8")
    for old, new in SHORTER.get(name, ()):
        assert old in text, old
        text = text.replace(old, new)
    for snippet in snippets_of(text):
        if snippet.needs is not None:
            if can_import(snippet.needs):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # warnings of other packages
                    run_python(snippet, name, main.__dict__)
        elif snippet.language in PYTHON:
            run_python(snippet, name, main.__dict__)
        elif snippet.language in SHELL:
            for line, words in commands_of(snippet):
                run_command(words, f"{name}:{line}", folder, nursery)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_snippets_of_a_document_run(
    document: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: Nursery
) -> None:
    name = str(document.relative_to(ROOT))
    (tmp_path / "photos").mkdir()
    for path in photos.iterdir():
        if path.stem in FEW.get(name, (path.stem,)):
            shutil.copy(path, tmp_path / "photos")
    run_document(document, name, tmp_path, monkeypatch, nursery)


BROKEN = """# Title

```python
numbers = [1, 2]
```

<!-- no-test -->

```python
raise SystemExit
```

1. Indented:

   ```python
   total = sum(numbers)
   class Held: ...
   assert total == 4
   ```
"""


def test_a_broken_block_is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: Nursery
) -> None:
    document = tmp_path / "broken.md"
    document.write_text(BROKEN, "utf-8")
    with pytest.raises(
        pytest.fail.Exception, match=r"^broken\.md:18: the block that starts at line 16 raised"
    ) as caught:
        run_document(document, "broken.md", tmp_path, monkeypatch, nursery)
    assert "AssertionError" in str(caught.value)
