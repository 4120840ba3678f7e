"""Trains the same models from image files and from a dataset, and compares speed, waiting for data and quality.

SRC is a folder of photographs, or of class folders (alone, or in train/ next to val/). Every model is trained from
three sources: image files through torch's DataLoader, an lmdbloader dataset through DataLoader, and through Loader.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from comparison.findings import MODEL_NAMES
from comparison.material import Pairs, Photos, has_classes, make_pairs, make_photos
from comparison.plan import Run, Speed, TurnOf, describe, make_plan
from comparison.report import as_text
from comparison.results import Results, load
from comparison.settings import ARMS, MODELS, SR_MODELS, SWEEPS, Arm, Setting
from comparison.training import Judge, Learner, take_turn, train_run
from tqdm import tqdm
from training.command import positive, rate

import lmdbloader
from lmdbloader.base.files import replacing
from lmdbloader.errors import LmdbloaderError, OptionError
from lmdbloader.lab.arms import LOADER_NAMES
from lmdbloader.lab.machine import Machine
from lmdbloader.lab.machine import describe as describe_machine

EPILOG = """\
--out gets report.html, report.txt, results.json, and the datasets that are made. The report begins with the conclusion.
Ctrl-C keeps the results so far; the same command continues with the rest.

Examples:
  compare_training.py photographs --minutes 20
  compare_training.py imagenette --models resnet18 --sweeps batch-size,workers --minutes 60
