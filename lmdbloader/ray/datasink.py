"""The Datasink of ray.data that writes datasets: each task writes a dataset, and the driver joins their parts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ray.data import Datasink
from ray.data.block import BlockAccessor

from lmdbloader.conversion import write
from lmdbloader.errors import OptionError
from lmdbloader.fields import FieldType, Mask, kind_named
from lmdbloader.format.layout import undecided
from lmdbloader.format.manifest import Description
from lmdbloader.store import Reader, Work, Written, join, read_manifest

# Kinds of fields and codecs, which the first task settles for all; `Work` removes files with such names.
_SETTLED_FILE = "settled.new-ray"
# The most rows, and bytes of arrays in them, by which it settles them.
_MOST_ROWS, _MOST_NBYTES = 256, 16 * 2**20


class LmdbDatasink(Datasink):  # type: ignore[misc]
    """Writes blocks as parts of a dataset.

    Attributes:
        written: A summary of the dataset, once it is in place.
    """

    written: Written

    def __init__(
        self,
        work: Work,
        *,
        overwrite: bool,
        fields: Mapping[str, FieldType | None] | Sequence[str] | None,
        classes: Mapping[str, Sequence[str]] | None,
        codec: str | Mapping[str, str] | None,
        storage: Mapping[str, Any],
        least: int | None,
    ) -> None:
        """Prepare to write.

        Args:
            work: For the parts; all nodes see its folder under the same absolute path.
            overwrite: Whether a dataset may be replaced.
            fields: As in `lmdbloader.write`, or the names of the columns to write.
            classes, codec: As in `lmdbloader.write`.
            storage: Its other options for how images are stored.
            least: The fewest rows of a part; None for the rows of one block.
        """
        self._work, self._overwrite, self._least = work, overwrite, least
        self._partial = work.folder
        self._names = None if fields is None or isinstance(fields, Mapping) else tuple(fields)
        types = dict(fields) if isinstance(fields, Mapping) else None
        self._options = {"fields": types, "classes": classes, "codec": codec, **storage}

    @property
    def min_rows_per_write(self) -> int | None:
        """The fewest rows of a part; None for those of one block."""
        return self._least

    def write(self, blocks: Iterable[Any], ctx: Any) -> tuple[int, str] | None:
        """Write blocks as one part; return the number of the task and the part's name, None if there are no rows.

        Raises:
            LmdbloaderError: As by `lmdbloader.write`.
        """
        rows = self._rows(blocks)
        settled = self._read_settled()
        first = [] if settled else list(_first_of(rows))
        if settled is None and first:
            settled = self._settle(first)
        rows = chain(first, rows)
        first = list(islice(rows, 1))
        if not first:
            return None
        name = _new_name()
        types, codecs = _types_of(settled), settled["codecs"]
        options = {**self._options, "fields": types | (self._options["fields"] or {}), "codec": codecs}
        with self._naming(ctx.task_idx), self._removed_after_error(name):
            write(chain(first, rows), self._partial / name, **options)
        return ctx.task_idx, name

    def on_write_complete(self, write_result: Any) -> None:
        """Put the dataset of all parts in place.

        Raises:
            OptionError: There are no rows, or masks have different dtypes.
            FormatError: The parts do not fit together.
        """
        done = sorted(found for found in write_result.write_returns if isinstance(found, tuple))
        if not done:
            raise OptionError(f"{self._work.out}: there is nothing to write: the dataset has no rows")
        readers = [Reader(self._work.folder / name, io="pread") for _, name in done]
        _check_pixels(readers)
        first = readers[0].manifest
        settled = self._read_settled()
        description = Description(undecided(first.fields), first.with_source, first.classes, settled["made_by"])
        self.written = join(self._work, [], description, overwrite=self._overwrite, before=readers)

    def _rows(self, blocks: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for block in blocks:
            for row in BlockAccessor.for_block(block).iter_rows(public_row_format=True):
                yield dict(row) if self._names is None else self._chosen(row)

    def _chosen(self, row: Mapping[str, Any]) -> dict[str, Any]:
        for name in self._names or ():
            if name not in row:
                raise OptionError(f"fields: there is no column {name!r}; the columns are {', '.join(row)}")
        return {name: row[name] for name in self._names or ()}

    def _settle(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return what all parts have in common: settled from these rows, unless another task was first."""
        name = _new_name()
        trial, file = self._partial / name, self._partial / _SETTLED_FILE
        try:
            write(rows, trial, **self._options)
            manifest = read_manifest(trial)
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        settled = {
            "codecs": {f.name: f.codec for f in manifest.fields if f.is_payload and not f.holds_text},
            "kinds": {f.name: [f.kind, f.ignore_index, f.image] for f in manifest.fields},
            "made_by": manifest.made_by,
        }
        fresh = file.with_name(f"{name}.json")
        fresh.write_text(json.dumps(settled), "utf-8")
        try:
            os.link(fresh, file)  # fails if the file exists: the first task wins
        except FileExistsError:
            pass
        except OSError:  # no hard links: two tasks may settle differently, which the check at the end would find
            os.replace(fresh, file)
        fresh.unlink(missing_ok=True)
        return self._read_settled() or settled

    def _read_settled(self) -> Any:
        """Return what all parts have in common; None if it is not settled yet."""
        try:
            return json.loads((self._partial / _SETTLED_FILE).read_text("utf-8"))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _naming(self, task: int) -> Iterator[None]:
        """Add the number of the task to errors about samples, because each task counts its samples from 0."""
        try:
            yield
        except OptionError as error:
            raise OptionError(f"write task {task}, whose samples are counted from 0: {error}") from error

    @contextlib.contextmanager
    def _removed_after_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            shutil.rmtree(self._partial / name, ignore_errors=True)
            raise


def _first_of(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the first rows, up to some MiB."""
    nbytes = 0
    for row in islice(rows, _MOST_ROWS):
        yield row
        nbytes += sum(getattr(value, "nbytes", 0) for value in row.values())
        if nbytes >= _MOST_NBYTES:
            return


def _types_of(settled: Mapping[str, Any]) -> dict[str, FieldType]:
    """Return the types of the fields, without images, which `write` recognizes by their pixels."""
    kinds = {name: kind for name, kind in settled["kinds"].items() if kind[0] != "image"}
    return {
        name: Mask(ignored) if kind == "mask" else kind_named(kind).type(**({"image": image} if image else {}))
        for name, (kind, ignored, image) in kinds.items()
    }


def _new_name() -> str:
    """Return a random name for a part, which neither another task nor an earlier attempt of this one has."""
    return f"part-00000.ray-{secrets.token_hex(6)}"


def _check_pixels(readers: Sequence[Reader]) -> None:
    """Raise OptionError if the labels or pixels of a field have one type in one part and another one in another."""
    looks: dict[str, str] = {}
    for reader in readers:
        for name, kind in ((f.name, f.kind) for f in reader.manifest.fields if f.has_pixels):
            look = reader.look(name)
            if looks.setdefault(name, look) != look:
                line = f' Write data.map(lambda row: {{**row, "{name}": row["{name}"].astype("uint16")}}).'
                raise OptionError(
                    f"field {name!r}: some {kind}s are {looks[name]} and others {look}; all {kind}s of a field need "
                    f"one type and number of channels.{line * (kind == 'mask')}"
                )
