"""Sections of results/gpu/tables.md on loading alone: all cores without the GPU, and copies to the device."""

from __future__ import annotations

from collections.abc import Sequence

from report_results import Results, Row, first, matching, over
from report_text import NOTHING, number, pair, paragraphs, pivot, ratio, share, source, table

OURS, FFCV, COPY = "Loader", "FFCV", "memory copy"
FOLDER = "DataLoader, folder, Pillow"
PNG = "DataLoader, PNG files, Pillow"
HAND = ("DataLoader, hand-written LMDB", "DataLoader, hand-written LMDB, float32 by the loop")
# FFCV's files with the same samples as a dataset.
TURNED = "pairs, turned"
SAME_SAMPLES = {"pairs_raw": "pairs", "pairs_lz4": "pairs", "raw256": "raw256", "original": "original"}


# The keys of a row of loading alone.
ROW_OF = ("what", "dataset", "dtype", "threads")


def filled_from(rows: list[Row]) -> str:
    """Return which run the figures with a star are from."""
    names = sorted({row["run"] for row in rows if "run" in row})
    return f"\\* from the run {', '.join(names)}: the last run had no time left for it." if names else ""


def cores(results: Results) -> str:
    """Return speed by threads, copying memory, FFCV, DataLoaders, small batches, processes and conversion."""
    tables = []
    for title, name in (("Pairs of 96 and 48 pixels", "pairs"), ("Photographs, cut to 224 pixels", "images")):
        if rows := results.filled("cores", name, ROW_OF):
            tables += [f"### {title}", by_threads(rows), filled_from(rows), compared(results, rows)]
    parts = [*tables, dataloaders(results), small_batches(results), processes(results), conversion(results)]
    if not any(parts):
        return ""
    count = results.fact("cores", "cores", "cores")
    has_turned = any(matching(results.rows("cores", "pairs"), what=FFCV, dataset=TURNED))
    return paragraphs(
        "## Loading on all cores, without the GPU",
        source(results, "cores"),
        f"Samples per second of loading alone{'' if count is None else f', on {number(count)} cores'}. In brackets: the"
        " bytes of the batches as a share of the bytes that the same number of threads copy in memory (`memory copy`;"
        " of little meaning for JPEG files, which are bounded by decoding). Medians of interleaved turns.",
        "`pairs_raw` and `pairs_lz4` are pairs of patches, stored as pixels and as lz4; `raw256` are photographs of at"
        " most 256 pixels, stored as pixels; `original` are the same photographs as JPEG files.",
        "FFCV's images are cropped, flipped and normalized by its own operations. Its pairs are read by one compiled"
        " operation written for this comparison, which only copies and mirrors them"
        + (", or turns them as the Loader does (`pairs, turned`)" if has_turned else "")
        + ". FFCV verifies no checksum, because it stores none. The Loader verifies every checksum, and applies one of"
        " eight flips and rotations to pairs.",
        *parts,
    )


def by_threads(rows: list[Row]) -> str:
    """Return samples a second by threads, each with its share of copying memory."""
    columns, lines = pivot(
        rows,
        lambda row: (row["what"], row.get("dataset") or NOTHING, row.get("dtype") or NOTHING),
        lambda row: row["threads"],
        _speed,
    )
    return table(["measured", "dataset", "type", *(f"{n} thread{'s' * (n > 1)}" for n in columns)], lines)


def _speed(row: Row) -> str:
    if row["what"] == COPY and row.get("bytes_per_s"):
        return f"{number(row['bytes_per_s'] / 1e9)} GB/s" + (" *" if "run" in row else "")
    return pair(row.get("samples_per_s"), row.get("of_memory_copy")) + (" *" if "run" in row else "")


