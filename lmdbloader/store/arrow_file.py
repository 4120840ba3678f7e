"""Reads the columns of an Arrow file without Arrow's library, and checks everything before it is used.

Arrow's library takes a tenth of a second to import, and a dataset is opened in every process. An index has flat columns
and one record batch, which is a small part of the format. Everything else is refused, and Arrow's library accepts every
file that is accepted here, with the same values.

The file is a stream of messages after a magic number: the schema, a dictionary for each column that has one, the record
batch, and an end mark. The table of contents behind that mark is not needed. A message is a flatbuffer with offsets
into the body that follows it.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.store.flatbuffers import FlatbufferError, Table

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_MAGIC = b"ARROW1\0\0"
_MARK = 0xFFFFFFFF
# Versions 4 and 5 of Arrow's format, which are the same for these columns.
_VERSIONS = (3, 4)
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_MESSAGES = {_SCHEMA: "a schema", _DICTIONARY_BATCH: "a dictionary", _RECORD_BATCH: "a record batch"}
# Types of columns in Arrow's Schema.fbs, and as `read_columns` names them: texts, and texts that repeat, whose
# dictionary has 32-bit or 64-bit offsets.
_INT, _FLOAT, _UTF8, _LARGE_UTF8 = 2, 3, 5, 20
_FLOAT_BITS = (16, 32, 64)
TEXT, NAMES, LARGE_NAMES = "text", "names", "large_names"
_TYPES = {_LARGE_UTF8: TEXT, _UTF8: "text of 32 bits"}
_NAMES = {_UTF8: NAMES, _LARGE_UTF8: LARGE_NAMES}
_OFFSETS: Mapping[str, np.dtype[Any]] = {NAMES: np.dtype(np.int32), LARGE_NAMES: np.dtype(np.int64)}
_ALIGNMENT = 8
# UTF-8 is decoded in pieces, so that checking it takes little memory.
_PIECE_NBYTES = 2**20
_ROWS_AT_ONCE = 4096
_CONTINUATION_MASK, _CONTINUATION, _FIRST_NOT_ASCII = 0xC0, 0x80, 0x80


class ArrowFileError(ValueError):
    """An Arrow file is damaged, or not of the kind that was expected; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in UTF-8, one after the other.

    Attributes:
        ends: (n + 1,) int32 or int64; text i is data[ends[i]:ends[i + 1]].
        data: (m,) uint8.
    """

    ends: npt.NDArray[Any]
    data: U8

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> str:
        return self.data[self.ends[row] : self.ends[row + 1]].tobytes().decode()

    def part(self, first: int, stop: int) -> Texts:
        """Return a view of the texts from `first` to before `stop`."""
        return Texts(self.ends[first : stop + 1], self.data)

    def to_list(self) -> list[str]:
        """Return all texts."""
        first, last = int(self.ends[0]), int(self.ends[-1])
        data, ends = self.data[first:last].tobytes(), (self.ends - first).tolist()
        return [data[a:b].decode() for a, b in pairwise(ends)]

    def are_utf8(self) -> bool:
        """Return whether each is valid."""
        data = self.data[int(self.ends[0]) : int(self.ends[-1])]
        if _is_ascii(data):
            return True
        # All together are valid, and none begins within a character.
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            for first in range(0, len(data), _PIECE_NBYTES):
                decode(data[first : first + _PIECE_NBYTES].tobytes(), first + _PIECE_NBYTES >= len(data))
        except UnicodeDecodeError:
            return False
        for first in range(0, len(self.ends), _ROWS_AT_ONCE):
            ends = self.ends[first : first + _ROWS_AT_ONCE]
            starts = ends[ends < self.ends[-1]]
            if (self.data[starts] & _CONTINUATION_MASK == _CONTINUATION).any():
                return False
        return True

    def num_characters(self) -> I64:
        """Return the characters (n,) of each text."""
        lengths = np.diff(self.ends).astype(np.int64)
        if _is_ascii(self.data[int(self.ends[0]) : int(self.ends[-1])]):
            return lengths
        for first in range(0, len(self), _ROWS_AT_ONCE):
            ends = self.ends[first : first + _ROWS_AT_ONCE + 1].astype(np.int64)
            piece = self.data[int(ends[0]) : int(ends[-1])]
            places = np.flatnonzero(piece & _CONTINUATION_MASK == _CONTINUATION) + ends[0]
            lengths[first : first + _ROWS_AT_ONCE] -= np.diff(np.searchsorted(places, ends))
        return lengths


@dataclass(frozen=True, slots=True)
class Names:
    """Texts that repeat: a number for each row, and the texts by number.

    Attributes:
        codes: (n,) int32, each from 0 to len(texts) - 1.
        texts: By number.
    """

    codes: npt.NDArray[np.int32]
    texts: Texts

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.codes[row])]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a file by name, each in the dict for its type.

    Attributes:
        num_rows: Of every column.
        arrays: Numbers (n,), read-only views of the file.
        texts: Columns of type "text".
        names: Columns of type "names" or "large_names".
    """

    num_rows: int
    arrays: Mapping[str, npt.NDArray[Any]]
    texts: Mapping[str, Texts]
    names: Mapping[str, Names]


