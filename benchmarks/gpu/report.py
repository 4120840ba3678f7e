"""Builds docs/benchmarks/gpu.md, its charts, and the tables of all results of runs on a GPU.

No number is typed by hand:

    python benchmarks/gpu/report.py benchmarks/results/gpu

The tables go into tables.md of that folder. Each folder in it is a run: the output of its stages, and how they ended.
A stage's figures are those of the last run, by name, that has some; begin names with the date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from report_answers import answers, unknown
from report_results import Results, read_results
from report_sections import SECTIONS
from report_summary import summary

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "gpu.md"
_HEAD = """\
<!-- search: GPU benchmarks, H100 -->

# Benchmarks on a GPU

<!-- Made by benchmarks/gpu/report.py from benchmarks/results/gpu. Change those, not this. -->
"""
_TABLES_HEAD = """\
# Tables of the GPU benchmarks

<!-- Made by benchmarks/gpu/report.py from benchmarks/results/gpu. Change those, not this. -->

Every figure behind [Benchmarks on a GPU](../../../docs/benchmarks/gpu.md).
"""
_NOTHING = """
**There are no figures from a GPU yet.** The package's CUDA code is tested against stand-ins only. Figures of two cores,
without a GPU, are in [Benchmarks](index.md).
"""
_FOUND = """
The scripts in `benchmarks/gpu/` measured these figures; `benchmarks/results/gpu/` stores them. [Benchmarks on two CPU
cores](index.md) has figures without a GPU, and [Compared with other loaders](peers.md) more loaders.
"""
_HOW = """
## Reproduce the figures

On a machine with a GPU. It needs no network after you have copied the folder of `pack.py` there:

```bash
python benchmarks/gpu/pack.py --out benchmarks/gpu/pack      # beforehand, with network
RUN="python benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out benchmarks/results/gpu/2026-01-31-a-name --minutes 9"
$RUN --stages correct cores                                  # each command ends within its nine minutes
$RUN --stages copies fed accuracy
$RUN --stages more                                           # measurements that the other stages leave for the end
$RUN --stages compare                                        # scripts/compare_training.py
$RUN --stages device-side                                    # transforms and datasets on the device; by itself, too
python benchmarks/gpu/report.py benchmarks/results/gpu       # builds these pages
```

`make gpu-rehearsal` runs all of it in tiny sizes on a machine without a GPU.
"""


def page(results: Results) -> str:
    """Return the page in Markdown: the summary, charts, questions and answers, and how to measure again."""
    asked = "\n".join(f"- **{question}** {answer}. ({link})" for question, answer, link in answers(results))
    if questions := unknown(results):
        asked += "\n\nNot measured on a GPU yet:\n\n" + "\n".join(f"- {question}" for question in questions)
    parts = [_HEAD, summary(results) if results.runs else "", _FOUND if results.runs else _NOTHING]
    parts += ["## Questions and answers" if results.runs else "## Open questions", asked, _HOW]
    return _joined(parts)


def tables(results: Results) -> str:
    """Return the page with all tables in Markdown."""
    sections = [make(results) for make in SECTIONS] if results.runs else [_NOTHING]
    return _joined([_TABLES_HEAD, *sections])


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def write(results: Results, path: Path, tables_path: Path) -> None:
    """Write the page, the tables, and the charts next to the page; charts without figures are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(results), "utf-8")
    tables_path.write_text(tables(results), "utf-8")
    from report_charts import CHARTS

    for name, draw in CHARTS.items():
        chart = path.parent / "pictures" / f"{name}.svg"
        drawn = draw(results)
        if drawn is None:
            chart.unlink(missing_ok=True)
            continue
        chart.parent.mkdir(exist_ok=True)
        chart.write_text(drawn, "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the page; the exit status is 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS_DIR", help="with a folder for each run")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page (default: the committed one)")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="the tables (default: RESULTS_DIR/tables.md)")
    parser.add_argument("--small", action="store_true", help="include rehearsals, to preview the page")
    options = parser.parse_args(arguments)
    try:
        results = read_results(options.results, small=options.small)
    except json.JSONDecodeError as error:
        print(f"{options.results}: not all files hold JSON: {error}", file=sys.stderr)
        return 1
    write(results, options.out, options.tables or options.results / "tables.md")
    print(f"{options.out}: {len(results.runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