def compared(results: Results, rows: list[Row]) -> str:
    """Return the Loader with most threads, as multiples of the others' speed."""
    most = max((row["threads"] for row in rows), default=0)
    loaders = results.rows("cores", "dataloaders")

    def best(row: Row, names: Sequence[str]) -> float | None:
        found = matching(loaders, dtype=row.get("dtype"))
        return max((other.get("samples_per_s") or 0.0 for other in found if other["what"] in names), default=None)

    lines = []
    for row in matching(rows, what=OURS, threads=most):
        speed = row.get("samples_per_s")
        peer = first(rows, what=FFCV, dataset=SAME_SAMPLES.get(row["dataset"]), dtype=row.get("dtype"), threads=most)
        lines.append(
            [
                row["dataset"],
                str(row.get("dtype")),
                number(speed),
                share(row.get("of_memory_copy")),
                share(row.get("efficiency")),
                ratio(over(speed, peer.get("samples_per_s"))),
                ratio(over(speed, best(row, (FOLDER,) if row.get("kind") == "images" else (PNG,)))),
                ratio(over(speed, best(row, HAND))) if row.get("kind") == "pairs" else NOTHING,
                number(row.get("p50_ms")),
                number(row.get("p99_ms")),
            ]
        )
    head = [
        "dataset", "type", "samples/s", "of memory copy", "of one thread's, times threads", "x FFCV",
        "x DataLoader over files, best", "x hand-written LMDB, best", "p50 ms", "p99 ms",
    ]  # fmt: skip
    return paragraphs(f"The Loader with {number(most)} threads, as a multiple of the others:", table(head, lines))


def dataloaders(results: Results) -> str:
    """Return torch's DataLoader by workers."""
    rows = results.rows("cores", "dataloaders")
    if not rows:
        return ""
    columns, lines = pivot(
        rows,
        lambda row: (row["what"], row.get("dataset") or NOTHING),
        lambda row: row["threads"],
        lambda row: number(row.get("samples_per_s")) + ("*" if row.get("beside_compilers") else ""),
    )
    busy = any(row.get("beside_compilers") for row in rows)
    return paragraphs(
        "### torch's DataLoader",
        table(["measured", "dataset", *(f"{n} worker{'s' * (n > 1)}" for n in columns)], lines),
        "\\* measured while compilers ran on other cores." if busy else None,
    )


def small_batches(results: Results) -> str:
    """Return the speed of small batches as a share of large ones', and the cost of checksums."""
    large = results.rows("cores", "pairs") + results.rows("cores", "images")
    lines = []
    for row in results.rows("cores", "small batches"):
        usual = first(large, **{key: row.get(key) for key in ("what", "dataset", "dtype", "threads")})
        lines.append(
            [
                row.get("dataset") or NOTHING,
                str(row.get("dtype")),
                number(row.get("batch_size")),
                "no" if row.get("verify") is False else "yes",
                number(row.get("samples_per_s")),
                ratio(over(row.get("samples_per_s"), usual.get("samples_per_s"))),
                number(row.get("p50_ms")),
                number(row.get("p99_ms")),
            ]
        )
    head = ["dataset", "type", "batch", "checksums", "samples/s", "x batches as above", "p50 ms", "p99 ms"]
    return paragraphs("### Small batches and checksums", table(head, lines)) if lines else ""


def processes(results: Results) -> str:
    """Return several processes with a loader each."""
    rows = results.rows("cores", "processes")
    lines = []
    for row in rows:
        one = first(rows, dataset=row.get("dataset"), processes=1)
        speed = row.get("samples_per_s")
        alone = over(speed, one.get("samples_per_s"))
        each = [number(min(row.get("each") or [0])), number(max(row.get("each") or [0]))]
        facts = [row.get("dataset") or NOTHING, number(row.get("processes")), number(row.get("threads_each"))]
        lines.append([*facts, number(speed), ratio(alone), *each])
    head = ["dataset", "processes", "threads each", "samples/s, all", "x one process", "slowest", "fastest"]
    return paragraphs("### Several processes", table(head, lines)) if lines else ""


def conversion(results: Results) -> str:
    """Return conversion by workers, compared with FFCV's writer."""
    rows, writer = results.rows("cores", "conversion"), results.rows("cores", "FFCV's writer")
    columns, lines = pivot(
        [*rows, *writer],
        lambda row: (row["what"],),
        lambda row: row["workers"],
        lambda row: pair(row.get("images_per_s"), row.get("efficiency")),
    )
    text = "Images per second, total time; in brackets: the share of one worker's speed times the workers."
    head = ["measured", *(f"{n} worker{'s' * (n > 1)}" for n in columns)]
    return paragraphs("### Converting", text, table(head, sorted(lines))) if lines else ""