def read_columns(content: Any, expected: Mapping[str, str], *, check: bool = True) -> Columns:
    """Return the columns of an Arrow file with one record batch, as views of it.

    Args:
        content: The file, bytes-like.
        expected: Type of each column in order: a dtype such as "int64", "text", or "names" or "large_names" (a
            dictionary of texts with int32 numbers).
        check: Whether to look at every row; without, only the descriptions and lengths of columns are checked, and
            places of texts are as in the file.

    Raises:
        ArrowFileError: It is not valid, or has other columns, nulls, several batches or compressed buffers.
    """
    data = np.frombuffer(content, np.uint8)
    if data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise ArrowFileError("it does not start like an Arrow file")
    messages = _messages(data)
    try:
        dictionary_of = _read_schema(_next(messages, _SCHEMA).header, expected)
        kind_of = {number: expected[name] for name, number in dictionary_of.items()}
        texts_of = dict(_read_dictionary(_next(messages, _DICTIONARY_BATCH), kind_of, check) for _ in dictionary_of)
        columns = _read_batch(_next(messages, _RECORD_BATCH), expected, dictionary_of, texts_of, check)
        if (message := next(messages, None)) is not None:
            raise ArrowFileError(f"{message.where}, expected the end of the only batch")
    except FlatbufferError as error:
        raise ArrowFileError(f"the description of its columns is damaged: {error}") from error
    return columns


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of the stream.

    Attributes:
        kind: _SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH or another number.
        header: Its description.
        body: (n,) uint8 the data.
        where: Which message it is, for people.
    """

    kind: int
    header: Table
    body: U8
    where: str


def _messages(data: U8) -> Iterator[_Message]:
    """Yield the messages up to the end mark."""
    at = len(_MAGIC)
    while True:
        head = data[at : at + 8].tobytes()
        if len(head) < 8:
            raise ArrowFileError("it is cut short: it has no end mark")
        mark, nbytes = struct.unpack("<Ii", head)
        if mark != _MARK:
            raise ArrowFileError(f"byte {at}: expected the mark of a message")
        if nbytes == 0:
            return
        body_at = at + 8 + nbytes
        if nbytes < 0 or body_at > len(data):
            raise ArrowFileError(f"the message at byte {at} is cut short")
        message = Table.root(data[at + 8 : body_at].tobytes())
        kind, body_nbytes = message.number(1, "B"), message.number(3, "q")
        where = f"the message at byte {at} is {_MESSAGES.get(kind, f'of kind {kind}')}"
        if message.number(0, "h") not in _VERSIONS:
            raise ArrowFileError(f"{where} of another version of Arrow's format")
        if message.has(4):
            raise ArrowFileError(f"{where} with metadata, which an index does not have")
        if not 0 <= body_nbytes <= len(data) - body_at:
            raise ArrowFileError(f"{where}, and is cut short")
        at = body_at + body_nbytes
        yield _Message(kind, message.table(2), data[body_at:at], where)


def _next(messages: Iterator[_Message], kind: int) -> _Message:
    """Return the next message, which must be of a kind."""
    message = next(messages, None)
    if message is None or message.kind != kind:
        found = "it ends" if message is None else message.where
        raise ArrowFileError(f"{found}, expected {_MESSAGES[kind]}")
    return message


def _read_schema(schema: Table, expected: Mapping[str, str]) -> dict[str, int]:
    """Check the columns' names and types; return the dictionary number of each column that has one."""
    if schema.number(0, "h"):
        raise ArrowFileError("its numbers are big-endian, expected little-endian")
    if schema.has(2):
        raise ArrowFileError("its schema has metadata, which an index does not have")
    schema.numbers(3, 1)
    # One more than expected is enough to say what differs, however many there are.
    fields = schema.tables(1, most=len(expected) + 1)
    try:
        names = [field.text(0).decode() for field in fields]
    except UnicodeDecodeError as error:
        raise ArrowFileError(f"the names of its columns are not UTF-8 ({error})") from error
    if names != list(expected):
        raise ArrowFileError(f"its columns are {names}, expected {list(expected)}")
    dictionary_of = {}
    for field, (name, kind) in zip(fields, expected.items(), strict=True):
        if (found := _type_of(field)) != kind:
            raise ArrowFileError(f"its columns are of other types: {name!r} is {found}, expected {kind}")
        if kind in _OFFSETS:
            dictionary_of[name] = field.table(4).number(0, "q")
    if len(set(dictionary_of.values())) != len(dictionary_of):
        raise ArrowFileError("two of its columns have the same dictionary")
    return dictionary_of


