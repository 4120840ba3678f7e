"""OUT.partial: the plan of a dataset and its complete parts, each put there in one step; and the dataset put in place.

A part, and the dataset, are written in a folder that only its process knows, and renamed when complete. Equal inputs
give equal files, so of several processes that make the same ones, it does not matter which is the last: nothing is
locked.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.files import occupy_standard_descriptors, read_regular
from lmdbloader.base.option_names import option
from lmdbloader.errors import CorruptError, DestinationError, LmdbloaderError
from lmdbloader.format.digests import digest_of, read_digest
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    PLAN_FILE,
    SKIPPED_FILE,
    SOURCES_FILE,
    UPLOAD_FILE,
)
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Description
from lmdbloader.store.opening import read_manifest
from lmdbloader.store.writing.part import ROWS_FILE, PartWriter, num_committed

_FACTS_FILE = "facts.json"
_MAX_FACTS_NBYTES = 2**30
_LOCK_FILE = "lock.mdb"  # LMDB's own tools leave it
_DATASET = re.compile(
    r"data(-[0-9]{5,})?\.mdb|"
    + "|".join(
        map(re.escape, (INDEX_FILE, MANIFEST_FILE, UPLOAD_FILE, SKIPPED_FILE, LEFT_OUT_FILE, SOURCES_FILE, _LOCK_FILE))
    )
)
# Complete parts, and those that a process is writing; the plan and the inputs of each part; what is being written.
_WORKING = re.compile(rf"part-[0-9]{{5,}}(\..+)?|sources-[0-9]{{5,}}\.npz|{re.escape(PLAN_FILE)}|.+\.new-.+")
_BEGUN = re.compile(r"(part-[0-9]{5,}\.|(dataset|columns)\.new-)(?P<tag>.+)")


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What is known of a part that is complete.

    Attributes:
        num_samples: Its samples; 0 if none of its inputs could be used: then it has no data file.
        data_nbytes: Bytes of its data file.
        data_digest: Of its data file.
        rows_digest: Of its rows of the index.
        plan_digest: Of the plan by which it was made.
        notes: Of whoever made it, as JSON, for the one who joins the parts.
    """

    num_samples: int
    data_nbytes: int
    data_digest: str
    rows_digest: str
    plan_digest: str
    notes: Mapping[str, Any]


def partial_of(out: Path) -> Path:
    """Return the folder in which a dataset is until it is complete."""
    return out.with_name(out.name + PARTIAL_SUFFIX)


