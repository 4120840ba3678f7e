"""The findings of a comparison: its headline, and sections with sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, mode

import numpy as np

import lmdbloader
from comparison.plan import REPEATS, turns_of
from comparison.results import Results
from comparison.settings import ARMS, SWEEPS, Arm, Sweep
from comparison.statistics import Interval, difference, mean
from comparison.training import PHASES, Epoch, Turn
from lmdbloader.base.text import counted
from lmdbloader.lab.arms import LOADER_NAMES
from lmdbloader.lab.formatting import Column, Table, number, percent, seconds

MODEL_NAMES = {
    "srcnn": "SRCNN", "edsr": "EDSR", "tiny": "a small ResNet", "resnet18": "ResNet-18", "resnet50": "ResNet-50",
}  # fmt: skip
_OURS: Arm = "lmdbloader"
# Of the way from the first epoch's score to the folder's last: the quality that is waited for.
_TARGET_SHARE = 0.9
_SCHEDULE_EPOCHS = 32
# Speeds whose ratio is known to a tenth, up or down, are as good as the same even where they differ by chance.
_KNOWN_RATIO = 1.1


def times(ratio: float, what: str = "fast") -> str:
    """Return in words how fast, or how long, something is compared with another.

    >>> times(5.14), times(28.3), times(0.82), times(140.2)
    ('5.1 times as fast', '28 times as fast', '0.82 times as fast', '140 times as fast')
    >>> times(0.96), times(1.04, "long"), times(1.06, "long")
    ('about as fast', 'about as long', '1.1 times as long')
    """
    if 0.95 <= ratio < 1.05:
        return f"about as {what}"
    digits = 2 if ratio < 0.95 else 1 if ratio < 10 else 0
    return f"{ratio:,.{digits}f} times as {what}"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report.

    Attributes:
        name: In addresses, and of the chart.
        title: Its heading.
        explanation: How to read the chart.
        sentences: The findings.
        table: The figures.
    """

    name: str
    title: str
    explanation: str
    sentences: tuple[str, ...]
    table: Table


@dataclass(frozen=True, slots=True)
class GpuFigure:
    """A figure about the GPU.

    Attributes:
        name: Of GPU_FIGURES.
        title: Of its column.
        combine: One figure of several turns.
        unit: Before the number.
    """

    name: str
    title: str
    combine: Callable[[Sequence[float]], float] = fmean
    unit: str = ""

    def of(self, uses: Sequence[Mapping[str, float | None]]) -> float | None:
        """Return the figure of several turns; None if no turn knows it."""
        known = [value for use in uses if (value := use.get(self.name)) is not None]
        return self.combine(known) if known else None

    def show(self, value: float | None) -> str:
        """Return it as text; "" if it is unknown."""
        return "" if value is None else f"{self.unit}{number(value)}"


_GPU = {
    figure.name: figure
    for figure in (
        GpuFigure("utilization_percent", "GPU, %"),
        GpuFigure("power_watts", "W"),
        GpuFigure("memory_mib", "MiB", max),
        GpuFigure("temperature_celsius", "\N{DEGREE SIGN}C", max),
        GpuFigure("fan_percent", "fan, %"),
        GpuFigure("performance_state", "state", mode, "P"),
    )
}


@dataclass(frozen=True, slots=True)
class Value:
    """What was measured with one value of a sweep in one arm: the median of its turns.

    Attributes:
        place: Of the value.
        name: Of the value.
        low, high: The slowest and the fastest turn.
    """

    place: int
    name: str
    arm: Arm
    samples_per_s: float
    low: float
    high: float
    stall: float
    phases: dict[str, float]
    longest_wait: float
    gpu: dict[str, float | None] | None

    @property
    def step(self) -> float:
        """Seconds of a step, the mean."""
        return sum(self.phases.values())


def values_of(results: Results, model: str, sweep: Sweep) -> list[Value]:
    """Return what was measured of a sweep, by value, then by arm."""
    base = results.setting(model)
    names = [sweep.show(value) for value in sweep.values(base, results.cores)]
    places = dict.fromkeys((turn.place, turn.arm) for turn in turns_of(base, sweep, results.cores, 0))
    found = []
    for place, arm in places:
        turns = results.turns_of(model, arm, sweep.name, place)
        if turns:
            found.append(_value(place, names[place], arm, turns))
    return found


