"""The conclusion of a study: what it means for this dataset, model and machine, and what to do now."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmdbloader.lab.formatting import percent, window
from lmdbloader.lab.study.findings import compared, sections, speed_of
from lmdbloader.lab.study.ranges import Measured, is_clear, measured, ratio, show_times
from lmdbloader.lab.study.rows import LoaderKind, StudyFigures, SweepRow, focus, loading, training

# A model that waits for at most this share of the time is fed.
_FED = 0.05
_OURS: LoaderKind = "lmdbloader"
_OTHERS: dict[LoaderKind, str] = {"folder": "from image files", "dataloader": "with torch's DataLoader"}
# Of turns that are long enough for figures to keep, and how many of them.
_LONG_SECONDS, _LONG_REPEATS = 2.0, 5


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do now.

    Attributes:
        why: A sentence that ends in a colon.
        line: To paste: of a shell, or of Python.
    """

    why: str
    line: str


def headline(study: StudyFigures) -> str:
    """Return the conclusion, one sentence without its full stop.

    It compares with image files if they are the same images, else with torch's DataLoader over the dataset, in the
    smallest batches. Nothing whose turns overlap is called a difference.
    """
    limit = _limit(study)
    pair = _pair(study)
    if pair is None:
        first = next(
            (sentence for section in sections(study) for sentence in section.sentences), "Nothing was measured."
        )
        return (limit[:1].upper() + limit[1:]) or first.rstrip(".")
    other = _OTHERS[pair[1].source]
    loads, trains = _ratios(pair)
    text = f"Loading is {_as_fast(loads)} {other}"
    if trains is None:
        return text
    if is_clear(trains):
        return f"{text}; training {show_times(trains)}: {limit}"
    return f"{text}; training does not differ: {limit}"


def question(study: StudyFigures) -> str:
    """Return the question that a study answers."""
    if not training(study).rows:
        return "how fast are batches loaded?"
    return "is the model fed?" if study.settings.device.startswith("cpu") else "is the GPU fed?"


def scope(study: StudyFigures) -> str:
    """Return a sentence about what the headline holds for; empty if it compares nothing."""
    pair = _pair(study)
    if pair is None:
        return ""
    size, crop = focus(study)
    text = f"This holds in batches of {size:,} ({window(crop)}), the hardest to load"
    if min(len(row.turns) for row in pair) < 2:
        text += "; each setting had one turn, so differences below about 20 % are not called differences"
    return f"{text}."


def next_steps(study: StudyFigures) -> tuple[Step, ...]:
    """Return what to do now, the most important first, three steps at most."""
    return tuple(_steps(study))[:3]


def _steps(study: StudyFigures) -> Iterator[Step]:
    if not study.sweep:
        yield Step("See whether your model is fed:", shlex.join(["lmdbloader", "bench", study.dataset.path]))
        return
    size = focus(study)[0]
    waiting = _worst(study)
    path = study.dataset.path
    if waiting is not None and waiting.training is not None and waiting.training.stall > _FED:
        step = waiting.training.phases.total - waiting.training.phases.data
        words = ["lmdbloader", "tune", path, "--batch-size", str(waiting.batch_size), "--step-seconds", f"{step:.2g}"]
        words += [] if waiting.crop is None else ["--crop", str(waiting.crop)]
        yield Step("Find the number of threads with which the model does not wait:", shlex.join(words))
    else:
        fed = "Loading is not the limit; use" if waiting is not None else "Use"
        yield Step(f"{fed} the Loader in your training loop:", f"lmdbloader.Loader({path!r}, batch_size={size})")
    pair = _pair(study)
    if pair is not None and _may_differ(pair):
        yield Step(
            "Some turns overlap. Measure longer, on an idle machine:",
            longer(study.settings.command),
        )
    if not any(field.kind == "image" for field in study.dataset.fields):
        return  # neither files nor a model can take them
    if study.baseline is None:
        yield Step("Compare with image files:", _changed(study.settings.command, baseline="auto"))
    if waiting is None:
        yield Step("See whether a model is fed:", shlex.join(["lmdbloader", "bench", path, "--only", "sweep"]))


def _pair(study: StudyFigures) -> tuple[SweepRow, SweepRow] | None:
    """Return the Loader's row and the one that the headline compares it with; None if there are not both."""
    if not study.sweep:
        return None
    sweep, place = loading(study), focus(study)
    ours = sweep.row(_OURS, *place)
    theirs = next((row for name in _OTHERS if name in compared(study) and (row := sweep.row(name, *place))), None)
    return None if ours is None or theirs is None else (ours, theirs)


def _ratios(pair: tuple[SweepRow, SweepRow]) -> tuple[Measured, Measured | None]:
    """Return how many times as fast the Loader is, loading alone and training; None without a model."""
    ours, theirs = pair
    loads = ratio(measured(ours.samples_per_s, ours.turns), measured(theirs.samples_per_s, theirs.turns))
    has_model = ours.training is not None and theirs.training is not None
    return loads, ratio(speed_of(ours), speed_of(theirs)) if has_model else None


def _may_differ(pair: tuple[SweepRow, SweepRow]) -> bool:
    """Return whether longer turns may tell more: two loaders that both feed the model train at the same speed."""
    loads, trains = _ratios(pair)
    are_fed = all(row.training is not None and row.training.stall <= _FED for row in pair)
    return not is_clear(loads) or (trains is not None and not is_clear(trains) and not are_fed)


def _as_fast(found: Measured) -> str:
    return f"{show_times(found)} as fast as" if is_clear(found) else "not measurably faster or slower than"


def _worst(study: StudyFigures) -> SweepRow | None:
    """Return the Loader's setting in which the model waits for the largest share of the time."""
    rows = [row for row in study.sweep if row.source == _OURS and row.training is not None]
    return max(rows, key=lambda row: 0.0 if row.training is None else row.training.stall, default=None)


def _limit(study: StudyFigures) -> str:
    row = _worst(study)
    if row is None or row.training is None:
        return ""
    stall = row.training.stall
    if stall <= _FED:
        return "the model is your limit"
    return f"the model waits for data up to {percent(stall)} of the time"


def longer(command: str, file: str = "") -> str:
    """Return a command with turns that are long enough for figures to keep, and the JSON file that it writes."""
    options = {"json": file} if file.endswith(".json") else {}
    return _changed(command, seconds=f"{_LONG_SECONDS:g}", repeats=str(_LONG_REPEATS), **options)


def _changed(command: str, **options: str) -> str:
    """Return a command with other values of options."""
    try:
        words = shlex.split(command)
    except ValueError:  # text that no release wrote
        return command
    for name, value in options.items():
        words = [*_without(words, f"--{name}"), f"--{name}", value]
    return shlex.join(words)


def _without(words: Sequence[str], flag: str) -> list[str]:
    """Return words without an option and its values."""
    if flag not in words:
        return list(words)
    begin = words.index(flag)
    end = next((i for i in range(begin + 1, len(words)) if words[i].startswith("--")), len(words))
    return [*words[:begin], *words[end:]]