def _type_of(field: Table) -> str:
    """Return a column's type as `read_columns` names it; a description of a type that it does not read."""
    if field.has(6):
        return "a column with metadata"
    if not field.number(1, "?"):
        return "not nullable"
    if field.count(5):
        return "nested"
    number, kind = field.number(2, "B"), field.table(3)
    if field.has(4):
        encoding = field.table(4)
        numbers = _int_type(encoding.table(1))
        is_ordered, encoding_kind = encoding.number(2, "?"), encoding.number(3, "h")
        if number in _NAMES and (numbers, is_ordered, encoding_kind) == ("int32", 0, 0):
            return _NAMES[number]
        return f"a dictionary of {_TYPES.get(number, f'type {number}')} with {numbers}"
    if number == _INT:
        return _int_type(kind)
    if number == _FLOAT:
        precision = kind.number(0, "h")
        return f"float{_FLOAT_BITS[precision]}" if 0 <= precision < len(_FLOAT_BITS) else f"float {precision}"
    return _TYPES.get(number, f"of type {number}")


def _int_type(kind: Table) -> str:
    return f"{'' if kind.number(1, '?') else 'u'}int{kind.number(0, 'i')}"


def _read_dictionary(message: _Message, kind_of: Mapping[int, str], check: bool) -> tuple[int, Texts]:
    """Return a dictionary's number and its texts; `kind_of` has the types of the columns by dictionary."""
    number = message.header.number(0, "q")
    if message.header.number(2, "?"):
        raise ArrowFileError(f"{message.where} that adds to another one")
    batch = _Batch(message, message.header.table(1), check)
    if number not in kind_of:
        raise ArrowFileError(f"{message.where} of number {number}, which no column has")
    texts = batch.texts(f"dictionary {number}", _OFFSETS[kind_of[number]])
    batch.end()
    return number, texts


def _read_batch(
    message: _Message,
    expected: Mapping[str, str],
    dictionary_of: Mapping[str, int],
    texts_of: Mapping[int, Texts],
    check: bool,
) -> Columns:
    batch = _Batch(message, message.header, check)
    arrays: dict[str, npt.NDArray[Any]] = {}
    texts: dict[str, Texts] = {}
    names: dict[str, Names] = {}
    for name, kind in expected.items():
        where = f"column {name!r}"
        if kind == TEXT:
            texts[name] = batch.texts(where, np.dtype(np.int64))
        elif kind in _OFFSETS:
            names[name] = batch.names(where, dictionary_of[name], texts_of)
        else:
            arrays[name] = batch.numbers(where, np.dtype(kind))
    batch.end()
    return Columns(batch.length, arrays, texts, names)