"""
# Of a first try, from which the plan is made.
_TRY_SECONDS = 1.0


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SRC", help="folder of photographs, or of class folders")
    add("--out", type=Path, default=Path("comparison"), metavar="DIR",
        help="folder for results and data (default: %(default)s)")  # fmt: skip
    add("--minutes", type=rate, default=20.0, metavar="N", help="minutes that it may take (default: %(default)g)")
    add("--models", type=_names("model", MODELS), metavar="NAME,...",
        help=f"{', '.join(MODELS)} (default: what suits SRC and the device)")  # fmt: skip
    add("--sweeps", type=_names("sweep", [*SWEEPS, "none"]), metavar="NAME,...",
        help=f"what is varied, one thing at a time: {', '.join(SWEEPS)}, or none (default: all that suit)")  # fmt: skip
    add("--seeds", type=positive, default=3, metavar="N", help="runs of each model and source (default: %(default)s)")
    add("--batch-size", type=positive, default=16, metavar="N", help="samples of a step (default: %(default)s)")
    add("--size", type=positive, metavar="PIXELS",
        help="side of a patch (default: 32, on CUDA 64), or of a classifier's images (default: 64; on CUDA 224 for "
        "a ResNet)")  # fmt: skip
    add("--samples", type=positive, default=2000, metavar="N", help="patch pairs at most (default: %(default)s)")
    add("--workers", type=positive, metavar="N", help="worker processes, or threads of Loader (default: one per core)")
    add("--data-device", choices=("ahead", "loop"), default="ahead",
        help="on CUDA: Loader copies batches during the previous step (ahead), or the loop does "
        "(default: %(default)s)")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto, which is CUDA if available)")
    add("--plan", action="store_true", help="print what would be run, and exit")
    add("--report", action="store_true", help="write the reports again from the results in --out, and exit")
    return parser.parse_args(argv)


def _names(what: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        wrong = [name for name in names if name not in known]
        if wrong or not names:
            found = f"no {what} is called {wrong[0]!r}" if wrong else f"expected a {what}"
            raise argparse.ArgumentTypeError(f"{found}; there are {', '.join(known)}")
        return list(dict.fromkeys(names))

    return parse


class Comparison:
    """One call: the material, what is measured, and the files that it writes."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Prepare the material, and the plan unless an earlier call has made it.

        Raises:
            SourceError: The folder has too few photographs.
            OptionError: Options do not fit each other or the earlier call's.
        """
        self.options = options
        self.device = _device(options.device)
        self.cores = options.workers or describe_machine().processor.num_usable
        models = options.models or _fitting_models(options.source, self.device)
        self.until = time.monotonic() + 60 * options.minutes
        options.out.mkdir(parents=True, exist_ok=True)
        self.results_file = options.out / "results.json"
        wanted = self._wanted(models)
        earlier = load(self.results_file, wanted)
        self.materials = self._materials(models)
        self.judges: dict[str, Judge] = {}
        if earlier is not None:
            self.results = earlier
            return
        base = {model: self._base(model) for model in models}
        num_samples = {model: len(self._material(model).files) for model in models}
        for model, count in num_samples.items():
            if count < options.batch_size:
                raise OptionError(
                    f"--batch-size {options.batch_size}: {options.source} gives {model} {count} samples. Give a "
                    "smaller one."
                )
        speeds, scoring = self._first_tries(base)
        names = [name for name in options.sweeps or SWEEPS if name != "none"]
        plan = make_plan(
            base, speeds, num_samples=num_samples, score_seconds=scoring, sweeps=names, num_seeds=options.seeds,
            seconds=max(self.until - time.monotonic(), 1.0), device=self.device.type, cores=self.cores,
        )  # fmt: skip
        machine = describe_machine(options.out)
        self.results = Results(
            wanted=wanted, facts=self._facts(machine), environment=machine.as_json(),
            created=datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds"),
            release=lmdbloader.__version__, cores=self.cores, device=self.device.type, num_samples=num_samples,
            plan=plan,
        )  # fmt: skip

    def _wanted(self, models: Sequence[str]) -> dict[str, Any]:
        options = self.options
        names = ("minutes", "sweeps", "seeds", "batch_size", "size", "samples", "workers", "data_device")
        return {
            "source": str(options.source.resolve()),
            "models": list(models),
            "device": self.device.type,
            **{name: getattr(options, name) for name in names},
        }

    def _materials(self, models: Sequence[str]) -> dict[str, Pairs | Photos]:
        found: dict[str, Pairs | Photos] = {}
        data = self.options.out / "data"
        if any(model in SR_MODELS for model in models):
            found["pairs"] = make_pairs(self.options.source, data, limit=self.options.samples, say=_say)
        if any(model not in SR_MODELS for model in models):
            found["photos"] = make_photos(self.options.source, data, say=_say)
        return found

    def _material(self, model: str) -> Pairs | Photos:
        return self.materials["pairs" if model in SR_MODELS else "photos"]

    def _base(self, model: str) -> Setting:
        options, on_cuda = self.options, self.device.type == "cuda"
        usual = 64 if on_cuda or model not in SR_MODELS else 32
        size = options.size or (224 if on_cuda and model.startswith("resnet") else usual)
        return Setting(
            model, options.batch_size, size, self.cores, is_pinned=on_cuda,
            is_ahead=on_cuda and options.data_device == "ahead",
        )  # fmt: skip

    def _first_tries(self, base: dict[str, Setting]) -> tuple[dict[tuple[str, Arm], Speed], dict[str, float]]:
        """Return how fast each model trains from each arm, and the seconds that scoring takes."""
        speeds: dict[tuple[str, Arm], Speed] = {}
        scoring = {}
        for model, setting in base.items():
            # What the first of all turns imports and compiles would count as time that every turn takes to start.
            self._turn(model, "lmdbloader", setting, 0.0)
            for arm in ARMS:
                _say(f"first try: {MODEL_NAMES[model]} from {LOADER_NAMES[arm]}")
                began = time.perf_counter()
                turn = self._turn(model, arm, setting, _TRY_SECONDS)
                took = time.perf_counter() - began
                speeds[model, arm] = Speed(turn.samples_per_s, max(took - _TRY_SECONDS, 0.0))
            learner = Learner(self._material(model), setting, self.device, 0)
            self._judge(model, setting).score(learner.model)
            began = time.perf_counter()
            self._judge(model, setting).score(learner.model)
            scoring[model] = time.perf_counter() - began
        return speeds, scoring

    def _judge(self, model: str, setting: Setting) -> Judge:
        if model not in self.judges:
            self.judges[model] = Judge(self._material(model), setting, self.device)
        return self.judges[model]

    def _turn(self, model: str, arm: Arm, setting: Setting, seconds: float) -> Any:
        return take_turn(self._material(model), arm, setting, device=self.device, seconds=seconds)

    def _facts(self, machine: Machine) -> list[tuple[str, str]]:
        facts = [("source", str(self.options.source.resolve()))]
        for material in self.materials.values():
            what = "patch pairs" if isinstance(material, Pairs) else "labeled images"
            text = f"{len(material.files):,} {what}, as files and as a dataset with the same pixels"
            if isinstance(material, Photos):
                text += f"; {len(material.classes)} classes"
                text += ", each the pieces of one photograph" if material.is_cut else ""
            facts.append((what, text))
        facts.append(("command", " ".join(sys.argv)))
        return [*facts, *machine.rows()]

    def run(self) -> None:
        """Do what is not done yet, and write the report, also if it is interrupted."""
        results = self.results
        done = {*results.runs, *results.turns}
        items = [item for item in results.plan.items(results.cores) if item.key not in done]
        try:
            with tqdm(items, disable=None, unit="part", dynamic_ncols=True) as bar:
                for number, item in enumerate(bar, 1):
                    setting = results.setting(item.model)
                    title = title_of(item, setting, results.cores)
                    bar.set_description(title)
                    if bar.disable:  # there is no terminal
                        print(f"part {number} of {len(items)}: {title}", file=sys.stderr, flush=True)
                    if isinstance(item, Run):
                        judge = self._judge(item.model, setting)
                        results.runs[item.key] = train_run(
                            self._material(item.model), item.arm, setting, judge, device=self.device, seed=item.seed,
                            epochs=results.plan.epochs[item.model],
                        )  # fmt: skip
                        if judge.without_training is not None:
                            results.scores_before[item.model] = judge.without_training
                    else:
                        sweep = SWEEPS[item.sweep]
                        changed = sweep.change(setting, sweep.values(setting, results.cores)[item.place])
                        results.turns[item.key] = self._turn(item.model, item.arm, changed, results.plan.turn_seconds)
                    results.save(self.results_file)
        finally:
            if results.runs or results.turns:
                write_reports(results, self.options.out)


def write_reports(results: Results, folder: Path) -> None:
    """Print a comparison, and write it into a folder as text, and as HTML where matplotlib is installed."""
    text = as_text(results)
    with replacing(folder / "report.txt") as hidden:
        hidden.write_text(text, "utf-8")
    _say(text)
    try:
        from comparison.html_page import write_page
        from comparison.page import page_of
    except (OptionError, ImportError) as error:
        _say(f"No report.html: {error}\nThen --report writes it from {folder / 'results.json'}.")
        return
    write_page(page_of(results), folder / "report.html")
    _say(f"Written: {folder / 'report.html'}, report.txt and results.json")


def title_of(item: Run | TurnOf, setting: Setting, cores: int) -> str:
    """Return what is done now, for people."""
    start = f"{MODEL_NAMES[item.model]}, {LOADER_NAMES[item.arm]}"
    if isinstance(item, Run):
        return f"{start}, seed {item.seed}"
    sweep = SWEEPS[item.sweep]
    return f"{start}, {sweep.name} {sweep.show(sweep.values(setting, cores)[item.place])}"


def _say(line: str) -> None:
    print(line, flush=True)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        here = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise OptionError(f"--device {name}: this machine trains on {here}.")
    return device


def _fitting_models(source: Path, device: torch.device) -> list[str]:
    """Return the models that fit a source and a device: classes for class folders, enlarging for photographs."""
    on_cuda = device.type == "cuda"
    if has_classes(source):
        return ["resnet18", "resnet50"] if on_cuda else ["tiny"]
    return ["srcnn", "edsr"] if on_cuda else ["srcnn"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parse_options(argv)
    try:
        if options.report:
            found = load(options.out / "results.json")
            if found is None:
                raise OptionError(
                    f"{options.out / 'results.json'}: there are no results. Run it without --report first."
                )
            write_reports(found, options.out)
            return 0
        comparison = Comparison(options)
        for line in describe(comparison.results.plan, comparison.results.cores):
            _say(line)
        if options.plan:
            return 0
        comparison.results.save(comparison.results_file)
        comparison.run()
    except (LmdbloaderError, OSError) as error:
        print(f"compare_training: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncompare_training: stopped; the same command goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
