"""The section of benchmarks/results/gpu/tables.md on the device side, and the answers that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from report_results import Results, Row, matching
from report_text import NOTHING, cell_text, number, pair, paragraphs, pivot, ratio, share, source, table
from report_training import name_of

# Ways of loading, in words; options of a Loader are in code.
WAYS = {
    "resident": "ceiling",
    "copied": '`device="cuda"`',
    "on device": '`on="device"`',
    "kept": '`keep="device"`',
    "kept decoded": '`keep="memory"`',
    "kept decoded, on device": '`keep="memory"`, `on="device"`',
}
_DATA = {
    "large": "pairs of 96 px from 2040 x 1356",
    "pairs": "pairs of 96 px",
    "tiny": "50,000 images of 32 px",
    "jpegs": "JPEG files, 128 px",
    "pixels": "the same images as pixels",
}
_SAID: dict[Any, str] = {True: "yes", False: "**no**"}
STAGES = ("host", "device", "keep", "fed_device", "ranks", "jpeg")


def way_of(text: str) -> str:
    """Return a way of loading on the page.

    >>> way_of("Loader, kept"), way_of("Loader, .to()")
    ('Loader, `keep="device"`', 'Loader, .to()')
    """
    before, comma, name = text.partition(", ")
    return f"Loader, {WAYS[name]}" if comma and before == "Loader" and name in WAYS else WAYS.get(text, text)


def device_side(results: Results) -> str:
    """Return all tables of the device side."""
    parts = [host(results), equality(results), kinds(results), memory(results), epochs(results)]
    parts += [fed_device(results), ranks(results), decoders(results)]
    found = [stage for stage in STAGES if results.run_of(stage)]
    if not any(parts):
        return ""
    return paragraphs("## The device side", *(source(results, stage) for stage in found), *parts)


def host(results: Results) -> str:
    """Return the time of the loop's thread for a batch that is ready, and its calls."""
    lines = []
    for row in results.rows("host", "batches"):
        calls = [sum((row.get(f"calls_of_{kind}") or {}).values()) for kind in ("torch", "cuda")]
        figures = (row.get("us_thread"), row.get("us"), row.get("us_p95"), *calls)
        lines.append([way_of(row["way"]), *map(number, figures)])
    text = (
        "The loop's own thread in `next(loader)`, for batches of 8 pairs of 48 and 96 px with numbers that are ready:"
    )
    head = ["batches", "us of the thread", "us", "us, p95", "calls of torch", "of CUDA"]
    return paragraphs("### The loop's own time for a batch", text, table(head, lines)) if lines else ""


def equality(results: Results) -> str:
    """Return how many random lists of transforms give the same values on the device as on the CPU."""
    found: Row = results.fact("device", "equality") or {}
    if not found:
        return ""
    worst = [[name, number(value)] for name, value in sorted((found.get("worst") or {}).items())]
    refused = [[cell_text(what), number(count)] for what, count in (found.get("refused") or {}).items()]
    return paragraphs(
        "### The same values as on the CPU",
        f"**{told_equal(results)}.**",
        table(["random lists with", "largest difference, levels"], worst),
        "Apart: " + "; ".join(f"`{cell_text(text)}`" for text in found["apart"]) if found.get("apart") else None,
        table(["refused", "lists"], refused),
    )


def told_equal(results: Results) -> str | None:
    """Return the counts of the comparison in words."""
    found: Row = results.fact("device", "equality") or {}
    if not found.get("geometry lists"):
        return None
    return (
        f"{number(found.get('geometry equal', 0))} of {number(found['geometry lists'])} random lists of geometry and"
        f" values are equal bit for bit, {number(found.get('colors within one level', 0))} of"
        f" {number(found.get('colors lists', 0))} with colors within one level"
    )


def kinds(results: Results) -> str:
    """Return the time of each transform on a batch that is on the device."""
    rows = results.rows("device", "kinds")
    lines = [[f"`{row['kind']}`", number(row.get("us_host")), number(row.get("us"))] for row in rows]
    if not lines:
        return ""
    text = f"A batch of {rows[0]['batch_size']} images of {rows[0]['side']} px that is on the device, uint8:"
    return paragraphs("### Transforms on the device", text, table(["transform", "us of the host", "us"], lines))


