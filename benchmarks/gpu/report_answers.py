"""The questions that only a GPU answers, with the answers from the figures and a link to their section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from report_device import told_decoders, told_equal, told_host, told_pairs, told_shares
from report_loading import FFCV, FOLDER, OURS
from report_results import REPEATED, Results, Row, first, matching, over
from report_summary import TABLES
from report_text import number, ratio, share
from report_training import NAMES, name_of

_SAMPLES = {"original": "JPEG files", "raw256": "images stored as pixels", "pairs_raw": "pairs of patches"}
_SOURCES = {
    "resident": "the GPU's memory",
    "folder": "the files by DataLoader",
    "loader pairs_raw": "a dataset by Loader",
}
_TASKS = {"classifier": "ResNet-18", "srcnn": "SRCNN"}
Answer = Callable[[Results], str | None]
_ANCHORS = {
    "correctness": "correctness-on-cuda",
    "cores": "loading-on-all-cores-without-the-gpu",
    "copies": "copies-to-the-device",
    "training": "training-throughput",
    "device side": "the-device-side",
    "accuracy": "accuracy",
}


def answers(results: Results) -> list[tuple[str, str, str]]:
    """Return question, answer, and a link to the section that has the figures, of those with an answer."""
    found = []
    for question in QUESTIONS:
        if answer := question.answer_of(results):
            found.append((question.text, answer, f"[{question.where}]({TABLES}#{_ANCHORS[question.where]})"))
    return found


def unknown(results: Results) -> list[str]:
    """Return the questions without an answer."""
    return [question.text for question in QUESTIONS if not question.answer_of(results)]


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        text: In words.
        answer: Takes the results; None if figures are missing.
        where: Which section has the figures, a key of `_ANCHORS`.
        is_claimed: Whether other pages claim it.
    """

    text: str
    answer: Answer
    where: str
    is_claimed: bool = False

    def answer_of(self, results: Results) -> str | None:
        """Return the answer, None if one of its figures is missing."""
        try:
            return self.answer(results)
        except (KeyError, TypeError, ValueError):
            return None


def right(results: Results) -> str | None:
    """Return the counts of the tests."""
    counts: Row = results.fact("correct", "counts") or {}
    failed = sum(counts.get(word, 0) for word in ("failed", "error", "not collected"))
    if not counts.get("passed"):
        return None
    told = f"{number(counts['passed'])} tests passed, {number(failed)} failed"
    again = results.figures(REPEATED)
    if again and results.run_of(REPEATED) is results.run_of("correct"):
        told += (
            f". After the fixes, the failures and related tests ran again: {number(again['passed'])} passed,"
            f" {number(len(again['failed']))} failed"
        )
    return told


def over_ffcv(results: Results) -> str | None:
    """Return the Loader's speed by FFCV's, with most threads."""
    rows = results.rows("cores", "pairs") + results.rows("cores", "images")
    most = max(row["threads"] for row in rows)
    told = []
    for name, (ours, theirs) in {
        "original": ("original",) * 2,
        "raw256": ("raw256",) * 2,
        "pairs_raw": ("pairs_raw", "pairs"),
    }.items():
        speeds = [
            first(rows, what=what, dataset=dataset, dtype="float32", threads=most).get("samples_per_s")
            for what, dataset in ((OURS, ours), (FFCV, theirs))
        ]
        if (times := over(*speeds)) is not None:
            told.append(f"{ratio(times)} times as fast with {_SAMPLES[name]}")
    return f"{', '.join(told)}; {number(most)} threads each; FFCV verifies no checksums" if told else None


def over_dataloader(results: Results) -> str | None:
    """Return the Loader's speed by that of a DataLoader over the folder."""
    rows, loaders = results.rows("cores", "images"), results.rows("cores", "dataloaders")
    folder = max(row["samples_per_s"] for row in matching(loaders, what=FOLDER))
    told = []
    for name in ("original", "raw256"):
        speeds = [row["samples_per_s"] for row in matching(rows, what=OURS, dataset=name, dtype="float32")]
        if speeds:
            told.append(f"{ratio(over(max(speeds), folder))} times as fast with {_SAMPLES[name]}")
    return ", ".join(told) or None


def ahead(results: Results) -> str | None:
    """Return how much longer steps are if the loop copies."""
    rows = results.rows("copies", "overlap")
    told = []
    for way, words in (
        ("ahead", "with `device=`"),
        ("loop, pinned", "if the loop copies from pinned memory"),
        ("loop, paged", "from paged memory"),
    ):
        found = [row["of_the_longer"] for row in matching(rows, copied=way)]
        if found:
            told.append(f"{ratio(max(found))} {words}")
    if not told:
        return None
    return f"A step takes at most this many times the longer of its computation and its copy: {', '.join(told)}"


def _training(results: Results, **wanted: object) -> list[Row]:
    return list(matching(results.rows("fed", "training"), **wanted))


