"""The sections of benchmarks/results/gpu/tables.md on training: fed or not, and the same accuracy."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from report_results import CLOSER, Results, Row, first, matching, over
from report_text import NOTHING, cell_text, interval, number, pair, paragraphs, pivot, ratio, share, source, table

RESTORING = ("srcnn", "edsr")
NAMES = {
    "srcnn": "SRCNN",
    "edsr": "EDSR-baseline",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "loader raw256": "Loader, pixels",
    "loader raw256, uint8": "Loader, pixels, uint8",
    "loader jpg": "Loader, JPEG",
    "loader jpg, uint8": "Loader, JPEG, uint8",
    "loader pairs_raw": "Loader, raw",
    "loader pairs_lz4": "Loader, lz4",
    "FFCV raw256": "FFCV, pixels",
    "FFCV jpg": "FFCV, JPEG",
    "folder": "folder, DataLoader",
}
KINDS = ("resident", "loader", "ffcv", "folder", "dataloader")


def name_of(text: Any) -> str:
    """Return the name of something on the page."""
    return NAMES.get(text, str(text))


def fed(results: Results) -> str:
    """Return the speed of training from each feed, as a share of the speed with batches already on the device."""
    rows = results.rows("fed", "training")
    if not rows:
        return ""
    images = [row for row in rows if row["model"] not in RESTORING]
    pairs = [row for row in rows if row["model"] in RESTORING and row["pixels"] == 96]
    pinned = [row for row in rows if row["model"] in RESTORING and row["pixels"] != 96]
    settings: Row = results.fact("fed", "settings") or {}
    told = settings.get("precision")
    return paragraphs(
        "## Training throughput",
        source(results, "fed"),
        "Samples per second of whole training steps: from batches that are already on the device (the ceiling), and"
        " from each feed. In brackets: the share of the ceiling." + (f" Precision: {told}." if told else ""),
        above_the_ceiling(rows),
        trainings("### Classifiers", images),
        trainings("### Super-resolution, by batch size", pairs),
        phases(pairs),
        trainings("### From pinned and from paged memory", pinned),
        asking(pinned),
        alone(results),
        verdicts(results),
        epochs(results),
    )


def above_the_ceiling(rows: list[Row]) -> str | None:
    """Return an explanation of shares above 100 %, if there are any."""
    if not any((row.get("share_of_ceiling") or 0) > 1.02 for row in rows):
        return None
    return (
        "A share above 100 % shows how much a ceiling varies: in short steps the GPU waits for the host to start its"
        " kernels, and the speed of the host varies."
    )


def asking(rows: list[Row]) -> str | None:
    """Return how long the loop's own thread is in `next`, by who copies."""
    told = []
    for way, what in (("loader, ahead", "copies ahead"), ("loader, pinned", "leaves the copy to the loop")):
        found = [
            1000 * row["host_wait"] * row["batch_size"] / row["samples_per_s"]
            for row in matching(rows, feed=way)
            if row.get("host_wait") is not None
        ]
        if found:
            told.append(f"{min(found):.2f} to {max(found):.2f} ms per batch if the Loader {what}")
    if not told:
        return None
    return (
        f"The loop's thread spends {', and '.join(told)} in `next`. Starting a copy takes the host a fraction of a"
        " millisecond in either case: it matters in steps of a few milliseconds and is hidden in longer ones."
    )


def trainings(heading: str, rows: list[Row]) -> str:
    """Return a part of the section: the speeds, and each training."""
    return paragraphs(heading, ceilings(rows), details(rows)) if rows else ""


def ceilings(rows: list[Row]) -> str:
    """Return samples a second by feed, each with its share of the ceiling."""
    ordered = sorted(rows, key=lambda row: (row["model"], -row["pixels"], row["batch_size"], _rank(row)))
    columns, lines = pivot(
        ordered,
        lambda row: (name_of(row["model"]), number(row["pixels"]), number(row["batch_size"])),
        lambda row: row["feed"],
        lambda row: pair(row.get("samples_per_s"), None if row["kind"] == "resident" else row.get("share_of_ceiling")),
    )
    order = sorted(columns, key=lambda feed: min(_rank(row) for row in rows if row["feed"] == feed))
    places = [3 + columns.index(feed) for feed in order]
    lines = [[*line[:3], *(line[place] for place in places)] for line in lines]
    return table(["network", "pixels", "batch", *map(_feed_name, order)], lines)


def _rank(row: Row) -> tuple[int, int, str]:
    kind, feed = row.get("kind"), str(row.get("feed"))
    known = list(NAMES)
    return KINDS.index(kind) if kind in KINDS else len(KINDS), known.index(feed) if feed in NAMES else len(known), feed


def _state(row: Row) -> str:
    state = row.get("performance_state")
    return NOTHING if state is None else f"P{state}"


def _feed_name(feed: str) -> str:
    return "ceiling" if feed == "resident" else name_of(feed)


