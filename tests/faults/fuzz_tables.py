"""Indexes, records and LMDB's pages, changed value by value and byte by byte, with digests that hold."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from .cases import Case
from .hostile import INTERESTING, Copy, mutate, use

_BATCHES_EACH = 5
_REPAIR_EACH = 3


def prepare_index_values(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of an index that Arrow wrote, with other values in one to three places, and sums that fit."""
    import pyarrow as pa

    copies = _copies(paths, folder)
    batches = [pa.ipc.open_file(copy.index).get_batch(0) for copy in copies]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} values {number}")
        which = rng.randrange(len(copies))
        schema = batches[which].schema
        columns = {name: batches[which].column(name).to_pylist() for name in schema.names}
        for _ in range(rng.randint(1, 3)):
            rng.choice((_change_one, _change_one, _reshape, _exchange))(rng, columns)
        try:
            batch = pa.RecordBatch.from_arrays([_array(columns[f.name], f.type) for f in schema], schema=schema)
        except (pa.ArrowInvalid, OverflowError):
            return "fits no column"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch)
        sums = {
            key: sum(sum(values) for name, values in columns.items() if name.endswith(ending))
            for key, ending in (("payload_nbytes", ".stored_nbytes"), ("raw_nbytes", ".raw_nbytes"))
        }
        copies[which].write(index=sink.getvalue().to_pybytes(), sizes=sums)
        return use(copies[which].path, batches=number % _BATCHES_EACH == 0)

    return case