def _span(values: Sequence[float], write: Callable[[float], str]) -> str:
    least, most = write(min(values)), write(max(values))
    return least if least == most else f"{least} to {most}"


def _by_batch(results: Results, feed: str) -> list[Row]:
    return sorted(_training(results, model="srcnn", pixels=96, feed=feed), key=lambda row: row["batch_size"])


def _feed(feed: str) -> str:
    return _SOURCES.get(feed, name_of(feed))


def rates(model: str) -> Answer:
    """Return a function for a classifier's images a second, at each size, with Loader."""

    def answer(results: Results) -> str | None:
        told = []
        for row in sorted(_training(results, model=model, feed="loader raw256"), key=lambda row: -row["pixels"]):
            told.append(f"{number(row['samples_per_s'])} of {row['pixels']} pixels ({_of_ceiling(row)})")
        return ", ".join(told) or None

    return answer


def _of_ceiling(row: Row) -> str:
    """Return in words how fast training is, compared with batches that are already on the GPU."""
    reached = row.get("share_of_ceiling")
    if reached is None:
        return "not compared"
    # The ceiling is a measurement of its own, which varies by a few per cent, in short steps by more.
    return (
        f"{share(reached)} of the rate from the GPU's memory" if reached < 0.995 else "as fast as from the GPU's memory"
    )


def by_size(results: Results) -> str | None:
    """Return how images a second grow from the largest size to the smallest."""
    told, sizes = [], ""
    for model in ("resnet50", "resnet18"):
        for feed in ("resident", "folder"):
            rows = sorted(_training(results, model=model, feed=feed), key=lambda row: row["pixels"])
            if len(rows) > 1:
                grown = ratio(over(rows[0]["samples_per_s"], rows[-1]["samples_per_s"]))
                sizes = f"{rows[-1]['pixels']} to {rows[0]['pixels']} pixels"
                told.append(f"{name_of(model)} from {_feed(feed)}: {grown}")
    return f"Images per second grow this many times from {sizes}: {', '.join(told)}" if told else None


def over_folder(*models: str) -> Answer:
    """Return a function for how many times as fast training is with Loader as from the folder."""

    def answer(results: Results) -> str | None:
        told = []
        for model in models:
            found = []
            for row in _training(results, model=model, kind="loader"):
                same = {key: row[key] for key in ("model", "pixels", "batch_size")}
                slower = first(results.rows("fed", "training"), **same, feed="folder").get("samples_per_s")
                found.append(over(row["samples_per_s"], slower))
            times = [value for value in found if value is not None]
            if times:
                told.append(f"{name_of(model)}: {_span(times, ratio)} times as fast")
        return "; ".join(told) or None

    return answer


def waits(results: Results) -> str | None:
    """Return the share of the time that training waits, by loader."""
    found: dict[str, list[float]] = {}
    for feed in NAMES:
        loader = name_of(feed).partition(",")[0]
        shares = [row["stall"] for row in _training(results, feed=feed) if row.get("stall") is not None]
        found.setdefault({"folder": "DataLoader over the files"}.get(loader, loader), []).extend(shares)
    told = [f"{loader}: {_span(shares, share)} of the time" for loader, shares in found.items() if shares]
    return "; ".join(told) or None


def small_batches(results: Results) -> str | None:
    """Return how much longer an epoch takes in the smallest batches than in the largest ones."""
    told, sizes = [], ""
    for feed in ("resident", "loader pairs_raw", "folder"):
        rows = _by_batch(results, feed)
        if len(rows) > 1:
            longer = ratio(over(rows[-1]["samples_per_s"], rows[0]["samples_per_s"]))
            sizes = f"batches of {rows[0]['batch_size']} instead of {rows[-1]['batch_size']}"
            told.append(f"{longer} from {_feed(feed)}")
    return f"With {sizes}, an epoch of SRCNN takes this many times as long: {', '.join(told)}" if told else None


def use_by_batch(results: Results) -> str | None:
    """Return utilization, power and memory in the smallest and the largest batches."""
    rows = [row for row in _by_batch(results, "loader pairs_raw") if row.get("gpu_percent") is not None]
    told = []
    for row in (rows[0], rows[-1]) if len(rows) > 1 else rows:
        used = f"{number(row['gpu_percent'])} %, {number(row.get('watts'))} W, {number(row.get('gpu_mib'))} MiB"
        told.append(f"batches of {row['batch_size']}: {used}")
    return "; ".join(told) or None


def pinning(results: Results) -> str | None:
    """Return how much faster training is from pinned memory, by loader."""
    told = []
    for name, way in (("Loader", "loader"), ("DataLoader", "DataLoader over the dataset")):
        found = []
        for row in _training(results, feed=f"{way}, pinned"):
            same = {key: row[key] for key in ("model", "pixels", "batch_size")}
            paged = first(results.rows("fed", "training"), **same, feed=f"{way}, paged").get("samples_per_s")
            if (times := over(row["samples_per_s"], paged)) is not None:
                found.append(times)
        if found:
            told.append(f"{name}: {_span(found, ratio)} times as fast as from paged memory")
    return "; ".join(told) or None