def memory(results: Results) -> str:
    """Return the device's memory over many epochs."""
    lines = []
    for row in results.rows("device", "memory"):
        figures = [number(row.get(key)) for key in ("epochs", "mib_after_2", "mib_most", "mib_last")]
        lines.append([way_of(row["way"]), *figures, _SAID[row["is_kept_unchanged"]]])
    head = ["batches", "epochs", "MiB after two", "most", "last", "a batch that the loop keeps is unchanged"]
    return paragraphs("### Memory of the device", table(head, lines)) if lines else ""


def epochs(results: Results) -> str:
    """Return the first and later epochs of datasets that are kept."""
    lines = []
    for row in results.rows("keep", "epochs"):
        figures = [number(row.get(key)) for key in ("batch_size", "first_per_s", "later_per_s", "mib")]
        lines.append([_DATA.get(row["data"], row["data"]), way_of(row["way"]), *figures, _SAID[row["is_equal"]]])
    refused: Row = results.fact("keep", "refused") or {}
    head = ["data", "batches", "size", "samples/s, first epoch", "later", "MiB on the device", "equal to the CPU's"]
    return paragraphs(
        "### Kept on the device, or decoded",
        table(head, lines),
        f"A dataset that does not fit: {cell_text(refused['message'])}" if refused.get("is_refused") else None,
    ) if lines else ""  # fmt: skip


def fed_device(results: Results) -> str:
    """Return the speed of training, with its share of the ceiling in the same turns."""
    columns, lines = pivot(
        results.rows("fed_device", "training"),
        lambda row: (name_of(row["model"]), number(row["pixels"]), number(row["batch_size"])),
        lambda row: row["feed"],
        lambda row: pair(row.get("samples_per_s"), None if row["feed"] == "resident" else row.get("share_of_ceiling")),
    )
    text = "Samples per second of whole training steps; in brackets the share of the ceiling in the same turns:"
    head = ["network", "pixels", "batch", *map(way_of, columns)]
    return paragraphs("### Training fed by the device side", text, table(head, lines)) if lines else ""


def ranks(results: Results) -> str:
    """Return how two processes on one GPU went."""
    lines = []
    for row in results.rows("ranks", "ranks"):
        kept = [_SAID.get(row.get(key), NOTHING) for key in ("are_disjoint", "are_weights_equal")]
        said = cell_text(row.get("message", ""))[-200:]
        lines.append([row["backend"], way_of(row["way"]), row["ended"], *kept, number(row.get("steps_per_s")), said])
    head = ["backend", "batches", "ended", "samples disjoint", "weights equal", "steps/s", "message"]
    return paragraphs("### Two processes on one GPU", table(head, lines)) if lines else ""


def decoders(results: Results) -> str:
    """Return JPEG decoding on the GPU and by the Loader's threads."""
    rows = results.rows("jpeg", "decoders")
    ours = max((row["images_per_s"] for row in matching(rows, decoder="Loader")), default=None)
    lines = [
        [
            row["decoder"], number(row["batch_size"]), number(row["images_per_s"]), number(row.get("busy")),
            ratio(row["images_per_s"] / ours) if ours and row["decoder"] != "Loader" else NOTHING,
        ]
        for row in rows
    ]  # fmt: skip
    head = ["decoder", "batch", "images/s", "cores busy", "x Loader"]
    return paragraphs("### JPEG decoded on the GPU", table(head, lines)) if lines else ""


def told_host(results: Results) -> str | None:
    """Return the microseconds of the loop's thread by way."""
    return "; ".join(
        f"{way_of(row['way'])}: {number(row['us_thread'])} us" for row in results.rows("host", "batches")
    ) or None  # fmt: skip


def told_shares(results: Results) -> str | None:
    """Return the shares of the ceiling by network and way."""
    rows = [row for row in results.rows("fed_device", "training") if row["feed"] != "resident"]
    return "; ".join(
        f"{name_of(row['model'])}, {row['batch_size']}, {way_of(row['feed'])}: {share(row['share_of_ceiling'])}"
        for row in rows
    ) or None  # fmt: skip


def told_pairs(results: Results) -> str | None:
    """Return the largest number of pairs a second by way."""
    return _best(matching(results.rows("keep", "epochs"), data="large"), "way", "later_per_s")


def told_decoders(results: Results) -> str | None:
    """Return the images a second of each decoder at its best."""
    return _best(results.rows("jpeg", "decoders"), "decoder", "images_per_s")


def _best(rows: Iterable[Row], key: str, value: str) -> str | None:
    best: dict[str, float] = {}
    for row in rows:
        best[row[key]] = max(best.get(row[key], 0.0), row[value])
    return "; ".join(f"{way_of(name)}: {number(most)}" for name, most in best.items()) or None