def details(rows: list[Row]) -> str:
    """Return each training run's waiting, and the GPU's utilization, power, memory and temperature."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["model"], -row["pixels"], row["batch_size"], _rank(row))):
        same = {key: row[key] for key in ("model", "pixels", "feed")}
        largest = max((other["batch_size"] for other in matching(rows, **same)), default=row["batch_size"])
        fastest = first(rows, **same, batch_size=largest)
        folder = first(rows, model=row["model"], pixels=row["pixels"], batch_size=row["batch_size"], feed="folder")
        speed = row.get("samples_per_s")
        longer = over(fastest.get("samples_per_s"), speed) if row["batch_size"] != largest else None
        lines.append(
            [
                f"{name_of(row['model'])}, {row['pixels']} px, {row['batch_size']}",
                _feed_name(row["feed"]),
                number(speed),
                share(row.get("share_of_ceiling")) if row["kind"] != "resident" else NOTHING,
                ratio(over(speed, folder.get("samples_per_s"))) if row["feed"] != "folder" else NOTHING,
                ratio(longer),
                share(row.get("stall")),
                number(row.get("wait_p99_ms")),
                number(row.get("gpu_percent")),
                number(row.get("watts")),
                number(row.get("gpu_mib")),
                number(row.get("celsius")),
                _state(row),
                number(row.get("cores")),
                str(row.get("bottleneck") or NOTHING),
            ]
        )
    head = [
        "network", "feed", "samples/s", "of the ceiling", "x folder", "an epoch, x largest batch", "waits",
        "wait p99, ms", "GPU busy, %", "W", "GPU memory, MiB", "\N{DEGREE SIGN}C", "state",
        "cores busy", "slowest",
    ]  # fmt: skip
    return f'??? note "Each training: waiting, utilization, power, memory"\n\n{_indented(table(head, lines))}'


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def phases(rows: list[Row]) -> str:
    """Return the phases of a step by batch size, with batches that are on the device and with the Loader's."""
    names = ("data", "copy", "forward", "backward", "update", "compute")
    lines = []
    for row in sorted(rows, key=lambda row: (row["model"], _rank(row), row["batch_size"])):
        found: Row = row.get("phases_ms") or {}
        if found and row["kind"] in ("resident", "loader", "folder"):
            facts = [name_of(row["model"]), _feed_name(row["feed"]), number(row["batch_size"])]
            lines.append([*facts, *(number(found.get(name)) for name in names)])
    head = ["network", "feed", "batch", *names]
    text = "Milliseconds of a step by phase, as measured by `lab.profile`:"
    return paragraphs(text, table(head, lines)) if lines else ""


def alone(results: Results) -> str:
    """Return feeds without training."""
    rows = results.rows("fed", "alone")
    lines = []
    for row in rows:
        folder = first(rows, pixels=row.get("pixels"), batch_size=row.get("batch_size"), feed="folder")
        speed = row.get("samples_per_s")
        facts = [_feed_name(str(row.get("feed"))), *(number(row.get(key)) for key in ("pixels", "batch_size"))]
        compared = ratio(over(speed, folder.get("samples_per_s"))) if row.get("feed") != "folder" else NOTHING
        lines.append([*facts, number(speed), compared, number(row.get("first_batch_s"))])
    head = ["feed", "pixels", "batch", "samples/s on the device", "x folder", "first batch, s"]
    return paragraphs("### Feeds without training", table(head, lines)) if lines else ""


def verdicts(results: Results) -> str:
    """Return the predictions of plan and doctor next to the measured values."""
    lines = []
    for row in results.rows("fed", "verdicts"):
        enough = over(row.get("alone_per_s"), row.get("needed_per_s"))
        lines.append(
            [
                f"{name_of(row.get('model'))}, {row.get('pixels')} px",
                _feed_name(str(row.get("feed"))),
                number(row.get("step_ms")),
                number(row.get("needed_per_s")),
                pair(row.get("alone_per_s"), enough, ratio),
                cell_text(f"{row.get('doctor_verdict')}: {row.get('doctor')}"),
                share(row.get("doctor_share")),
                share(row.get("seen_share")),
                share(row.get("seen_stall")),
                str(row.get("seen_bottleneck") or NOTHING),
            ]
        )
    head = [
        "network", "feed", "step, ms", "plan: needs, samples/s", "feed alone (x need)", "doctor",
        "of the ceiling, predicted", "measured", "waits", "slowest",
    ]  # fmt: skip
    return paragraphs("### Predictions of plan and doctor", table(head, lines)) if lines else ""