def _value(place: int, name: str, arm: Arm, turns: Sequence[Turn]) -> Value:
    speeds = [turn.samples_per_s for turn in turns]
    uses = [turn.gpu for turn in turns if turn.gpu is not None]
    gpu = {figure.name: figure.of(uses) for figure in _GPU.values()} if uses else None
    phases = {phase: fmean(turn.phases[phase] for turn in turns) for phase in turns[0].phases}
    return Value(
        place, name, arm, median(speeds), min(speeds), max(speeds), fmean(turn.stall for turn in turns), phases,
        max(turn.longest_wait for turn in turns), gpu,
    )  # fmt: skip


# --- Whole runs ---


@dataclass(frozen=True, slots=True)
class Outcome:
    """The runs of a model from one arm.

    Attributes:
        speeds: Samples a second of every epoch of every run, the first of each left out if there are others.
        paces: Samples a second of each run, the median of its epochs.
        epoch: Seconds of an epoch at the median speed.
        total: Seconds of a run without scoring.
        target: Seconds until the target was reached, the median; None if a run never did.
        score: At the end.
        apart: How much better that is than the folder's; None for the folder itself.
        stall: Share of the time spent waiting for data.
    """

    arm: Arm
    runs: int
    speeds: tuple[float, ...]
    paces: tuple[float, ...]
    epoch: float
    total: float
    target: float | None
    score: Interval
    apart: Interval | None
    stall: float

    @property
    def speed(self) -> float:
        """Samples a second, the median."""
        return median(self.speeds)


def target_of(results: Results, model: str) -> float | None:
    """Return the score that all arms are timed to: most of the way from the first epoch's to the folder's last."""
    runs = results.runs_of(model, "folder")
    if not runs:
        return None
    first, last = (fmean(run[place].score for run in runs) for place in (0, -1))
    return first + _TARGET_SHARE * (last - first)


def outcomes(results: Results, model: str) -> list[Outcome]:
    """Return what the runs of a model gave, arm by arm."""
    target = target_of(results, model)
    folder = [run[-1].score for run in results.runs_of(model, "folder")]
    found = []
    for arm in ARMS:
        runs = results.runs_of(model, arm)
        if not runs:
            continue
        # The first epoch starts workers and fills the page cache.
        later_of_each = [run[1:] or run for run in runs]
        later = [epoch for run in later_of_each for epoch in run]
        speeds = tuple(epoch.num_samples / epoch.seconds for epoch in later)
        paces = tuple(median(epoch.num_samples / epoch.seconds for epoch in run) for run in later_of_each)
        reached = [_seconds_to(run, target) for run in runs]
        scores = [run[-1].score for run in runs]
        took = [sum(epoch.seconds for epoch in run) for run in runs]
        waited = sum(epoch.phases["data"] for epoch in later) / sum(sum(epoch.phases.values()) for epoch in later)
        found.append(
            Outcome(
                arm, len(runs), speeds, paces, later[0].num_samples / median(speeds), median(took),
                None if None in reached else median(value for value in reached if value is not None),
                mean(scores), None if arm == "folder" or not folder else difference(scores, folder), waited,
            )
        )  # fmt: skip
    return found


def _seconds_to(run: Sequence[Epoch], target: float | None) -> float | None:
    taken = 0.0
    for epoch in run:
        taken += epoch.seconds
        if target is not None and epoch.score >= target:
            return taken
    return None


def shown_score(results: Results, model: str, value: float, *, is_difference: bool = False) -> str:
    """Return a score with its unit: dB of PSNR, or % of the images."""
    sign = "+" if is_difference else ""
    if results.setting(model).is_classifier:
        return f"{100 * value:{sign}.1f} {'points' if is_difference else '%'}"
    return f"{value:{sign}.2f} dB"


def _shown_interval(results: Results, model: str, found: Interval, *, is_difference: bool = False) -> str:
    center = shown_score(results, model, found.value, is_difference=is_difference)
    if found.low is None or found.high is None:
        return center
    ends = [found.low, found.high]
    if results.setting(model).is_classifier and not is_difference:
        ends = [min(max(end, 0.0), 1.0) for end in ends]
    low, high = (shown_score(results, model, end, is_difference=is_difference) for end in ends)
    return f"{center} [{low.rsplit(' ', 1)[0]}, {high.rsplit(' ', 1)[0]}]"