def is_dataset(path: Path) -> bool:
    """Return whether a folder holds a finished dataset of lmdbloader, of any format version."""
    try:
        return bool(json.loads(read_regular(path / MANIFEST_FILE, MAX_MANIFEST_NBYTES)).get("format") == FORMAT_NAME)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def check_destination(out: Path, *, overwrite: bool, is_damaged: bool = False) -> None:
    """Refuse a destination that is taken.

    Args:
        out: The dataset to make.
        overwrite: Whether a dataset there may be replaced.
        is_damaged: Whether it may be one without a manifest.

    Raises:
        DestinationError: `out` exists, is not an empty folder, and may not be replaced; or its parent is missing.
    """
    if not out.absolute().parent.is_dir():
        raise DestinationError(f"{out}: the folder {out.absolute().parent} does not exist. Create it first.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise DestinationError(f"{out}: exists and is not a folder. Choose another destination.")
    if not out.exists() or not any(out.iterdir()):
        return
    if not is_damaged and not is_dataset(out):
        raise DestinationError(
            f"{out}: is a folder with other things in it, which is never replaced. Choose another destination."
        )
    if not overwrite:
        advice = f"Choose another destination, or overwrite it ({option('overwrite', True)})."
        raise DestinationError(f"{out}: a dataset is there already. {advice}")
    if others := others_of(os.listdir(out)):
        raise DestinationError(
            f"{out}: lmdbloader did not write {others[0]!r} in it, which would be lost. Move it away."
        )


def others_of(names: Iterable[str]) -> list[str]:
    """Return the names in a folder that are not ours, nor those of files that were removed from NFS while open."""
    return [n for n in sorted(names) if not (_DATASET.fullmatch(n) or _WORKING.fullmatch(n) or n.startswith(".nfs"))]


class Work:
    """The parts of a dataset that is being made.

    Attributes:
        out: The future dataset.
        folder: OUT.partial.
    """

    def __init__(self, out: Path) -> None:
        """Look at OUT.partial, which may be absent.

        Raises:
            DestinationError: Other files are in it.
        """
        self.out, self.folder = out, partial_of(out)
        self._digest: str | None = None  # of the plan that was read or written last: this process makes its parts
        if self.folder.exists() and not self.folder.is_dir():
            raise DestinationError(f"{self.folder}: exists and is not a folder. Remove it.")
        if self.folder.is_dir() and (others := others_of(os.listdir(self.folder))):
            raise DestinationError(
                f"{self.folder}: holds {others[0]!r}, which is not of an unfinished dataset. Move it away."
            )

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of what is made here; None if there is none.

        Raises:
            DestinationError: It does not decode.
        """
        path = self.folder / PLAN_FILE
        try:
            with explain_full_disk(path), naming(path):
                content = read_regular(path, _MAX_FACTS_NBYTES)
            found = json.loads(content)
            if not isinstance(found, dict):
                raise ValueError("not an object")
            self._digest = digest_of(content)
            return found
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            advice = f"Restart with {option('restart', True)}, which discards what is done."
            raise DestinationError(f"{path}: does not decode ({error!r:.80}). {advice}") from error

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Write the plan, durably, and discard what another plan has made; several processes must have the same one."""
        occupy_standard_descriptors()
        text = json.dumps(plan, indent=1)
        if self.plan() not in (None, json.loads(text)):
            self.discard()
        with explain_full_disk(self.folder):
            self.folder.mkdir(exist_ok=True)
            self.write(PLAN_FILE, text.encode())
            self._digest = digest_of(text.encode())
            system.flush_path(self.folder.absolute().parent)
        self.remove_abandoned()

    def compare(self, asked: Mapping[str, Any]) -> None:
        """Compare what the plan was made for, its "asked", with what is asked now; both with values as in JSON.

        Raises:
            DestinationError: Something differs, which the message names.
        """
        before = (self.plan() or {}).get("asked", {})
        differences = [
            f"{option(name) if name.isidentifier() else name} {before.get(name)!s:.200}, now {value!s:.200}"
            for name, value in asked.items()
            if before.get(name) != value
        ]
        if differences:
            raise DestinationError(
                f"{self.folder}: another dataset is unfinished there: {'; '.join(differences[:5])}. Finish it with the "
                f"call that began it, and the same inputs, or discard its progress with {option('restart', True)}."
            )

    def continues(self, asked: Mapping[str, Any]) -> bool:
        """Return whether the plan of this very call is there; one of another call is no obstacle without parts.

        Raises:
            DestinationError: Parts of another call are there.
        """
        has_parts = self.has_parts()  # before the plan is read: another process may begin meanwhile
        try:
            self.compare(asked)
        except DestinationError:
            if has_parts and not self.is_published():
                raise
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a small file durably, in one step."""
        write_file(self.folder / name, data)

    def has_parts(self) -> bool:
        """Return whether a part is complete, or is being written."""
        return any(self.folder.glob("part-*"))

    def discard(self) -> None:
        """Remove all that is done, in one step; other processes that work on it end with an error."""
        aside = _aside(self.out)
        try:
            os.rename(self.folder, aside)
            system.flush_path(self.folder.absolute().parent)  # a power cut must not leave the name and a part of it
        except OSError:
            aside = aside if aside.exists() else self.folder
        for _ in range(2):  # a file that another process created at that moment can escape once
            shutil.rmtree(aside, ignore_errors=True)

    def leave(self, *, discard: bool = False) -> None:
        """Remove OUT.partial after an error, unless a part is in it, or whatever is in it."""
        if discard or not self.has_parts():
            self.discard()

    def facts(self, number: int) -> PartFacts | None:
        """Return the facts of a part that is complete; None if it is not, is damaged, or was made by another plan."""
        path = self.folder / part_folder(number) / _FACTS_FILE
        try:
            with explain_full_disk(path), naming(path):
                body, digest = json.loads(read_regular(path, _MAX_FACTS_NBYTES))
            if digest != digest_of(json.dumps(body).encode()):
                return None
            found = PartFacts(**body)
            is_of_plan = found.plan_digest == self._plan_digest()
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return None
        is_whole = not found.num_samples or _has_size(path.parent / DATA_FILE, found.data_nbytes)
        return found if is_of_plan and is_whole else None

    def first_facts(self) -> list[PartFacts]:
        """Return the facts of the parts before the first one that is not complete."""
        facts: list[PartFacts] = []
        while (found := self.facts(len(facts))) is not None:
            facts.append(found)
        return facts

    def is_published(self) -> bool:
        """Return whether OUT has these parts: a process put it in place and was killed before it could clean up."""
        mine = [facts.data_digest for facts in self.first_facts() if facts.num_samples]
        try:
            return bool(mine) and [part.data_digest for part in read_manifest(self.out).parts][-len(mine) :] == mine
        except (LmdbloaderError, OSError):
            return False

    def rows(self, number: int) -> pa.RecordBatch:
        """Return the rows of the index that a complete part has, in a map of its file."""
        path = self.folder / part_folder(number) / ROWS_FILE
        return pa.ipc.open_file(pa.memory_map(os.fsencode(path))).get_batch(0)

    def is_busy(self) -> bool:
        """Return whether a process that may still be running is writing a part."""
        begun = (_BEGUN.fullmatch(entry.name) for entry in self.folder.glob("part-*.*"))
        return any(found is not None and not _has_ended(found["tag"]) for found in begun)

    def remove_part(self, number: int) -> None:
        """Remove a complete part, which is then made again."""
        shutil.rmtree(self.folder / part_folder(number))

    def _plan_digest(self) -> str:
        if self._digest is None:
            path = self.folder / PLAN_FILE
            with explain_full_disk(path), naming(path):
                self._digest = digest_of(path.read_bytes())
        return self._digest

    @contextmanager
    def part(
        self,
        number: int,
        description: Description,
        *,
        map_nbytes: int,
        transaction_samples: int | None = None,
    ) -> Iterator[PartWriter]:
        """Yield the writer of a part, in a folder that only this process knows; `complete` puts the part in place.

        With `transaction_samples`, the samples are slow to make: those that an interrupted process of this machine has
        committed are continued, and an error leaves the committed ones for the next call.

        Args:
            number: Of the part, from 0.
            description, map_nbytes, transaction_samples: As for `PartWriter`.
        """
        folder = self.folder / f"{part_folder(number)}.{own_tag()}"
        continues = transaction_samples is not None
        if continues and (found := self._abandoned(number)) is not None:
            os.rename(found, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        writer: PartWriter | None = None
        try:
            with explain_full_disk(self.folder):
                writer = PartWriter(folder, description, map_nbytes=map_nbytes, transaction_samples=transaction_samples)
                try:
                    yield writer
                finally:
                    writer.close()
        finally:
            if not (continues and writer is not None and writer.num_committed and folder.exists()):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.exists():  # for the next call of any process
                with contextlib.suppress(OSError):
                    os.rename(folder, self.folder / f"{part_folder(number)}.interrupted")

    def complete(self, number: int, writer: PartWriter, notes: Mapping[str, Any]) -> PartFacts:
        """Finish a part, and put it in place; if another process has, its part stays.

        Raises:
            DiskFullError: No room left.
        """
        folder, data = writer.folder, writer.folder / DATA_FILE
        if writer.num_samples:
            writer.finish()
            facts = PartFacts(
                writer.num_samples, data.stat().st_size, _digest_of(data), _digest_of(folder / ROWS_FILE),
                self._plan_digest(), notes,
            )  # fmt: skip
        else:
            writer.close()
            data.unlink(missing_ok=True)
            facts = PartFacts(0, 0, "", "", self._plan_digest(), notes)
        body = asdict(facts)
        text = json.dumps([body, digest_of(json.dumps(body).encode())])
        with explain_full_disk(self.folder, lambda: len(text)):
            with naming(folder / _FACTS_FILE):
                (folder / _FACTS_FILE).write_text(text, "utf-8")
            for file in folder.iterdir():
                system.flush_path(file)
            system.flush_path(folder)
            place = self.folder / part_folder(number)
            try:
                os.rename(folder, place)
            except OSError:
                if (found := self.facts(number)) is not None:
                    return found
                shutil.rmtree(place, ignore_errors=True)  # of another plan
                os.rename(folder, place)
            system.flush_path(self.folder)
        return facts

    def take_over(self, number: int, data: Path, description: Description) -> PartFacts:
        """Make a part of a data file that is complete, which is linked, or copied where there are no links.

        Raises:
            CorruptError: A record is damaged.
        """
        folder = self.folder / f"{part_folder(number)}.{own_tag()}"
        folder.mkdir()
        link(data, folder / DATA_FILE)
        with explain_full_disk(folder / DATA_FILE):
            committed = num_committed(folder)
            with contextlib.closing(PartWriter(folder, description, map_nbytes=data.stat().st_size)) as writer:
                if writer.num_committed != committed:  # a damaged part in work would be made again
                    raise CorruptError(f"{folder / DATA_FILE} ({data.name}): its pages are damaged or cannot be read.")
                return self.complete(number, writer, {})

    def _abandoned(self, number: int) -> Path | None:
        """Return the folder of a part that an ended process of this machine was writing; None if there is none."""
        for entry in sorted(self.folder.glob(f"{part_folder(number)}.*")):
            begun = _BEGUN.fullmatch(entry.name)
            if begun is not None and _has_ended(begun["tag"]):
                return entry
        return None

    def remove_abandoned(self) -> None:
        """Remove what processes of this machine that have ended have left, except the samples that can be continued."""
        for entry in self.folder.glob("*.*"):
            begun = _BEGUN.fullmatch(entry.name)
            if begun is not None and begun["tag"] != "interrupted" and _has_ended(begun["tag"]):
                shutil.rmtree(entry, ignore_errors=True)


def part_folder(number: int) -> str:
    """Return the name of the folder of a complete part in OUT.partial.

    >>> part_folder(7)
    'part-00007'
    """
    return f"part-{number:05d}"


def link(source: Path, target: Path) -> None:
    """Give a file another name, replacing a file; it is copied where there are no links."""
    fresh = target.with_name(f"{target.name}.new-{own_tag()}")
    with explain_full_disk(target.parent), naming(target):
        try:
            os.link(source, fresh)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, fresh)
        os.replace(fresh, target)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably, in one step."""
    fresh = path.with_name(f"{path.name}.new-{own_tag()}")
    with explain_full_disk(path.parent, lambda: len(data)), naming(path):
        fresh.write_bytes(data)
        system.flush_path(fresh)
        os.replace(fresh, path)
        system.flush_path(path.parent)


def put_in_place(fresh: Path, out: Path, *, overwrite: bool, is_damaged: bool = False) -> None:
    """Give a complete dataset its name, durably, in one step; one that it replaces is then in its folder.

    Args:
        fresh: The folder with the dataset, which only this process changes.
        out: Its name.
        overwrite, is_damaged: As for `check_destination`.

    Raises:
        DestinationError: `out` is taken.
    """
    check_destination(out, overwrite=overwrite, is_damaged=is_damaged)
    with explain_full_disk(out):
        for name in filter(_DATASET.fullmatch, os.listdir(fresh)):
            system.flush_path(fresh / name)
        system.flush_path(fresh)
        is_taken = out.exists() and any(out.iterdir())
        if not (overwrite and is_taken):  # whatever another process has put there meanwhile stays
            try:
                os.rename(fresh, out)
            except OSError:
                check_destination(out, overwrite=False)
                raise
        elif not system.exchange(fresh, out):  # a reader that opens it at this moment finds nothing
            aside = _aside(out)
            os.rename(out, aside)
            try:
                os.rename(fresh, out)
            except OSError:  # another machine has put the same dataset in place
                os.rename(aside, out)
                raise
            os.rename(aside, fresh)
        system.flush_path(out.absolute().parent)


def remove_work(out: Path) -> None:
    """Remove what processes that have made a dataset, and were killed, have left in it and next to it."""
    for entry in out.absolute().parent.glob(f"{glob.escape(out.name)}.replaced-*"):
        if _has_ended(entry.name.rpartition(".replaced-")[2]):
            shutil.rmtree(entry, ignore_errors=True)
    with contextlib.suppress(OSError):
        for entry in out.glob("*.new-*"):
            entry.unlink(missing_ok=True)
    with contextlib.suppress(DestinationError):
        if (work := Work(out)).is_published():
            work.discard()


def _aside(out: Path) -> Path:
    return out.with_name(f"{out.name}.replaced-{own_tag()}")


def _has_size(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except OSError:
        return False


def _digest_of(path: Path) -> str:
    descriptor = system.open_to_read(path)
    try:
        with naming(path):
            return read_digest(descriptor)
    finally:
        os.close(descriptor)


def own_tag() -> str:
    """Return a name that no other process or thread on any machine takes, and that shows whether this one has ended."""
    return f"{_machine()}-{os.getpid()}-{system.start_of(os.getpid())}-{secrets.token_hex(4)}"


def _machine() -> str:
    """Return a name for this machine, as it runs since its last start, and its numbers of processes."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbers = ""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f"{host}-{hashlib.sha256((system.boot_id() + numbers).encode()).hexdigest()[:8]}"


def _has_ended(tag: str) -> bool:
    """Return whether the process with a name has certainly ended: on this machine, or before its last start."""
    if tag == "interrupted":
        return True
    try:
        host, boot, pid, started, _ = tag.split("-")
        mine_host, mine_boot = _machine().split("-")
        if host != mine_host:
            return False
        return boot != mine_boot or system.start_of(int(pid)) != int(started)
    except ValueError:
        return False
