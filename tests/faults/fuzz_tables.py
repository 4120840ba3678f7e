"""Manifests, indexes, records and LMDB's pages, changed value by value and byte by byte, with digests that hold."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from copy import deepcopy as copy_of
from pathlib import Path
from typing import Any

from .cases import Case
from .forging import signed, value_at, with_value
from .hostile import INTERESTING, Copy, mutate, use

_BATCHES_EACH = 5
_REPAIR_EACH = 3
# Values that a stranger may put into a manifest.
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "x", "../x", "raw", "image",
    "\ud800", [], [[]], {}, {"": 0}, [0] * 9,
)  # fmt: skip


def prepare_manifests(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of a manifest with other values anywhere, keys left out or added, or with bytes changed."""
    copies = _copies(paths, folder)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} manifest {number}")
        copy = rng.choice(copies)
        if rng.random() < 0.2:
            copy.write(manifest=mutate(rng, signed(copy.body)))
            return use(copy.path)
        body = copy_of(copy.body)
        for _ in range(rng.randint(1, 3)):
            places = list(_places(body))
            holder, key = rng.choice(places)
            other, other_key = rng.choice(places)
            value = copy_of(rng.choice((rng.choice(_VALUES), other[other_key])))
            how = rng.choice(("put", "put", "drop", "add"))
            if how == "put":
                holder[key] = value
            elif how == "drop":
                del holder[key]
            elif isinstance(holder, dict):
                holder[f"{key}2"] = value
            else:
                holder.append(value)
        try:
            copy.write(manifest=signed(body))
        except UnicodeEncodeError:  # half a surrogate pair
            return "refused at open"
        return use(copy.path)

    return case


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every dict or list in a value, with each of its keys or numbers."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(part, dict | list):
            yield from _places(part)


def prepare_index_values(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of an index with other numbers in one to three rows, and of facts about them that often fit."""
    copies = _copies(paths, folder)

    def case(number: int) -> str:
        rng = random.Random(f"{seed} values {number}")
        copy = rng.choice(copies)
        body, index = copy.body, copy.index
        rows = range(body["num_samples"])
        columns = {column["name"]: column for column in body["index"]["columns"]}
        facts = copy_of(body["index"]["facts"])
        for _ in range(rng.randint(1, 3)):
            row, name = rng.choice(rows), rng.choice(list(columns))
            changes = {name: _other(rng, value_at(index, columns[name], row), rows)}
            field, _, part = name.rpartition(".")
            if part in ("height", "width", "channels", "bits") and rng.random() < 0.7:
                changes |= _reshaped(rng, index, columns, field, row)
            for changed, value in changes.items():
                for one in rows if rng.random() < 0.1 else (row,):
                    index = with_value(index, columns[changed], one, value)
                field, _, part = changed.rpartition(".")
                if rng.random() < 0.7 and part in facts.get(field, {}).get("extremes", {}):
                    low, high = facts[field]["extremes"][part]
                    facts[field]["extremes"][part] = [min(low, value), max(high, value)]
        copy.write(index=index, body={**body, "index": {**body["index"], "facts": facts}})
        return use(copy.path, batches=number % _BATCHES_EACH == 0)

    return case


def _reshaped(rng: random.Random, index: bytes, columns: dict[str, Any], field: str, row: int) -> dict[str, int]:
    """Return another shape of as many bytes for an image, or of as many more as its codec might hold."""
    height, width = (value_at(index, columns[f"{field}.{side}"], row) for side in ("height", "width"))
    channels, bits, times = rng.choice((1, 3, 3, 2)), rng.choice((8, 8, 16)), rng.choice((1, 1, 1, 2, 8, 100))
    height, width = rng.choice(
        [(width, height), (1, height * width), (height * width, 1), (height * 2, width // 2), (height * times, width)]
    )
    shape = {"height": height, "width": width, "channels": channels, "bits": bits}
    return {f"{field}.{part}": value for part, value in shape.items()} | {
        f"{field}.raw_nbytes": height * width * channels * (bits // 8)
    }


def _other(rng: random.Random, old: int, rows: range) -> int:
    near = (old + rng.choice((-1, 1, 8, -8)), old * 2, old // 2, old ^ 1 << rng.randrange(20))
    return rng.choice((rng.choice(rows), *near, *near, rng.choice(INTERESTING), -1))


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
