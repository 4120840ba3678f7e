"""What docs/benchmarks/gpu.md begins with: what was found, against what, and where it is slower; then the charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from report_loading import FFCV, FOLDER, OURS
from report_results import Results, Row, first, matching, over
from report_text import number, paragraphs, ratio, share
from report_training import RESTORING, name_of

# Samples in words; their datasets for the Loader and for FFCV, and which figure has them.
_SAMPLES = (
    ("JPEG files", "original", "original", "images"),
    ("images stored as pixels", "raw256", "raw256", "images"),
    ("pairs of patches", "pairs_raw", "pairs", "pairs"),
)
TABLES = "../../benchmarks/results/gpu/tables.md"


def summary(results: Results) -> str:
    """Return the three sentences, when and on what machine, and the charts that there are figures for."""
    found, folder = loading(results), over_folder(results)
    sentences = [faster(found, folder), training(results), slower(results, found)]
    return paragraphs(
        " ".join(filter(None, sentences)),
        told(results),
        "![Samples per second by threads: Loader, FFCV, DataLoader and copying memory](pictures/gpu-cores.svg)"
        if found or folder
        else None,
        "![Training as a share of the ceiling, by network and feed](pictures/gpu-fed.svg)"
        if any(row.get("share_of_ceiling") is not None for row in _feeds(results))
        else None,
    )


def faster(found: Mapping[str, float], folder: float | None) -> str:
    """Return the sentence about loading alone."""
    parts = []
    if fast := [f"{ratio(times)} times as many {words}" for words, times in found.items() if times >= 1]:
        listed = ", ".join(fast[:-1]) + " and " * (len(fast) > 1) + fast[-1]
        parts.append(f"{listed} per second as FFCV")
    if folder is not None:
        parts.append(f"{ratio(folder)} times as many JPEG files as torch's `DataLoader`")
    return f"With as many threads as cores, the Loader loads {', and '.join(parts)}." if parts else ""


def slower(results: Results, found: Mapping[str, float]) -> str:
    """Return the sentence about where the Loader is behind."""
    parts = [
        f"is slower than FFCV, which verifies no checksum, with {words} ({ratio(times)} times)"
        for words, times in found.items()
        if times < 1
    ]
    rows = [row for row in _feeds(results) if row.get("kind") == "loader" and row.get("share_of_ceiling") is not None]
    if rows:
        worst = min(rows, key=lambda row: row["share_of_ceiling"])
        network = f"{name_of(worst['model'])} in batches of {worst['batch_size']}"
        parts.append(f"slows training down most with {network}, to {share(worst['share_of_ceiling'])} of that speed")
    return f"The Loader {', and '.join(parts)}." if parts else ""


def loading(results: Results) -> dict[str, float]:
    """Return the Loader's speed by FFCV's, with most threads, for each kind of samples."""
    found = {}
    for words, ours, theirs, figure in _SAMPLES:
        rows = results.rows("cores", figure)
        most = max((row["threads"] for row in rows), default=0)
        speeds = [
            first(rows, what=what, dataset=name, dtype="float32", threads=most).get("samples_per_s")
            for what, name in ((OURS, ours), (FFCV, theirs))
        ]
        if (times := over(*speeds)) is not None:
            found[words] = times
    return found


def over_folder(results: Results) -> float | None:
    """Return the Loader's speed with JPEG files by that of torch's DataLoader over them, both at their best."""
    ours = matching(results.rows("cores", "images"), what=OURS, dataset="original", dtype="float32")
    theirs = matching(results.rows("cores", "dataloaders"), what=FOLDER)
    speeds = [max((row.get("samples_per_s") or 0.0 for row in rows), default=0.0) for rows in (ours, theirs)]
    return over(*speeds) if all(speeds) else None


def training(results: Results) -> str:
    """Return the sentence about the classifier that the folder holds up most, at the largest size."""
    rows = [row for row in _feeds(results) if row["model"] not in RESTORING and row.get("share_of_ceiling") is not None]
    largest = max((row["pixels"] for row in rows), default=0)
    folders: Sequence[Row] = [row for row in rows if row["feed"] == "folder" and row["pixels"] == largest]
    if not folders:
        return ""
    slow = min(folders, key=lambda row: row["share_of_ceiling"])
    ours = first(rows, model=slow["model"], pixels=largest, feed="loader raw256").get("share_of_ceiling")
    if ours is None:
        return ""
    return (
        f"{name_of(slow['model'])} trains on images of {number(largest)} pixels at {share(ours)} of its speed with"
        f" batches that are already on the GPU, and through torch's `DataLoader` over the JPEG files at"
        f" {share(slow['share_of_ceiling'])}."
    )


def told(results: Results) -> str | None:
    """Return when and on what machine, with a link to more."""
    stage = next((name for name in ("cores", "fed") if results.run_of(name)), None)
    run = results.run_of(stage) if stage else None
    if run is None:
        return None
    device: Row = results.fact("correct", "device") or {}
    cores = device.get("cores") or results.fact("cores", "cores", "cores")
    facts = [run.name[:10], device.get("name") or "", f"{number(cores)} cores" if cores else ""]
    return f"{', '.join(filter(None, facts))}. [Runs, versions and all tables]({TABLES})."


def _feeds(results: Results) -> Iterator[Row]:
    return (row for row in results.rows("fed", "training") if row.get("kind") != "resident")
