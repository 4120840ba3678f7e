"""The sections of results/gpu/tables.md in their order; here the machine, tests on it, and missing figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from report_answers import QUESTIONS
from report_compare import compare
from report_device import device_side
from report_loading import copies, cores
from report_results import REPEATED, STAGES, Results, Row
from report_text import NOTHING, cell_text, number, paragraphs, source, table
from report_training import accuracy, fed

_MOST_CHARACTERS = 300
# Rows of the environment; runs of older releases lack some of them.
_FACTS = ("processor", "layout", "clock", "cores", "memory", "disk", "inside", "system", "torch", "images", "Python",
          "variables")  # fmt: skip


def machine(results: Results) -> str:
    """Return the machine of the figures, and the outcome of each run's stages."""
    # Where datasets were made in the same stage as the files, that has kept it.
    first = next((name for name in ("photographs", "material") if results.fact(name, "environment")), "material")
    found: Row = results.fact(first, "environment") or {}
    device: Row = results.fact("correct", "device") or {}
    fed: Row = results.fact("fed", "settings") or {}
    memory = found.get("gpu_memory_gib")
    gpu = device.get("name") or found.get("gpu") or fed.get("device") or found.get("GPU")
    facts = {
        "GPU": gpu and gpu + (f", {number(memory)} GiB" if memory else ""),
        "driver, CUDA, cuDNN": ", ".join(
            str(value)
            for value in (device.get("driver") or found.get("driver"), found.get("cuda"), found.get("cudnn"))
            if value
        ),
        **{name: found.get(name) for name in _FACTS},
        "lmdbloader": found.get("lmdbloader"),
        "packages": found.get("packages"),
        "load average before": found.get("load"),
    }
    lines = "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)
    rows = []
    for run in results.runs:
        for stage in dict.fromkeys([*STAGES, *run.outcomes]):
            name = stage.removesuffix(" more")
            ended, document = run.outcomes.get(stage, {}), run.documents.get(name, {})
            if not ended and not document:
                continue
            taken = "yes" if results.run_of(name) is run else "no"
            took = ended.get("seconds", document.get("seconds"))
            status = ended.get("status", "done" if document else NOTHING)
            why = cell_text(ended.get("reason", ""))[:_MOST_CHARACTERS]
            told = STAGES.get(stage, "")
            rows.append([run.name, f"{stage}: {told}" if told else stage, status, number(took), taken, why])
    return paragraphs(
        "## Machine and runs",
        source(results, first),
        lines,
        "The runs, named by date, and the outcome of each stage:",
        table(["run", "stage", "ended", "seconds", "figures used", "reason"], rows),
    )


def correct(results: Results) -> str:
    """Return which tests passed on CUDA and which did not, by name."""
    figures = results.figures("correct")
    parts: list[Row] = [figures[name] for name in ("together", "alone") if isinstance(figures.get(name), dict)]
    if not parts:
        return ""
    counts: Row = figures.get("counts") or {}
    words = ("collected", "passed", "failed", "error", "skipped", "not collected")
    told = ", ".join(f"{number(counts[word])} {word}" for word in words if counts.get(word))
    failures = [row for part in parts for row in part.get("failed", [])]
    failures += [
        {"test": row.get("file"), "outcome": "not collected", **row}
        for part in parts
        for row in part.get("not_collected", [])
    ]
    failed = [[f"`{row.get('test')}`", str(row.get("outcome")), said(row.get("text", ""))] for row in failures]
    skipped = [
        [cell_text(reason), number(len(names))] for part in parts for reason, names in part.get("skipped", {}).items()
    ]
    passed: dict[str, list[str]] = {}
    for part in parts:
        for test in part.get("passed", {}):
            file, _, name = test.partition("::")
            passed.setdefault(file, []).append(name)
    listed = "\n".join(
        f"    - `{file}`: " + ", ".join(f"`{name}`" for name in names) for file, names in sorted(passed.items())
    )
    return paragraphs(
        "## Correctness on CUDA",
        source(results, "correct"),
        "The tests that need a device compare data that arrives there with the same code's result on the CPU, and"
        " try to overwrite pinned memory while a copy from it is pending.",
        f"**Tests: {told}.**" if told else None,
        table(["failed", "how", "message"], failed) if failed else None if not passed else "No test failed.",
        repeated(results),
        table(["skipped because", "tests"], skipped),
        f'??? note "Passed tests"\n\n{listed}' if passed else None,
    )


def said(text: str) -> str:
    """Return the message of a failure, without its location."""
    lines = [line.removeprefix("E ").strip() for line in text.splitlines() if line.startswith("E ")] or [text]
    return cell_text(lines[0])[:_MOST_CHARACTERS]


def repeated(results: Results) -> str | None:
    """Return the outcome of the tests that were run again."""
    figures, whole = results.figures(REPEATED), results.run_of("correct")
    if not figures or whole is not results.run_of(REPEATED):  # all of them were run again since
        return None
    failed, not_ended = figures.get("failed", []), figures.get("not_ended", [])
    told = [f"Run again ({figures['what']}): **{number(figures['passed'])} passed, {number(len(failed))} failed**."]
    if failed:
        told.append(f"Failed again: {', '.join(f'`{name}`' for name in failed)}. {figures.get('why', '')}".strip())
    if not_ended:
        told.append(f"Not finished when the time was over: {', '.join(f'`{name}`' for name in not_ended)}.")
    return "\n\n".join(told)


def missing(results: Results) -> str:
    """Return the figures that are missing, and why."""
    lines = []
    for stage in STAGES:
        reasons: dict[str, list[str]] = {}
        for what, reason in results.left_out(stage).items():
            reasons.setdefault(cell_text(reason)[:_MOST_CHARACTERS], []).append(cell_text(what))
        lines += [[stage, "; ".join(whats), reason] for reason, whats in reasons.items()]
        if results.run_of(stage) is None:
            lines.append([stage, "everything", "no run has figures for it"])
    return paragraphs("## Not measured", table(["stage", "item", "reason"], lines)) if lines else ""


def by_run(results: Results) -> str:
    """Return the answers that other pages claim, run by run: their spread is their accuracy."""
    asked = [question for question in QUESTIONS if question.is_claimed]
    runs = [run for run in results.runs if any(question.answer_of(Results((run,))) for question in asked)]
    if len(runs) < 2:
        return ""
    lines = [
        [question.text, *(cell_text(question.answer_of(Results((run,))) or NOTHING) for run in runs)]
        for question in asked
    ]
    return paragraphs("## Answers by run", table(["question", *(run.name for run in runs)], lines))


SECTIONS: Sequence[Callable[[Results], str]] = (
    machine, by_run, correct, cores, copies, fed, device_side, accuracy, compare, missing,
)  # fmt: skip