class _Batch:
    """A record batch, whose columns are read in order.

    Attributes:
        length: Its number of rows.
    """

    def __init__(self, message: _Message, header: Table, check: bool) -> None:
        if header.has(3):
            raise ArrowFileError("its buffers are compressed")
        header.numbers(4, 1)
        self.length = header.number(0, "q")
        if self.length < 0:
            raise ArrowFileError(f"{message.where} of {self.length} rows")
        nodes, buffers = header.numbers(1, 2), header.numbers(2, 2)
        most = len(message.body)
        if ((buffers < 0) | (buffers > most)).any() or (buffers.sum(axis=1) > most).any():
            raise ArrowFileError(f"{message.where} with a buffer beyond its end")
        if (buffers[:, 0] % _ALIGNMENT).any():
            raise ArrowFileError(f"{message.where} with a buffer that is not aligned to {_ALIGNMENT} bytes")
        self._body, self._where = message.body, message.where
        self._nodes, self._buffers = nodes, buffers
        self._node = self._buffer = 0
        self._check = check

    def numbers(self, where: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the next column, of numbers."""
        (buffer,) = self._take(where, 1)
        return _view(buffer, self.length, dtype, where)

    def names(self, where: str, dictionary: int, texts_of: Mapping[int, Texts]) -> Names:
        """Return the next column, of texts that repeat."""
        codes = self.numbers(where, np.dtype(np.int32))
        if dictionary not in texts_of:
            raise ArrowFileError(f"{where}: there is no dictionary {dictionary}")
        texts = texts_of[dictionary]
        # As unsigned numbers, negative ones are the largest.
        if self._check and len(codes) and (most := int(codes.view(np.uint32).max())) >= len(texts):
            strange = int(np.uint32(most).view(np.int32))
            raise ArrowFileError(f"{where}: a row has number {strange} of {len(texts)} texts")
        return Names(codes, texts)

    def texts(self, where: str, dtype: np.dtype[Any]) -> Texts:
        """Return the next column, of texts."""
        offsets, data = self._take(where, 2)
        if self.length == 0 and not len(offsets):
            return Texts(np.zeros(1, dtype), data[:0])
        ends = _view(offsets, self.length + 1, dtype, where)
        pieces = (ends[first : first + _ROWS_AT_ONCE + 1] for first in range(0, self.length, _ROWS_AT_ONCE))
        is_wrong = self._check and any((piece[1:] < piece[:-1]).any() for piece in pieces)
        if ends[0] < 0 or ends[-1] > len(data) or is_wrong:
            raise ArrowFileError(f"{where}: a text lies outside of its buffer")
        texts = Texts(ends, data)
        if self._check and not texts.are_utf8():
            raise ArrowFileError(f"{where} is not UTF-8")
        return texts

    def end(self) -> None:
        """Check that nothing is left."""
        if (self._node, self._buffer) != (len(self._nodes), len(self._buffers)):
            raise ArrowFileError(f"{self._where} with more columns than the schema")

    def _take(self, where: str, count: int) -> list[U8]:
        """Return the next column's buffers; the one that says which values are null is skipped."""
        first = self._buffer + 1
        if self._node >= len(self._nodes) or first + count > len(self._buffers):
            raise ArrowFileError(f"{where} is missing")
        length, num_nulls = self._nodes[self._node].tolist()
        self._node, self._buffer = self._node + 1, first + count
        if length != self.length:
            raise ArrowFileError(f"{where} has {length} rows, the others {self.length}")
        if num_nulls:
            raise ArrowFileError(f"{where} holds nulls")
        return [self._body[at : at + nbytes] for at, nbytes in self._buffers[first : first + count].tolist()]


def _view(buffer: U8, count: int, dtype: np.dtype[Any], where: str) -> npt.NDArray[Any]:
    """Return the first numbers of a buffer."""
    if len(buffer) < count * dtype.itemsize:
        raise ArrowFileError(f"{where} has {len(buffer)} bytes, expected {count * dtype.itemsize}")
    return buffer[: count * dtype.itemsize].view(dtype)


def _is_ascii(data: U8) -> bool:
    return not len(data) or int(data.max()) < _FIRST_NOT_ASCII
