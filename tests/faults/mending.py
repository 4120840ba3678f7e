"""Damage of any kind, one or several at once: verify finds it, repair saves exactly the sound samples."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .cases import Case, Wrong, run_cases
from .datasets import FILES, make_datasets
from .outcome import Outcome

_PAGE = 4096
_WEIGHTS = {"flip": 6, "overwrite": 3, "page": 3, "cut": 2, "longer": 1, "lose": 3, "swap": 1, "respell": 1}
KINDS = tuple(_WEIGHTS)
Change = tuple[str, str, int, int]
Files = dict[str, bytes]


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Damage one of several datasets `count` times; verify it, repair it, and check the result."""
    paths = {name: str(path) for name, path in make_datasets(folder).items()}
    paths["records"], paths["others"] = str(folder / "records.lmdb"), str(folder / "others.lmdb")
    write_records(Path(paths["records"]), 0)
    write_records(Path(paths["others"]), 1)
    (folder / "work").mkdir()
    counts, failures = run_cases(_prepare, (paths, seed, str(folder / "work")), count, folder)
    return Outcome(
        "mending",
        "found; exactly the sound samples come back",
        {"damaged": count, **dict(sorted(counts.items()))},
        failures,
    )


def write_records(path: Path, seed: int) -> None:
    """Write a dataset of several records."""
    import lmdbloader

    lmdbloader.write(_many(seed), path, codec="lz4")


