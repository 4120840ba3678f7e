"""Reads several datasets as one, from their own files, for mixtures and torch's ConcatDataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.format.index import Facts, IndexLayout
from lmdbloader.format.layout import index_columns
from lmdbloader.format.manifest import Manifest
from lmdbloader.store.index import VERIFIED, Index, Names, Texts
from lmdbloader.store.opening import IO, DataFile, OpenFile, check_io
from lmdbloader.store.reader import Reader

if TYPE_CHECKING:
    from lmdbloader.store.remote.blocks import Blocks

I64 = npt.NDArray[np.int64]


class _JoinedIndex(Index):
    """The indexes of several datasets as one, in memory: the rows of one dataset after those of the other."""

    def __init__(self, readers: Sequence[Reader], manifest: Manifest, begins: Sequence[int]) -> None:
        """Join the indexes of readers; `begins` has the offset at which the data of each reader begins."""
        expected = index_columns(manifest.fields, with_source=manifest.with_source)
        indexes, where = [reader.index for reader in readers], readers[0].place
        self.column_names, self._blocks = tuple(expected), VERIFIED
        self._manifest, self._path = manifest, readers[0].path
        self.columns, self.texts, self.names = {}, {}, {}
        for name in expected:
            if name in indexes[0].columns:
                columns = [index.arrays[name] for index in indexes]
                if name.endswith(".offset"):
                    columns = [column + begin for column, begin in zip(columns, begins, strict=True)]
                self.columns[name] = _read_only(np.concatenate(columns))
            elif name in indexes[0].texts:
                self.texts[name] = _joined_texts([index.texts[name] for index in indexes], where)
            else:
                self.names[name] = _joined_names([index.names[name] for index in indexes], where)
        self.facts = manifest.index.facts


class JoinedReader(Reader):
    """Reads the samples of several datasets, one dataset after the other, from their own files.

    The joined index is in memory: about 45 bytes for each sample with one image, more with texts.

    Attributes:
        readers: The readers of the datasets.
        firsts: The number of each dataset's first sample.
    """

    def __init__(self, readers: Sequence[Reader], fields: Sequence[str]) -> None:
        """Join datasets with the same fields, which the caller has checked.

        Args:
            readers: At least one reader; all have the same `io`.
            fields: The names of the fields to read.

        Raises:
            OptionError: The process may not map that many bytes or files, or the system cannot map several files into
                one range of addresses.
        """
        self.readers, self._names, self.io = tuple(readers), tuple(fields), readers[0].io
        self._remote = None  # the attribute of a reader of one dataset at a URL
        self.path = _common_folder([reader.path for reader in readers])
        self.manifest = _manifest(readers, fields)
        self.firsts: list[int] = np.cumsum([0, *map(len, readers)])[:-1].tolist()
        files = [file for reader in readers for file in reader.data_file.files]
        counts = [len(reader.data_file.files) for reader in readers]
        streams = any(reader.data_file.remote is not None and reader.data_file.remote.streams for reader in readers)
        file = DataFile(files, "pread" if streams else self.io, self.path)
        if any(f.remote for f in files):
            file.remote = _Remotes(files, file.begins)  # type: ignore[assignment]
        if streams:
            from lmdbloader.store.remote.window import WindowFile

            file = WindowFile(file, self.path)
        self._use(file, _JoinedIndex(readers, self.manifest, [file.begins[k] for k in np.cumsum([0, *counts])[:-1]]))

    def with_io(self, io: IO) -> JoinedReader:
        """See `Reader.with_io`."""
        if check_io(io) == self.io:
            return self
        return JoinedReader([reader.with_io(io) for reader in self.readers], self._names)

    def __getstate__(self) -> Any:
        return self.readers, self._names

    def __setstate__(self, state: Any) -> None:
        JoinedReader.__init__(self, *state)

    def origin(self, row: int) -> tuple[Reader, int]:
        """See `Reader.origin`."""
        number = int(np.searchsorted(self.firsts, row, "right")) - 1
        return self.readers[number], row - self.firsts[number]


class _Remotes:
    """The caches of joined files, some of which are at URLs; used like the `Blocks` of one file."""

    streams = False

    def __init__(self, files: Sequence[OpenFile], begins: Sequence[int]) -> None:
        """Take the caches of files that begin at these offsets."""
        self._all = [
            (file.remote, begin, begin + file.nbytes)
            for file, begin in zip(files, begins, strict=True)
            if file.remote is not None
        ]

    def _shares(self, starts: I64, stops: I64) -> Iterator[tuple[Blocks, npt.NDArray[np.bool_], I64, I64]]:
        """Yield each cache, which of the ranges are in its file, (n,) bool, and their starts and stops in that file."""
        for cache, begin, end in self._all:
            if (own := (starts >= begin) & (starts < end)).any():
                yield cache, own, starts[own] - begin, stops[own] - begin

    @property
    def is_complete(self) -> bool:
        """Whether all blocks of all files are on the disk."""
        return all(cache.is_complete for cache, _, _ in self._all)

    def are_here(self, starts: I64, stops: I64) -> npt.NDArray[np.bool_]:
        """See `Blocks.are_here`; all bytes of local files are."""
        found = np.ones(len(starts), np.bool_)
        for cache, own, *ranges in self._shares(starts, stops):
            found[own] = cache.are_here(*ranges)
        return found

    def hold(self, starts: I64, stops: I64) -> Callable[[], None]:
        """See `Blocks.hold`; what is on a disk stays."""
        return lambda: None

    def request(self, starts: I64, stops: I64, owner: int = 0) -> None:
        """See `Blocks.request`."""
        for cache, _, *ranges in self._shares(starts, stops):
            cache.request(ranges[0], ranges[1], owner)

    def forget(self, owner: int = 0) -> None:
        """See `Blocks.forget`."""
        for cache, _, _ in self._all:
            cache.forget(owner)

    def bring(self, starts: I64, stops: I64) -> None:
        """See `Blocks.bring`."""
        for cache, _, *ranges in self._shares(starts, stops):
            cache.bring(*ranges)

    def renew(self, starts: I64, stops: I64) -> None:
        """See `Blocks.renew`."""
        for cache, _, *ranges in self._shares(starts, stops):
            cache.renew(*ranges)


def _common_folder(paths: Sequence[Path]) -> Path:
    """Return the deepest folder that holds all datasets; the first dataset if there is none."""
    try:
        return Path(os.path.commonpath(paths))
    except ValueError:  # several drives
        return paths[0]


def _manifest(readers: Sequence[Reader], names: Sequence[str]) -> Manifest:
    """Return a manifest that describes all samples."""
    first = readers[0].manifest
    fields = tuple(readers[0].fields[name] for name in names)
    digests = "\n".join(f"{reader.manifest.content_digest} {len(reader)}" for reader in readers)
    digest = f"joined:{hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()}"
    facts = {f.name: _joined_facts(readers, f.name) for f in fields if f.is_payload}
    return replace(
        first,
        num_samples=sum(map(len, readers)),
        fields=fields,
        with_source=all(reader.manifest.with_source for reader in readers),
        classes={name: classes for name, classes in first.classes.items() if name in names},
        content_digest=digest,
        index_digest="",
        manifest_digest=digest,
        parts=tuple(part for reader in readers for part in reader.manifest.parts),
        index=IndexLayout(sum(reader.manifest.index.nbytes for reader in readers), facts=facts),
    )


def _read_only(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column.flags.writeable = False
    return column


def _joined_texts(columns: Sequence[Texts], where: str) -> Texts:
    ends, data, total = [np.zeros(1, np.int64)], [], 0
    for offsets, texts in (column.columns() for column in columns):
        first, last = int(offsets[0]), int(offsets[-1])
        ends.append(offsets[1:] + (total - first))
        data.append(texts[first:last])
        total += last - first
    return Texts(_read_only(np.concatenate(ends)), _read_only(np.concatenate(data)), VERIFIED, where)


def _joined_names(columns: Sequence[Names], where: str) -> Names:
    shifts = np.cumsum([0, *(len(column.texts) for column in columns)])
    codes = [column.codes + np.int32(shift) for column, shift in zip(columns, shifts[:-1], strict=True)]
    texts = _joined_texts([column.texts for column in columns], where)
    return Names(_read_only(np.concatenate(codes)), texts, VERIFIED)


def _joined_facts(readers: Sequence[Reader], name: str) -> Facts:
    """Return the facts about the payloads of a field in all datasets together."""
    found = [reader.index.facts[name] for reader in readers if len(reader)] or [readers[0].index.facts[name]]
    extremes: Mapping[str, tuple[int, int]] = {
        part: (min(facts.extremes[part][0] for facts in found), max(facts.extremes[part][1] for facts in found))
        for part in found[0].extremes
    }
    codecs = sorted({codec for facts in found for codec in facts.codecs})
    totals = {part: sum(facts.totals[part] for facts in found) for part in found[0].totals}
    jpeg = tuple(max(numbers) for numbers in zip(*(facts.jpeg for facts in found), strict=True))
    return Facts(tuple(codecs), extremes, totals, max(facts.encoded_nbytes for facts in found), jpeg)