# --- Words ---


def headline(results: Results) -> str:
    """Return the conclusion in one sentence, without its full stop."""
    clear, unclear, parity = [], [], []
    for model in results.plan.base:
        found = {outcome.arm: outcome for outcome in outcomes(results, model)}
        if _OURS in found and "folder" in found:
            best = best_by_workers(results, model)
            ratio = best[_OURS].samples_per_s / best["folder"].samples_per_s if best else _ratio(found).value
            if _is_clear(results, model):
                clear.append(f"{MODEL_NAMES[model]} {times(ratio)}")
            else:
                unclear.append(MODEL_NAMES[model])
            apart = found[_OURS].apart
            parity.append("too short" if _is_untrained(results, model) else apart and apart.contains_zero)
    if not parity:
        return "Nothing was compared yet"
    parts = [f"Loader trains {' and '.join(clear)} as image files do"] if clear else []
    if unclear:
        parts.append(f"these runs do not tell whether Loader trains {' and '.join(unclear)} faster than image files do")
    if "too short" in parity:
        parts.append("the training was too short to compare the quality")
    elif any(found is None for found in parity):
        parts.append("one run of each does not tell whether the quality is the same")
    elif all(parity):
        parts.append("no difference in quality was found")
    else:
        parts[-1] += ", but the quality differs"
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def best_by_workers(results: Results, model: str) -> dict[Arm, Value]:
    """Return each arm's turns with the number of workers that suits it; empty if that was not measured."""
    sweep = SWEEPS["workers"]
    values = values_of(results, model, sweep) if sweep.name in results.plan.sweeps[model] else []
    found: dict[Arm, Value] = {}
    for value in values:
        if value.arm not in found or value.samples_per_s > found[value.arm].samples_per_s:
            found[value.arm] = value
    return found if "folder" in found and _OURS in found else {}


def _ratio(found: Mapping[Arm, Outcome]) -> Interval:
    """Return how many times as fast whole runs from Loader are as from image files: the geometric mean."""
    apart = difference(*(np.log(found[arm].paces).tolist() for arm in (_OURS, "folder")))
    low, high = (None if end is None else float(np.exp(end)) for end in (apart.low, apart.high))
    return Interval(float(np.exp(apart.value)), low, high)


def _is_clear(results: Results, model: str) -> bool:
    """Return whether the speeds from Loader and from image files differ by more than they vary, or hardly vary."""
    best = best_by_workers(results, model)
    if best:
        ours, folder = best[_OURS], best["folder"]
        low, high = ours.low / folder.high, ours.high / folder.low
    else:
        ratio = _ratio({outcome.arm: outcome for outcome in outcomes(results, model)})
        if ratio.low is None or ratio.high is None:
            return True
        low, high = ratio.low, ratio.high
    return not low <= 1 <= high or (low >= 1 / _KNOWN_RATIO and high <= _KNOWN_RATIO)


def _is_untrained(results: Results, model: str) -> bool:
    """Return whether a model is no better at the end than no model at all, from any source."""
    before = results.scores_before.get(model)
    return before is not None and all(outcome.score.value <= before for outcome in outcomes(results, model))


def summary(results: Results) -> tuple[str, ...]:
    """Return the most important sentences: first what limits the conclusion, four at most."""
    sentences: list[str] = []
    if results.num_missing:
        missing = counted(results.num_missing, "part")
        sentences.append(f"Not finished: {missing} of the plan not measured yet. The same command goes on.")
    for model in results.plan.base:
        if _OURS in {outcome.arm for outcome in outcomes(results, model)} and not _is_clear(results, model):
            sentences.append(
                f"{_sentence_name(model)}: the speeds varied more than they differ. Other programs may have used the "
                "machine: compare again while it is idle, or with more minutes."
            )
    for model in results.plan.base:
        sentences += list(_parity(results, model))[:1]
    for model in results.plan.base:
        sentences += list(_batch_sizes(results, model))[:1]
    return tuple(sentences[:4])


