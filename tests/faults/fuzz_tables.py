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
    """Return the case of an index that Arrow wrote, with other values in one to three places."""
    import pyarrow as pa

    copies = _copies(paths, folder)
    batches = [pa.ipc.open_file(copy.index).get_batch(0) for copy in copies]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} values {number}")
        which = rng.randrange(len(copies))
        batch = batches[which]
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(batch.num_columns)
            field = batch.schema.field(place)
            values = batch.column(place).to_pylist()
            row = rng.randrange(len(values))
            changed = [_other(rng, values, row)] if rng.random() < 0.8 else [_other(rng, values, row)] * len(values)
            values = changed if len(changed) > 1 else [*values[:row], *changed, *values[row + 1 :]]
            try:
                array = pa.array(values, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
            except (pa.ArrowInvalid, OverflowError):
                continue  # it does not fit the column
            if pa.types.is_dictionary(field.type):
                array = array.dictionary_encode().cast(field.type)
            batch = batch.set_column(place, field, array)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        copies[which].write(index=sink.getvalue().to_pybytes())
        return use(copies[which].path, batches=number % _BATCHES_EACH == 0)

    return case


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
    """Return the case of one record of data.mdb with bytes changed, most of them in what Arrow says of it."""
    import lmdb

    from lmdbloader.codecs import checksum
    from lmdbloader.errors import CorruptError
    from lmdbloader.format import RECORD_KEY_NBYTES, record_schema
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
            copy.lose("data.mdb", "index.arrow", "manifest.json")  # what was mended is no copy any more
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
