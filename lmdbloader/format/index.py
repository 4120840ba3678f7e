"""What the manifest states of index.arrow: where its columns lie, the digests of its blocks, facts about payloads.

A reader maps the file and needs nothing else to find its values: neither Arrow's library nor a look at the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.format.codecs import by_number
from lmdbloader.format.layout import MAX_CHANNELS, MAX_PAYLOAD_NBYTES, PIXEL_DTYPES, TILED, Field, index_columns

# Rows that have one digest together, and how far their numbers are shifted to give that of their block.
BLOCK_SHIFT = 13
BLOCK_ROWS = 1 << BLOCK_SHIFT
# Types of columns that are not numbers: texts, and texts that repeat.
TEXT, NAMES = "text", "names"
OFFSET_DTYPE, CODE_DTYPE = np.dtype(np.int64), np.dtype(np.int32)
_DIGESTS = re.compile(r"(?:[0-9a-f]{16})*")
_LENGTHS = ("stored_nbytes", "raw_nbytes")
# Columns whose extremes are stated: of every payload field, and of images and masks.
_PLAIN, _SHAPE = (*_LENGTHS, "codec"), ("height", "width", "channels", "bits")


@dataclass(frozen=True, slots=True)
class TextsAt:
    """Where texts in UTF-8 lie in the file.

    Attributes:
        count: How many.
        offsets_at: Of their (count + 1,) int64 offsets: text i has the bytes from offset i to before offset i + 1.
        bytes_at: Where those bytes begin.
        nbytes: All bytes.
    """

    count: int
    offsets_at: int
    bytes_at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ColumnAt:
    """Where a column lies in the file.

    Attributes:
        name: Its name.
        type: A dtype such as "int64", TEXT, or NAMES.
        at: Of its numbers; of NAMES, of the number of each row's text, int32.
        texts: Of TEXT and NAMES.
        block_digests: Of NAMES, the XXH3 of each block of its texts, 16 hexadecimal digits each.
    """

    name: str
    type: str
    at: int = 0
    texts: TextsAt | None = None
    block_digests: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of all payloads of a field.

    Attributes:
        codecs: Numbers of their codecs, ascending.
        extremes: The least and the greatest number of a column, by the end of its name: "height", "stored_nbytes" ...;
            (0, 0) without payloads.
        totals: The sums of "stored_nbytes" and "raw_nbytes".
        encoded_nbytes: The greatest raw_nbytes of those that are not stored raw.
        jpeg: Of JPEGs the greatest stored_nbytes, the longest side, and the most pixels; zeros without any.
    """

    codecs: tuple[int, ...]
    extremes: Mapping[str, tuple[int, int]]
    totals: Mapping[str, int]
    encoded_nbytes: int
    jpeg: tuple[int, int, int]

    @property
    def pixel_nbytes(self) -> int:
        """The bytes of a pixel of as many channels and as large values as any has; of images and masks."""
        return self.extremes["channels"][1] * (self.extremes["bits"][1] // 8)

    @property
    def has_tiles(self) -> bool:
        """Whether some are images in tiles."""
        return not set(TILED).isdisjoint(self.codecs)


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """The key `index` of a manifest.

    Attributes:
        nbytes: Of the file.
        columns: In order.
        block_digests: XXH3 of each block of rows, 16 hexadecimal digits each; see `docs/reference/format.md`.
        facts: About the payloads of each field that has some.
    """

    nbytes: int
    columns: tuple[ColumnAt, ...] = ()
    block_digests: str = ""
    facts: Mapping[str, Facts] = field(default_factory=dict)


def num_blocks(num_rows: int) -> int:
    """Return the number of blocks of so many rows.

    >>> num_blocks(0), num_blocks(8192), num_blocks(8193)
    (0, 1, 2)
    """
    return -(-num_rows // BLOCK_ROWS)


def digests_text(digests: Sequence[int]) -> str:
    """Return the text of block digests.

    >>> digests_text([1, 2])
    '00000000000000010000000000000002'
    """
    return "".join(f"{digest:016x}" for digest in digests)


def digests_of(text: str) -> npt.NDArray[np.uint64]:
    """Return the block digests (n,) in a text.

    >>> digests_of('00000000000000010000000000000002').tolist()
    [1, 2]
    """
    return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64)


def parse_index(
    body: Mapping[str, Any], num_rows: int, data_nbytes: int, fields: Sequence[Field], *, with_source: bool
) -> IndexLayout:
    """Return the key `index` of a manifest, checked: every column lies inside of the file and is aligned.

    Args:
        body: Its values.
        num_rows: The dataset's samples.
        data_nbytes: Bytes of its data files.
        fields: The dataset's.
        with_source: Whether its samples have sources.

    Raises:
        KeyError, TypeError, ValueError: They are something else.
    """
    nbytes = count_of(body["nbytes"])
    found = [(each["name"], each["type"]) for each in body["columns"]]
    if found != list(index_columns(fields, with_source=with_source).items()):
        raise ValueError(f"index with the columns {found!r:.200}, which are not those of the fields")
    columns = tuple(_parse_column(each, num_rows, nbytes) for each in body["columns"])
    payloads = {f.name: f for f in fields if f.is_payload}
    if list(body["facts"]) != list(payloads):
        raise ValueError(f"index with facts about {list(body['facts'])!r:.80}, expected {list(payloads)!r:.80}")
    facts = {name: _parse_facts(body["facts"][name], f) for name, f in payloads.items()}
    for name, f in payloads.items():
        if bool(facts[name].codecs) != (num_rows > 0) or not _are_possible(facts[name], f, data_nbytes):
            raise ValueError(f"facts about the field {name!r}, which no payloads have: {body['facts'][name]!r:.200}")
    return IndexLayout(nbytes, columns, _digests(body["block_digests"], num_rows), facts)


def _parse_column(values: Mapping[str, Any], num_rows: int, nbytes: int) -> ColumnAt:
    name, kind = values["name"], values["type"]
    if kind not in (TEXT, NAMES):
        return ColumnAt(name, kind, _place(values["at"], num_rows, np.dtype(kind).itemsize, nbytes))
    found = values["texts"]
    count = num_rows if kind == TEXT else count_of(found["count"])
    texts = TextsAt(
        count_of(found["count"]),
        _place(found["offsets_at"], count + 1, OFFSET_DTYPE.itemsize, nbytes),
        _place(found["bytes_at"], found["nbytes"], 1, nbytes),
        count_of(found["nbytes"]),
    )
    if texts.count != count:
        raise ValueError(f"index column {name!r:.80} with {texts.count} texts in {num_rows} rows")
    if kind == TEXT:
        return ColumnAt(name, kind, 0, texts)
    codes_at = _place(values["at"], num_rows, CODE_DTYPE.itemsize, nbytes)
    return ColumnAt(name, kind, codes_at, texts, _digests(values["block_digests"], count))


def _place(at: Any, count: Any, itemsize: int, nbytes: int) -> int:
    """Return where `count` values begin, if all of them are inside of the file and aligned."""
    if count_of(at) % itemsize or count_of(at) + count_of(count) * itemsize > nbytes:
        raise ValueError(f"index with {count} values of {itemsize} bytes at {at}, in a file of {nbytes} bytes")
    return int(at)


def _digests(text: Any, num_rows: int) -> str:
    if not isinstance(text, str) or not _DIGESTS.fullmatch(text) or len(text) != 16 * num_blocks(num_rows):
        raise ValueError(f"index with the block digests {text!r:.80} of {num_rows} rows")
    return text


def _parse_facts(values: Mapping[str, Any], f: Field) -> Facts:
    extremes = {name: _pair(values["extremes"][name]) for name in extremes_of(f)}
    totals = {name: count_of(values["totals"][name]) for name in _LENGTHS}
    nbytes, side, pixels = map(count_of, values["jpeg"])
    codecs = tuple(map(count_of, values["codecs"]))
    return Facts(codecs, extremes, totals, count_of(values["encoded_nbytes"]), (nbytes, side, pixels))


def _are_possible(facts: Facts, f: Field, data_nbytes: int) -> bool:
    """Return whether payloads may have these facts: readers allocate memory by them, in proportion to the files."""
    ratio_of = by_number(lambda entry: entry.max_ratio, 0)
    if max(facts.codecs, default=0) > 255:
        return False
    ratios = [int(ratio_of[codec]) for codec in facts.codecs]
    stored, raw = (facts.extremes[name][1] for name in _LENGTHS)
    nbytes, side, pixels = facts.jpeg
    most = max(ratios, default=0) * stored
    if (
        0 in ratios
        or stored > data_nbytes
        or max(stored, raw) > MAX_PAYLOAD_NBYTES
        or raw > most
        or facts.encoded_nbytes > raw
    ):
        return False
    if nbytes > stored or pixels > raw or side > pixels:
        return False
    if not f.has_pixels or not facts.codecs:
        return True
    low = {name: facts.extremes[name][0] for name in _SHAPE}
    is_image = facts.extremes["channels"][1] <= MAX_CHANNELS and {*facts.extremes["bits"]} <= PIXEL_DTYPES.keys()
    is_mask = f.kind != "mask" or (facts.extremes["channels"] == (1, 1) and facts.extremes["bits"][1] <= 16)
    return is_image and is_mask and 0 < low["height"] * low["width"] * low["channels"] * (low["bits"] // 8) <= raw


def extremes_of(f: Field) -> Iterator[str]:
    """Yield the columns of a payload field whose extremes are stated, by the ends of their names."""
    yield from _PLAIN
    if f.has_pixels:
        yield from _SHAPE


def _pair(values: Any) -> tuple[int, int]:
    low, high = map(count_of, values)
    return low, high


def count_of(value: Any) -> int:
    """Return a whole number that is not negative; a ValueError if it is something else."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r:.80} where a count was expected")
    return value