def _many(seed: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    for i in range(40):
        rng = np.random.default_rng(100 * seed + i)
        yield {"blob": rng.integers(0, 9, 40_000, np.uint8).tobytes(), "number": i, "mask": np.full(i % 4, i)}


def _prepare(paths: dict[str, str], seed: int, work: str) -> Case:
    subjects = [Subject(Path(path)) for path in paths.values()]

    def case(number: int) -> str:
        rng = random.Random(f"{seed} {number}")
        # Of the large ones each record is a case of its own.
        subject = rng.choice([*subjects, *subjects[-2:] * 3])
        damaged = subject.files
        changes = [_draw(rng, damaged) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        for change in changes:
            damaged = plant(damaged, change, rng.choice(subjects).files)
        try:
            return check(subject, damaged, changes, Path(work))
        except Wrong as error:
            raise Wrong(f"{subject.path.name}, {changes}: {error}") from error
        finally:
            for name in ("d", "out"):
                shutil.rmtree(Path(work) / name, ignore_errors=True)

    return case


def _draw(rng: random.Random, files: Files) -> Change:
    """Return a damage: kind, file, place in it, and a number."""
    kind = rng.choices(KINDS, list(_WEIGHTS.values()))[0]
    name = "manifest.json" if kind == "respell" else rng.choices(FILES, (6, 2, 2))[0]
    size = len(files.get(name, b""))
    place = rng.randrange(size) if size else 0
    if name == "data.mdb" and size and rng.random() < 0.3:
        place = rng.randrange(-(-size // _PAGE)) * _PAGE + rng.randrange(160)  # headers, meta pages, keys
    return kind, name, min(place, max(size - 1, 0)), rng.randrange(2**32)


def plant(files: Files, change: Change, others: Files) -> Files:
    """Return the files with one more damage."""
    kind, name, place, number = change
    if name not in files or not (data := files[name]) or (kind == "respell" and name != "manifest.json"):
        return files
    rng = random.Random(number)
    place = min(place, len(data) - 1)  # another damage may have cut it short
    if kind == "lose":
        return {other: content for other, content in files.items() if other != name}
    if kind == "flip":
        changed = data[:place] + bytes([data[place] ^ 1 << number % 8]) + data[place + 1 :]
    elif kind == "overwrite":
        changed = data[:place] + rng.randbytes(rng.randint(1, 64)) + data[place + 64 :]
        changed = changed[: len(data)]
    elif kind == "page":
        at = place // _PAGE * _PAGE
        content = rng.choice((bytes(_PAGE), b"\xff" * _PAGE, rng.randbytes(_PAGE)))
        changed = (data[:at] + content + data[at + _PAGE :])[: len(data)]
    elif kind == "cut":
        changed = data[:place]
    elif kind == "respell":  # the same JSON with other bytes
        changed = rng.choice((data.replace(b"\n", b"\r\n"), data.replace(b": ", b":", 1), b" " + data, data + b"\n"))
    elif kind == "longer":
        changed = data + rng.randbytes(rng.randint(1, 2 * _PAGE))
    else:
        changed = others[name]
    return {**files, name: changed}


class Subject:
    """A sound dataset and the places of everything in it."""

    def __init__(self, path: Path) -> None:
        from lmdbloader.store.care.pages import find_records

        from lmdbloader.store import Reader

        self.path = path
        self.files: Files = {name: (path / name).read_bytes() for name in FILES}
        reader = Reader(path)
        self.rows = _rows(reader)
        a, self.payloads = reader.index.arrays, [f.name for f in reader.manifest.fields if f.is_payload]
        self.places = [
            [(int(a[f"{name}.offset"][row]), int(a[f"{name}.stored_nbytes"][row])) for name in self.payloads]
            for row in range(len(reader))
        ]
        with open(path / "data.mdb", "rb") as file:
            records = find_records(file.fileno())
        ends = [record.first for record in records[1:]] + [len(reader)]
        self.records = [(range(r.first, end), r.at, r.nbytes) for r, end in zip(records, ends, strict=True)]
        data = self.files["data.mdb"]
        headers = {at: (at // _PAGE).to_bytes(8, "little") + b"\0\0\2\0" for at in range(0, len(data), _PAGE)}
        self.leaves = [at for at, header in headers.items() if data[at : at + 12] == header]

    def sound_by_index(self, data: bytes) -> set[int]:
        """Return the samples whose payloads are as they were."""
        sound = self.files["data.mdb"]
        return {
            row
            for row, places in enumerate(self.places)
            if all(at + n <= len(data) and data[at : at + n] == sound[at : at + n] for at, n in places)
        }

    def sound_by_records(self, data: bytes) -> tuple[set[int], set[int]]:
        """Return the samples that must be found without an index, and those that may be."""
        sound = self.files["data.mdb"]
        whole = [s for s, at, n in self.records if data[at : at + n] == sound[at : at + n] and at + n <= len(data)]
        may = {sample for samples in whole for sample in samples}
        is_told = all(data[at : at + _PAGE] == sound[at : at + _PAGE] for at in self.leaves)
        # One of the two meta pages must state the page size; pages of an unusual size are not found.
        return (may if is_told else set()), may


def _rows(reader: Any) -> list[Any]:
    """Return everything of every sample except its offsets, with payloads in stored form."""
    columns = [c for c in reader.index.batch.schema.names if not c.endswith(".offset")]
    values = list(zip(*(reader.index.batch.column(c).to_pylist() for c in columns), strict=True))
    names = [f.name for f in reader.manifest.fields if f.is_payload]
    return [(*values[row], *(reader.stored_bytes(name, row) for name in names)) for row in range(len(reader))]


def check(subject: Subject, damaged: Files, changes: Sequence[Change], folder: Path) -> str:
    """Verify and repair a damaged dataset in a folder; return the outcome in a word.

    Raises:
        Wrong: Damage was not found, or something else than the sound samples came back.
    """
    from lmdbloader.errors import CorruptError, FormatError
    from lmdbloader.store import Reader, read_manifest, repair, verify

    path, out = folder / "d", folder / "out"
    path.mkdir()
    for name, content in damaged.items():
        (path / name).write_bytes(content)
    is_sound = damaged == subject.files
    if {name for kind, name, _, _ in changes if kind == "swap"} == set(FILES):
        return "of another dataset"  # all files, and their damage is unknown here
    try:
        if verify(path).is_sound != is_sound:
            raise Wrong(f"verify says that it is {'damaged' if is_sound else 'sound'}")
        done = repair(path, out)
    except FormatError as error:
        if "data.mdb" in damaged and "index.arrow" in damaged:
            raise Wrong(f"it is not taken for a dataset: {error}") from error
        return "no dataset any more"
    except CorruptError as error:
        return _check_hopeless(subject, damaged, error)
    data = damaged.get("data.mdb", b"")
    if (path / "data.mdb").read_bytes() != data:
        raise Wrong("repair changed data.mdb")
    result = done.out or path
    if not verify(result).is_sound:
        raise Wrong(f"what was mended is not sound: {verify(result).problems}")
    rows = _rows(Reader(result))
    is_known = not done.out and damaged.get("manifest.json") == subject.files["manifest.json"]
    if not is_known and any(kind == "swap" and name == "data.mdb" for kind, name, _, _ in changes):
        return "of another dataset"  # the manifest identifies the samples only if all of them are there
    if not done.out:
        if rows != subject.rows:
            raise Wrong("what was mended in place holds something else")
        return "sound" if is_sound else "mended in place"
    return _check_new(subject, damaged, rows, read_manifest(result), done)


def _check_new(subject: Subject, damaged: Files, rows: list[Any], manifest: Any, done: Any) -> str:
    """Compare a new dataset with the sound parts of the damaged one."""
    left_out = {damage.sample for damage in done.left_out}
    has = {name: damaged.get(name) == subject.files[name] for name in FILES}
    has["manifest.json"] = has["manifest.json"] or is_respelt(damaged, subject)
    if has["manifest.json"] and done.may_lack_more:
        raise Wrong("how many samples there were is said not to be known")
    if unnamed := set(range(len(rows) + len(left_out), len(subject.rows))):
        if not done.may_lack_more:
            raise Wrong(f"{len(unnamed)} samples are lost, and nothing says so")
        left_out |= unnamed
    if (left_out or done.may_lack_more) and manifest.made_by == json.loads(subject.files["manifest.json"])["made_by"]:
        raise Wrong("what lacks samples passes for what was converted")
    saved = [sample for sample in range(len(subject.rows)) if sample not in left_out]
    if rows != [subject.rows[sample] for sample in saved]:
        raise Wrong(f"{len(rows)} samples came back, of other bytes than those of the {len(saved)} not left out")
    if has["manifest.json"] and has["index.arrow"]:
        must = may = subject.sound_by_index(damaged["data.mdb"])
        how = "saved by the index"
    else:
        must, may = subject.sound_by_records(damaged["data.mdb"])
        how = "saved record by record"
    if not must <= set(saved) <= may:
        raise Wrong(f"{how}: samples {saved} came back, expected {sorted(may)}, at least {sorted(must)}")
    if len(saved) == len(subject.rows):
        if manifest.content_digest != json.loads(subject.files["manifest.json"])["content_digest"]:
            raise Wrong("all samples came back, with another content digest")
        return f"{how}, all"
    return how


def is_respelt(damaged: Files, subject: Subject) -> bool:
    """Return whether a manifest still has its original content."""
    try:
        return bool(json.loads(damaged.get("manifest.json", b"")) == json.loads(subject.files["manifest.json"]))
    except ValueError:
        return False


def _check_hopeless(subject: Subject, damaged: Files, error: Exception) -> str:
    """Check that nothing could be repaired."""
    if "data.mdb" not in damaged:
        return "hopeless"
    if "remove manifest.json" in str(error):
        return "of two datasets"
    has = {name: damaged.get(name) == subject.files[name] for name in FILES}
    has["manifest.json"] = has["manifest.json"] or is_respelt(damaged, subject)
    must, _ = subject.sound_by_records(damaged["data.mdb"])
    if has["manifest.json"] and has["index.arrow"]:
        must = subject.sound_by_index(damaged["data.mdb"])
    if must and "are not those of this dataset" not in str(error):
        raise Wrong(f"{len(must)} samples could be saved, but: {error}")
    return "hopeless"