def copies(results: Results) -> str:
    """Return the cost of copies to the device: the link, overlap, loops, batches, conversion there."""
    link = results.fact("copies", "link", "gb_per_s")
    parts = [overlap(results), loops(results), batches(results), converted(results)]
    if link is None and not any(parts):
        return ""
    back = results.fact("copies", "link", "to_host_gb_per_s")
    return paragraphs(
        "## Copies to the device",
        source(results, "copies"),
        f"The link carries {number(link)} GB/s to the device and {number(back)} GB/s back, in pinned copies of"
        f" {number(over(results.fact('copies', 'link', 'nbytes'), 2**20))} MiB; 1 GB is a billion bytes."
        if link is not None
        else None,
        *parts,
    )


def overlap(results: Results) -> str:
    """Return steps of a known length with a copy each."""
    rows = results.rows("copies", "overlap")
    columns, lines = pivot(
        rows,
        lambda row: (str(row.get("work")), number(row.get("compute_ms")), number(row.get("copy_ms"))),
        lambda row: row["copied"],
        lambda row: pair(row.get("step_ms"), row.get("of_the_longer"), ratio),
    )
    text = (
        "A step with a fixed time of computing that takes one batch of images as float32: milliseconds, and in brackets"
        " the ratio to the longer of computing and copying. At 1.0 the copy is free."
    )
    head = ["work", "computes, ms", "copy, ms", *(f"copied {name}" for name in columns)]
    return paragraphs("### Copy ahead or in the loop", text, table(head, lines)) if lines else ""


def loops(results: Results) -> str:
    """Return loops over real loaders."""
    rows = results.rows("copies", "loops")
    columns, lines = pivot(
        rows,
        lambda row: (str(row["what"]), number(row["batch_size"]), str(row["dtype"]), number(row.get("compute_ms"))),
        lambda row: row["way"],
        lambda row: pair(row.get("step_ms"), row.get("share")),
    )
    text = (
        "Loops over loaders, with work on the device that takes 1.5 times as long as reading: milliseconds per step,"
        " and in brackets the share of it in which the device works. `ahead` is `device=` of the Loader; with `pinned`"
        " and `paged` the loop copies from such memory."
    )
    head = ["batches", "samples", "type", "work, ms", *columns]
    return paragraphs("### Training loops over real loaders", text, table(head, lines)) if lines else ""


def batches(results: Results) -> str:
    """Return copies of batches from pinned and paged memory."""
    rows = results.rows("copies", "batches")
    lines = []
    for row in matching(rows, memory="pinned"):
        paged = first(rows, **{key: row.get(key) for key in ("what", "batch_size", "dtype")}, memory="paged")
        lines.append(
            [
                str(row.get("what")),
                number(row.get("batch_size")),
                str(row.get("dtype")),
                number(over(row.get("nbytes"), 2**20)),
                pair(row.get("gb_per_s"), row.get("share_of_link")),
                pair(paged.get("gb_per_s"), paged.get("share_of_link")),
                ratio(over(row.get("gb_per_s"), paged.get("gb_per_s"))),
                number(row.get("us_alone")),
                number(paged.get("us_alone")),
                ratio(over(paged.get("us_alone"), row.get("us_alone"))),
            ]
        )
    head = [
        "batches", "samples", "type", "MiB", "pinned, GB/s (of the link)", "paged, GB/s (of the link)",
        "pinned x paged", "one alone, pinned, us", "paged, us", "pinned x paged, alone",
    ]  # fmt: skip
    text = "Copies of batches without other work: back to back, and one at a time with a wait after each."
    return paragraphs("### Pinned and paged memory", text, table(head, lines)) if lines else ""


def converted(results: Results) -> str:
    """Return sending bytes and sending floats."""
    rows = results.rows("copies", "conversion")
    lines = []
    for row in rows:
        floats = first(rows, sent="float32", batch_size=row.get("batch_size"))
        faster = ratio(over(floats.get("ms"), row.get("ms")))
        lines.append([str(row.get("sent")), number(row.get("batch_size")), number(row.get("ms")), faster])
    text = "Milliseconds until a batch of 224 pixels is on the device as normalized bfloat16, by the type that is sent."
    head = ["sent", "images", "ms", "x as fast as float32"]
    return paragraphs("### Data type to send", text, table(head, lines)) if lines else ""