def sections(results: Results) -> list[Section]:
    """Return the sections that there are figures for."""
    found = []
    for model in results.plan.base:
        if results.runs_of(model, "folder"):
            found.append(_runs_section(results, model))
        for name in results.plan.sweeps[model]:
            values = values_of(results, model, SWEEPS[name])
            if values:
                found.append(_sweep_section(results, model, SWEEPS[name], values))
            if values and name == "batch-size":
                found.append(_steps_section(results, model, values))
    return found


def _runs_section(results: Results, model: str) -> Section:
    rows = tuple(
        (
            LOADER_NAMES[outcome.arm], outcome.speed, f"{number(min(outcome.speeds))}-{number(max(outcome.speeds))}",
            outcome.epoch, outcome.total, outcome.target, outcome.stall, outcome.score, outcome.apart,
        )
        for outcome in outcomes(results, model)
    )  # fmt: skip
    target = target_of(results, model)
    named = "a target" if target is None else shown_score(results, model, target)
    table = Table(
        f"Medians over {counted(len(results.plan.seeds), 'seed')}; in brackets 95 % intervals (Student, Welch)",
        (
            Column("source", is_text=True), Column("samples/s", number), Column("range"), Column("an epoch", seconds),
            Column(f"{results.plan.epochs[model]} epochs", seconds),
            Column(f"to {named}", lambda value: "not in all runs" if value is None else seconds(value)),
            Column("waiting", percent),
            Column("at the end", lambda value: _shown_interval(results, model, value)),
            Column(
                "against files",
                lambda value: "" if value is None else _shown_interval(results, model, value, is_difference=True),
            ),
        ),
        rows,
    )  # fmt: skip
    measure = "images named right" if results.setting(model).is_classifier else "PSNR of luma"
    explanation = (
        f"Every point is the median of the seeds after an epoch, with their range: {measure} on images that were held "
        "out. Equal heights are equal quality."
    )
    sentences = (*_parity(results, model), *_speed(results, model))
    return Section(f"runs-{model}", f"{_sentence_name(model)}: whole runs", explanation, sentences, table)


def _parity(results: Results, model: str) -> Iterator[str]:
    found = {outcome.arm: outcome for outcome in outcomes(results, model)}
    ours = found.get(_OURS)
    if ours is None or ours.apart is None:
        return
    apart, name = _shown_interval(results, model, ours.apart, is_difference=True), _sentence_name(model)
    if _is_untrained(results, model):
        before = shown_score(results, model, results.scores_before[model])
        yield (
            f"{name}: no source led to more than the {before} of bicubic enlargement, so the scores do not tell "
            f"whether the quality is the same ({apart}). Give more minutes, or fewer samples (--samples)."
        )
        return
    if ours.apart.contains_zero is None:
        yield (
            f"{name}: one run of each does not tell whether the quality is the same. Loader against image files: "
            f"{apart}."
        )
    elif ours.apart.contains_zero:
        assert ours.apart.high is not None
        half = ours.apart.high - ours.apart.value
        unseen = shown_score(results, model, half, is_difference=True).lstrip("+")
        yield (
            f"{name}: no difference in quality was found. Loader against image files: {apart}, 95 % interval; a "
            f"difference of less than {unseen} may be missed."
        )
    else:
        yield f"{name}: the quality differs. Loader against image files: {apart}, a 95 % interval without 0."


def _speed(results: Results, model: str) -> Iterator[str]:
    found = {outcome.arm: outcome for outcome in outcomes(results, model)}
    folder, ours = found.get("folder"), found.get(_OURS)
    if folder is None or ours is None:
        return
    yield (
        f"An epoch takes {seconds(ours.epoch)} instead of {seconds(folder.epoch)}; the model waits for data "
        f"{percent(ours.stall)} of the time instead of {percent(folder.stall)}."
    )
    ratio = _ratio(found)
    as_fast, interval = times(ratio.value), ""
    if ratio.low is not None and ratio.high is not None:
        interval = f" (95 % interval {number(ratio.low)} to {number(ratio.high)})"
    best = best_by_workers(results, model)
    if best:
        best_ratio = times(best[_OURS].samples_per_s / best["folder"].samples_per_s)
        yield (
            f"With the number of workers that suits each, Loader is {best_ratio} as image files; with "
            f"{results.setting(model).workers} for both, as in these runs, "
            f"{as_fast.replace('times as fast', 'times')}{interval}."
        )
    elif _is_clear(results, model):
        yield f"In these runs Loader is {as_fast} as image files{interval}."
    elif ratio.low is not None and ratio.high is not None:
        yield (
            "The runs vary too much to compare speeds: Loader is between "
            f"{number(ratio.low)} and {number(ratio.high)} times as fast as image files (95 % interval)."
        )
    before = results.scores_before.get(model)
    if before is not None:
        yield f"Bicubic enlargement, without any model, has {shown_score(results, model, before)}."