def _array(values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    return pa.array(values, kind.value_type).dictionary_encode().cast(kind)


def _change_one(rng: random.Random, columns: dict[str, list[Any]]) -> None:
    """Put another value into one place, or all over one column."""
    values = columns[rng.choice(list(columns))]
    row = rng.randrange(len(values))
    new = _other(rng, values, row)
    if rng.random() < 0.8:
        values[row] = new
    else:
        values[:] = [new] * len(values)


def _reshape(rng: random.Random, columns: dict[str, list[Any]]) -> None:
    """Give an image another shape of as many bytes, or as many more as its codec might hold."""
    images = [name.removesuffix(".height") for name in columns if name.endswith(".height")]
    name = rng.choice(images) if images else None
    if name is None:
        return
    row = rng.randrange(len(columns[f"{name}.height"]))
    part = {part: columns[f"{name}.{part}"] for part in ("height", "width", "channels", "bits", "raw_nbytes")}
    height, width = part["height"][row], part["width"][row]
    times = rng.choice((1, 1, 1, 2, 8, 100))
    shapes = [
        (width, height),
        (1, height * width),
        (height * width, 1),
        (height * 2, width // 2),
        (height * times, width),
    ]
    part["height"][row], part["width"][row] = rng.choice(shapes)
    if rng.random() < 0.2:
        part["bits"][row] = 24 - part["bits"][row]
    if rng.random() < 0.2:
        part["channels"][row] = 4 - part["channels"][row]
    part["raw_nbytes"][row] = (
        part["height"][row] * part["width"][row] * part["channels"][row] * (part["bits"][row] // 8)
    )


def _exchange(rng: random.Random, columns: dict[str, list[Any]]) -> None:
    """Exchange some values of two samples."""
    fields = [name.removesuffix(".offset") for name in columns if name.endswith(".offset")]
    if not fields:
        return
    name, other = rng.choice(fields), rng.choice(fields)
    parts = [part.removeprefix(f"{name}.") for part in columns if part.startswith(f"{name}.")]
    row, with_row = (rng.randrange(len(columns[f"{name}.offset"])) for _ in range(2))
    for part in rng.choice(
        (parts, parts[:2], ["offset", "stored_nbytes", "checksum", "codec", "raw_nbytes"], parts[-3:])
    ):
        mine, theirs = columns[f"{name}.{part}"], columns.get(f"{other}.{part}")
        if theirs is not None:
            mine[row], theirs[with_row] = theirs[with_row], mine[row]


def _other(rng: random.Random, values: list[Any], row: int) -> Any:
    old = values[row]
    if isinstance(old, str):
        types = (
            "float32[3,40]",
            "float64[60]",
            "uint8[480]",
            "float32[0]",
            "bool[480]",
            "object[2]",
            "int8[999999999999]",
        )
        return rng.choice((rng.choice(values), old[:-1], "", "x" * 1000, "../../x", "\0", *types))
    if isinstance(old, float):
        return rng.choice((0.0, float("nan"), float("inf"), -1e308))
    near = (old + rng.choice((-1, 1, 8, -8)), old * 2, old // 2, old ^ 1 << rng.randrange(20))
    return rng.choice((rng.choice(values), *near, *near, rng.choice(INTERESTING), -1))


def prepare_index_bytes(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of an index with any bytes changed."""
    copies = _copies(paths, folder)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} index {number}")
        copy = rng.choice(copies)
        copy.write(index=mutate(rng, copy.index))
        return use(copy.path, batches=number % _BATCHES_EACH == 0)

    return case


def prepare_records(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of one record of data.mdb with bytes changed, most of them in Arrow's metadata."""
    import lmdb

    from lmdbloader.errors import CorruptError
    from lmdbloader.format.codecs import checksum
    from lmdbloader.format.layout import RECORD_KEY_NBYTES, record_schema
    from lmdbloader.store import read_manifest
    from lmdbloader.store.records import decode_block

    records = []
    for path in paths.values():
        manifest = read_manifest(path)
        schema = record_schema(manifest.fields, with_source=manifest.with_source)
        with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as transaction:
            values = [bytes(value) for key, value in transaction.cursor() if len(key) == RECORD_KEY_NBYTES]
        records += [(value, schema, manifest.fields) for value in values]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} record {number}")
        value, schema, fields = rng.choice(records)
        value = mutate(rng, value, [(0, 2500), (0, 2500), (0, 64), (len(value) - 400, len(value))])
        try:
            decode_block(value, schema, fields, checksum(value), "a record")
        except CorruptError:
            return "refused"
        return "read"

    return case


def prepare_pages(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of LMDB's own pages changed, verified or repaired: LMDB itself ends the process on some."""
    import lmdbloader
    from lmdbloader.errors import LmdbloaderError

    copies = _copies(paths, folder)
    heads = [_page_heads(copy.data) for copy in copies]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} pages {number}")
        which = rng.randrange(len(copies))
        copy = copies[which]
        changed = bytearray(copy.data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            low, high = rng.choice(heads[which])
            part = bytes(changed[low:high])
            changed[low:high] = mutate(rng, part)[: len(part)].ljust(len(part), b"\0")
        copy.write(data=bytes(changed))
        mended = folder / "mended"
        try:
            if number % _REPAIR_EACH:
                return "read" if lmdbloader.verify(copy.path).is_sound else "refused"
            lost = [name for name in ("manifest.json", "index.arrow") if rng.random() < 0.5]
            copy.lose(*lost)
            lmdbloader.repair(copy.path, mended)
            return use(mended if mended.exists() else copy.path)
        except LmdbloaderError:
            return "refused"
        finally:
            copy.lose("data.mdb", "index.arrow", "manifest.json")  # a repaired dataset is not a copy any more
            shutil.rmtree(mended, ignore_errors=True)

    return case


def _page_heads(data: bytes, page: int = 4096) -> list[tuple[int, int]]:
    """Return the ranges that LMDB itself reads: meta pages, and heads and slots of branches and leaves."""
    heads = [(0, 168), (page, page + 168)] * 3
    for at in range(2 * page, len(data), page):
        number, flags = int.from_bytes(data[at : at + 8], "little"), int.from_bytes(data[at + 10 : at + 12], "little")
        if number == at // page and flags & 7:
            heads += [(at, at + 64), (at, at + page)] * 2
    return heads


def _copies(paths: dict[str, str], folder: Path) -> list[Copy]:
    copies = [Copy(Path(path), folder / name) for name, path in paths.items()]
    for copy in copies:
        if use(copy.path, batches=True) != "read":
            raise RuntimeError(f"{copy.path}: a sound copy does not read")
    return copies
