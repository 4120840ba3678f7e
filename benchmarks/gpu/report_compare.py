"""The section of benchmarks/results/gpu/tables.md about scripts/compare_training.py: image files, LMDB and Loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from report_results import Results
from report_text import cell_text, paragraphs, source, table

_SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


def compare(results: Results) -> str:
    """Return the conclusion and the tables of each model's comparison."""
    figures = results.figures("compare")
    if not figures:
        return ""
    return paragraphs(
        "## Image files, LMDB and Loader",
        source(results, "compare"),
        "[`scripts/compare_training.py`](../how-to/compare.md), which runs on any machine, trains the same model from"
        " image files and from LMDB through torch's DataLoader, and from LMDB through Loader.",
        *(part for model, value in figures.items() for part in _comparison(model, value)),
    )


def _comparison(model: str, value: object) -> Iterator[str]:
    """Yield the paragraphs of one comparison."""
    if str(_SCRIPTS) not in sys.path:
        sys.path.append(str(_SCRIPTS))
    # They import torch, which only these figures need.
    from comparison import findings
    from comparison.report import notes
    from comparison.results import read

    found = read(value)
    name = ", ".join(findings.MODEL_NAMES[trained] for trained in found.plan.base) or model
    yield f"### {name[0].upper()}{name[1:]}"
    yield f"**{findings.headline(found)}.**"
    yield "\n".join(f"- {sentence}" for sentence in findings.summary(found))
    for section in findings.sections(found):
        rows = [[cell_text(cell) for cell in row] for row in section.table.cells()]
        inside = paragraphs(*section.sentences, table(section.table.header, rows), f"{section.table.caption}.")
        indented = "\n".join(f"    {line}" if line else "" for line in inside.splitlines())
        yield f'??? note "{section.title}"\n\n{indented}'
    yield "\n".join(f"- {note}" for note in notes(found))