def _batch_sizes(results: Results, model: str) -> Iterator[str]:
    values = values_of(results, model, SWEEPS["batch-size"]) if "batch-size" in results.plan.sweeps[model] else []
    by_arm = {arm: [value for value in values if value.arm == arm] for arm in ARMS}
    if len(by_arm["folder"]) < 2 or len(by_arm[_OURS]) < 2:
        return
    takes = {
        arm: [seconds(results.num_samples[model] / by_arm[arm][place].samples_per_s) for place in (0, -1)]
        for arm in ("folder", _OURS)
    }
    first, last = by_arm["folder"][0].name, by_arm["folder"][-1].name
    yield (
        f"{_sentence_name(model)}: an epoch from image files takes {takes['folder'][0]} in batches of {first} and "
        f"{takes['folder'][1]} in batches of {last}; from Loader {takes[_OURS][0]} and {takes[_OURS][1]}."
    )


def _use_by_batch(values: Sequence[Value]) -> Iterator[str]:
    """Yield what the batch size does to the use of the GPU, if it is known of every turn."""
    first, last = (
        {value.arm: value.gpu["utilization_percent"] for value in values if value.place == place and value.gpu}
        for place in (values[0].place, values[-1].place)
    )
    busy = [first.get("folder"), first.get(_OURS), last.get("folder"), last.get(_OURS)]
    if any(share is None for share in busy):
        return
    shares = [percent(share / 100) for share in busy if share is not None]
    yield (
        f"The GPU is busy {shares[0]} of the time in batches of {values[0].name} from image files, {shares[1]} from "
        f"Loader; in batches of {values[-1].name} {shares[2]} and {shares[3]}."
    )


def _sentence_name(model: str) -> str:
    """Return a model's name as a sentence begins with it."""
    name = MODEL_NAMES[model]
    return name[0].upper() + name[1:]


def _sweep_section(results: Results, model: str, sweep: Sweep, values: Sequence[Value]) -> Section:
    # A model that has no fan, say, gets no column for it.
    gpu = [
        figure for figure in _GPU.values()
        if any(value.gpu is not None and value.gpu[figure.name] is not None for value in values)
    ]  # fmt: skip
    columns = [
        Column(sweep.thing, is_text=True), Column("source", is_text=True), Column("samples/s", number), Column("range"),
        Column("an epoch", seconds), Column("waiting", percent), Column("forward", seconds),
        Column("backward", seconds), Column("longest wait", seconds),
    ]  # fmt: skip
    columns += [Column(figure.title, figure.show) for figure in gpu]
    rows = tuple(
        (
            value.name, LOADER_NAMES[value.arm], value.samples_per_s, f"{number(value.low)}-{number(value.high)}",
            results.num_samples[model] / value.samples_per_s, value.stall, value.phases["forward"],
            value.phases["backward"], value.longest_wait,
            *((value.gpu or {}).get(figure.name) for figure in gpu),
        )
        for value in values
    )  # fmt: skip
    caption = f"Medians of {REPEATS} turns of {seconds(results.plan.turn_seconds)}; all else is as in the whole runs"
    explanation = f"Samples a second of training, by {sweep.thing}. Higher is faster."
    sentences = tuple(_of_sweep(results, model, sweep, values))
    return Section(
        f"{sweep.name}-{model}", f"{_sentence_name(model)}: {sweep.title.lower()}", explanation, sentences,
        Table(caption, tuple(columns), rows),
    )  # fmt: skip