def epochs(results: Results) -> str:
    """Return whole epochs, with their start."""
    rows = [row for row in results.rows("fed", "epochs") if row.get("epoch_s")]
    folder = first(rows, feed="folder").get("epoch_s")
    lines = []
    for row in rows:
        took = row["epoch_s"]
        later = median(took[1:] or took)
        compared = over(median(folder[1:] or folder), later) if folder else None
        facts = [_feed_name(str(row.get("feed"))), name_of(row.get("model"))]
        facts += [number(row.get("pixels")), number(row.get("samples")), number(took[0]), number(later)]
        lines.append([*facts, ratio(compared) if row.get("feed") != "folder" else NOTHING])
    head = ["feed", "network", "pixels", "images", "first epoch, s", "later ones, s", "x as fast as the folder"]
    return paragraphs("### Whole epochs", table(head, lines)) if lines else ""


_MEASURES = {"top1": ("top-1", 4), "loss": ("loss", 4), "psnr": ("PSNR, dB", 3)}
_TASKS = {"classifier": "A classifier", "srcnn": "SRCNN"}


def accuracy(results: Results) -> str:
    """Return the accuracy after training from each feed, and whether the feeds agree."""
    tasks = [text for name in _TASKS if (text := task(results, name))]
    if not tasks:
        return ""
    return paragraphs(
        "## Accuracy",
        source(results, "accuracy"),
        "The same network trained on the same samples, for the same number of epochs, with the same schedule, several"
        " times with different initial weights and orders. ± and the brackets are 95 % intervals (t distribution; of"
        " two means: Welch's). Two feeds agree if the interval of their difference contains 0; even with equal feeds,"
        " one in twenty does not. The rows called *planted* contain a deliberate mistake, which the comparison has to"
        " detect. *raw 256 px* are images that were shrunk during conversion; the folder's were not.",
        *tasks,
        looked_closer(results),
    )


def looked_closer(results: Results) -> str | None:
    """Return the results of more training runs without a GPU."""
    rows = results.rows(CLOSER, "rows")
    if not rows:
        return None
    lines = [
        [
            row["trained"], row["feed"], number(row["runs"]),
            f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})",
        ]
        for row in rows
    ]  # fmt: skip
    return paragraphs(
        "### The classifier in more runs",
        str(results.fact(CLOSER, "told")),
        table(["trained", "feed", "runs", "top-1 minus the folder's"], lines),
    )


def task(results: Results, name: str) -> str:
    """Return the tables of one network."""
    rows, compared = results.rows("accuracy", name), results.rows("accuracy", f"{name} compared")
    if not rows:
        return ""
    settings: Row = results.fact("accuracy", "settings") or {}
    keys = {
        "classifier": ("model", "images", "size", "batch_size", "epochs", "rate"),
        "srcnn": ("pairs", "crop", "sr_batch_size", "sr_epochs", "sr_rate"),
    }[name]
    told = ", ".join(f"{key.removeprefix('sr_').replace('_', ' ')} {settings[key]}" for key in keys if key in settings)
    measures = [measure for measure in _MEASURES if any(measure in row for row in rows)]
    folder = next((row for row in rows if "folder" in row["feed"]), {})
    lines = [
        [
            row["feed"], number(row.get("runs")),
            *(interval(row.get(measure), row.get(f"{measure} +-"), _MEASURES[measure][1]) for measure in measures),
            interval(row.get("seconds"), row.get("seconds +-"), 2),
            ratio(over(folder.get("seconds"), row.get("seconds"))) if row is not folder else NOTHING,
            number(row.get("samples_per_s")),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["feed", "runs", *(_MEASURES[measure][0] for measure in measures)]
    head += ["seconds", "x as fast as the folder", "samples/s, later epochs"]
    found = [
        [
            row["feed"],
            _MEASURES.get(row["measure"], (row["measure"], 4))[0],
            *([f"{row[key]:+.4f}" if row.get(key) is not None else NOTHING for key in ("difference", "low", "high")]),
            judged(row),
        ]
        for row in compared
    ]
    bicubic = results.fact("accuracy", "bicubic", "psnr") if name == "srcnn" else None
    return paragraphs(
        f"### {_TASKS[name]}",
        f"Settings: {told}." if told else None,
        f"Bicubic: {number(bicubic)} dB." if bicubic is not None else None,
        table(head, lines),
        table(["feed, compared with the folder", "measure", "difference", "from", "to", "result"], found),
        also_by_loader(results) if name == "classifier" else None,
    )


def judged(row: Row) -> str:
    """Return the result of a comparison."""
    holds = row.get("contains_0")
    if holds is None:
        return "unknown: too few runs"
    if row.get("planted"):
        return "not detected" if holds else "detected"
    return "agree" if holds else "differ"


def also_by_loader(results: Results) -> str | None:
    """Return how far the score moves when Loader reads the validation images."""
    runs = [run for run in results.rows("accuracy", "classifier runs") if "top1 by Loader" in run]
    runs = [run for run in runs if "planted" not in run["feed"]]
    if not runs:
        return None
    moved = [abs(run["top1 by Loader"] - run["top1"]) for run in runs]
    return (
        "The scores above are of validation images read by Pillow. Read by the Loader, top-1 changes by"
        f" {fmean(moved):.4f} on average over {number(len(moved))} runs, and by at most {max(moved):.4f}."
    )
