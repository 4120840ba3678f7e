"""Shows a comparison as text."""

from __future__ import annotations

from collections.abc import Iterator

from comparison import findings
from comparison.results import Results
from lmdbloader.base.text import counted
from lmdbloader.lab.formatting import define, wrap


def as_text(results: Results) -> str:
    """Return a comparison as text: the conclusion, then a table and sentences for each section."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield from wrap(findings.headline(results) + ".")
    for sentence in findings.summary(results):
        yield from wrap(sentence, "- ", "  ")
    for section in findings.sections(results):
        yield from ("", section.title, "-" * len(section.title))
        yield from section.table.lines()
        for sentence in section.sentences:
            yield from wrap(sentence)
    yield from ("", "Where this was measured", "-----------------------")
    yield from define(results.facts, width=100)
    for note in notes(results):
        yield from wrap(note)


def notes(results: Results) -> tuple[str, ...]:
    """Return sentences about what is missing, and how it was measured."""
    found = [*results.plan.left_out]
    if results.num_missing:
        missing = counted(results.num_missing, "part")
        found.append(f"Not done yet: {missing} of the plan (runs and turns). The same command goes on with them.")
    found.append(
        "All arms train the same model from the same weights, on the same samples, with the same schedule and the same "
        "kinds of random transforms; their draws differ, so runs differ by chance as seeds do."
    )
    if results.device == "cuda" and results.turns and not any(turn.gpu for turn in results.turns.values()):
        found.append("The use of the GPU is not known: NVML did not answer. It needs `pip install lmdbloader[gpu]`.")
    return tuple(found)