def _steps_section(results: Results, model: str, values: Sequence[Value]) -> Section:
    """Return the section about where the time of a step goes, by batch size."""
    phases = [phase for phase in PHASES if any(value.phases[phase] for value in values)]
    columns = (
        Column("samples of a batch", is_text=True), Column("source", is_text=True), Column("a step", seconds),
        *(Column(_PHASE_NAMES.get(phase, phase), seconds) for phase in phases),
    )  # fmt: skip
    rows = tuple(
        (value.name, LOADER_NAMES[value.arm], value.step, *(value.phases[phase] for phase in phases))
        for value in values
    )
    ours = [value for value in values if value.arm == _OURS]
    sentences = []
    if len(ours) > 1:
        first, last = ours[0], ours[-1]
        grows = [last.phases[phase] / first.phases[phase] for phase in ("forward", "backward")]
        sentences.append(
            f"From batches of {first.name} to batches of {last.name}, with {int(last.name) / int(first.name):g} times "
            f"the samples, the forward pass takes {times(grows[0], 'long')} and the backward pass "
            f"{times(grows[1], 'long')}."
        )
    return Section(
        f"steps-{model}", f"{_sentence_name(model)}: where a step's time goes",
        "Each bar is a step of training: the time that it waited for data, and the model's own work.",
        tuple(sentences), Table("Means of all steps of the turns", columns, rows),
    )  # fmt: skip


def _progressive(results: Results, model: str, sweep: Sweep, values: Sequence[Value]) -> Iterator[str]:
    """Say what images that grow during training save, resized by the loader and on the device.

    The schedule is ProgressiveResize's own; the time of a sample at a size between two measured ones is interpolated.
    """
    base = results.setting(model)
    sides = dict(enumerate(sweep.values(base, results.cores)))
    schedule = lmdbloader.ProgressiveResize(_SCHEDULE_EPOCHS)
    sizes = [schedule.size_at(epoch, (base.size, base.size))[0] for epoch in range(_SCHEDULE_EPOCHS)]
    for arm in ARMS:
        means = {}
        for where in ("loader", "device"):
            own = [
                (sides[v.place][0], 1 / v.samples_per_s) for v in values if v.arm == arm and sides[v.place][1] == where
            ]
            if len(own) < 2:
                return
            took = np.interp(np.square(sizes), *zip(*((side**2, each) for side, each in sorted(own)), strict=True))
            means[where] = float(took.mean()) / max(own)[1]
        yield (
            f"{LOADER_NAMES[arm]}: with images that grow from {sizes[0]} to {sizes[-1]} pixels during training "
            f"(progressive resizing), an epoch takes {percent(means['loader'])} of the time at full size if the loader "
            f"makes them, and {percent(means['device'])} if they are resized on the device."
        )


_PHASE_NAMES = {"data": "waiting", "copy": "copy and conversion", "compute": "rest"}


def _of_sweep(results: Results, model: str, sweep: Sweep, values: Sequence[Value]) -> Iterator[str]:
    if sweep.name == "batch-size":
        yield from _batch_sizes(results, model)
        yield from _use_by_batch(values)
    ratios = {}
    for place in dict.fromkeys(value.place for value in values):
        at = {value.arm: value for value in values if value.place == place}
        if _OURS in at and "folder" in at:
            ratios[at[_OURS].name] = at[_OURS].samples_per_s / at["folder"].samples_per_s
    if ratios:
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        if times(ratios[least]) == times(ratios[most]):
            yield f"Loader is {times(ratios[least])} as image files."
        else:
            yield (f"Loader is {times(ratios[least])} as image files at {least}, and {times(ratios[most])} at {most}.")
    if sweep.name == "resize":
        yield from _progressive(results, model, sweep, values)
    if sweep.name == "workers":
        for arm in ARMS:
            own = [value for value in values if value.arm == arm]
            if own:
                best = max(own, key=lambda value: value.samples_per_s)
                yield f"{LOADER_NAMES[arm]} is fastest with {best.name}."
    elif len(sweep.arms) == 1 and len(values) > 1:
        first, *others = values
        for other in others:
            yield f"{other.name} is {times(other.samples_per_s / first.samples_per_s)} as {first.name}."