def phase(name: str) -> Answer:
    """Return a function for the milliseconds of a phase of SRCNN's steps in the smallest and the largest batches."""

    def answer(results: Results) -> str | None:
        rows = _by_batch(results, "loader pairs_raw" if name == "data" else "resident")
        found = [(row["batch_size"], (row.get("phases_ms") or {}).get(name)) for row in rows]
        told = [f"{number(value)} ms in batches of {size}" for size, value in found if value is not None]
        return f"SRCNN: {told[0]}, {told[-1]}" if len(told) > 1 else None

    return answer


def foretold(results: Results) -> str | None:
    """Return how near doctor's share of the ceiling is to the measured one."""
    shares = [(row.get("doctor_share"), row.get("seen_share")) for row in results.rows("fed", "verdicts")]
    off = [abs(said - min(seen, 1.0)) for said, seen in shares if said is not None and seen is not None]
    if not off:
        return None
    return f"It was off by at most {share(max(off))} of the possible speed, in {number(len(off))} cases"


def times_to_epochs(results: Results) -> str | None:
    """Return how many times as fast the same epochs are over."""
    told = []
    for task in ("classifier", "srcnn"):
        rows = results.rows("accuracy", task)
        folder = next((row for row in rows if "folder" in row["feed"]), {})
        for row in rows:
            if not row.get("planted") and row is not folder and (times := over(folder.get("seconds"), row["seconds"])):
                told.append(f"{_TASKS[task]}, {row['feed']}: {ratio(times)} times as soon")
    return "; ".join(told) or None


def same(results: Results) -> str | None:
    """Return which results agree, and whether planted mistakes are seen."""
    told = []
    for task in ("classifier", "srcnn"):
        rows = [row for row in results.rows("accuracy", f"{task} compared") if row.get("contains_0") is not None]
        honest = [row for row in rows if not row.get("planted")]
        planted = [row for row in rows if row.get("planted")]
        if honest:
            agree, seen = sum(row["contains_0"] for row in honest), sum(not row["contains_0"] for row in planted)
            told.append(
                f"{_TASKS[task]}: yes in {agree} of {len(honest)} comparisons; a mistake planted on purpose was seen in"
                f" {seen} of {len(planted)}"
            )
    return "; ".join(told) or None


QUESTIONS: Sequence[Question] = (
    Question(
        "Do batches arrive on the device unchanged, and is pinned memory never overwritten too early?",
        right,
        "correctness",
    ),
    Question("Is the Loader faster than FFCV with many cores?", over_ffcv, "cores", is_claimed=True),
    Question(
        "How much faster is the Loader than torch's DataLoader over the folder?",
        over_dataloader,
        "cores",
        is_claimed=True,
    ),
    Question("How much slower is copying in the loop than copying ahead (`device=`)?", ahead, "copies"),
    Question(
        "How many images a second does ResNet-50 train on through the Loader?",
        rates("resnet50"),
        "training",
        is_claimed=True,
    ),
    Question(
        "How many images a second does ResNet-18 train on through the Loader?",
        rates("resnet18"),
        "training",
        is_claimed=True,
    ),
    Question("Do smaller images train faster, as progressive resizing assumes?", by_size, "training"),
    Question(
        "How much faster is training a classifier than from the folder?",
        over_folder("resnet50", "resnet18"),
        "training",
    ),
    Question(
        "How much faster is training super-resolution than from PNG files?", over_folder("edsr", "srcnn"), "training"
    ),
    Question("How long does training wait for data?", waits, "training"),
    Question("How much slower are small batches?", small_batches, "training"),
    Question(
        "How do utilization, power and memory of the GPU depend on the batch size (SRCNN, Loader)?",
        use_by_batch,
        "training",
    ),
    Question("Is pinned memory worth it, for small and large patches and batches?", pinning, "training"),
    Question("How does the wait for a batch grow with its size?", phase("data"), "training"),
    Question("How does the forward pass grow with the batch size?", phase("forward"), "training"),
    Question("How does the backward pass grow with the batch size?", phase("backward"), "training"),
    Question("Does `doctor` predict the measured result?", foretold, "training"),
    Question("How long is the loop's own thread in `next(loader)`?", told_host, "device side"),
    Question("Do transforms on the device give the values of the CPU?", told_equal, "device side"),
    Question(
        "How fast is training with transforms or data on the device, compared with batches that are already there?",
        told_shares,
        "device side",
    ),
    Question("How many pairs of 96 px a second come from large images?", told_pairs, "device side"),
    Question("Is decoding JPEG on the GPU worth it?", told_decoders, "device side"),
    Question("How much sooner does the same number of epochs finish?", times_to_epochs, "accuracy"),
    Question("Does training reach the same accuracy as from the folder?", same, "accuracy", is_claimed=True),
)
