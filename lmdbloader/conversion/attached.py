"""The values that come with an image (labels, JSON, text): from the bytes of their files to fields of samples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lmdbloader.conversion.sources import Source
from lmdbloader.conversion.values import PayloadColumn, to_json
from lmdbloader.errors import ImageError
from lmdbloader.format.codecs import Payloads
from lmdbloader.format.layout import Field

_INTEGER = re.compile(rb"[+-]?\d{1,19}")


def parse_attached(source: Source, files: Sequence[bytes]) -> dict[str, Any]:
    """Return the values of a source's fields beside the images.

    Args:
        source: The source.
        files: The content of the attached files that it has, in order.

    Raises:
        ImageError: A file is missing that other sources have, or does not hold what it should.
    """
    values: dict[str, Any] = {} if source.label is None else {"label": source.label}
    rest = iter(files)
    for name, file in source.attached:
        if file is None:
            raise ImageError(source.name, f"has no {name}, which other samples have")
        data = next(rest)
        try:
            values[name] = _PARSERS[name](data)
        except (ValueError, RecursionError) as error:
            raise ImageError(source.name, f"its {name}: {error}") from error
    return values


def add_values(f: Field, value: Any, num_samples: int, payloads: dict[str, Payloads], columns: dict[str, Any]) -> None:
    """Add one value, the same for that many samples of a source, to their payloads or columns."""
    if f.is_payload:
        column = PayloadColumn(f, f.codec or "raw")
        for _ in range(num_samples):
            column.add(value, 0)
        payloads[f.name], more, _ = column.encode()
        columns.update(more)
    else:
        columns[f.name] = np.full(num_samples, value, np.int64) if f.kind == "int" else [value] * num_samples


def _integer(data: bytes) -> int:
    text = data.strip()
    if _INTEGER.fullmatch(text) is None or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{data[:40]!r} is no whole number of 64 bits")
    return int(text)


def _json(data: bytes) -> Any:
    value = json.loads(data, parse_constant=_refuse_constant)
    to_json(value)  # 1e999 is read as infinity, which no JSON holds
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8 ({error})") from error


_PARSERS: dict[str, Callable[[bytes], Any]] = {"label": _integer, "json": _json, "text": _text}
