"""The findings of a checkup with their verdicts and remedies, and the facts about a dataset."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lmdbloader.base.text import counted
from lmdbloader.lab.formatting import wrap
from lmdbloader.lab.machine import FileSystem, Machine, filesystem_of, residency_of_all
from lmdbloader.lab.stored import codec_shares
from lmdbloader.store import open_reader

if TYPE_CHECKING:
    from lmdbloader.lab.profiling import Profile

Verdict = Literal["good", "note", "problem"]
_MARKS = {"good": "good", "note": "note", "problem": "PROBLEM"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that matters for loading.

    Attributes:
        name: The subject, such as "cores" or "file system".
        verdict: "good", "note" (worth knowing, often fine) or "problem" (costs speed or ends in an error).
        value: The fact.
        remedy: The fix; empty if there is nothing to do.
    """

    name: str
    verdict: Verdict
    value: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of `doctor`.

    Attributes:
        findings: In the order of the report.
        machine: The machine.
        dataset: Facts of the dataset, None without one.
        profile: Of the pass through a Loader, None without one.
    """

    findings: tuple[Finding, ...]
    machine: Machine
    dataset: DatasetFacts | None = None
    profile: Profile | None = None

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are problems."""
        return tuple(finding for finding in self.findings if finding.verdict == "problem")

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is a problem."""
        return not self.problems

    def finding(self, name: str) -> Finding:
        """Return the finding of a name.

        Raises:
            KeyError: There is no such finding.
        """
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(finding.name for finding in self.findings)}")

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {
            "is_healthy": self.is_healthy,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "summary": self.summary(),
            "machine": self.machine.as_json(),
            "dataset": None if self.dataset is None else dataclasses.asdict(self.dataset),
            "profile": None if self.profile is None else self.profile.as_json(),
        }

    def summary(self) -> str:
        """Return the result in one or two sentences."""
        notes = sum(finding.verdict == "note" for finding in self.findings)
        noted = f" {counted(notes, 'note')} above." if notes else ""
        if not self.problems:
            return f"No problem found.{noted}"
        first = self.problems[0]
        # The full remedy is in the table.
        remedy = first.remedy.split(". ")[0].rstrip(".")
        count = counted(len(self.problems), "problem")
        return f"{count} found.{noted} The first is {first.name}: {first.value}. {remedy}."

    def __str__(self) -> str:
        """Return a table with the remedies, and the summary."""
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            start = f"{_MARKS[finding.verdict]:<8} {finding.name:<{width}}  "
            lines += wrap(finding.value, start, " " * len(start))
            if finding.remedy:
                lines += wrap(f"-> {finding.remedy}", " " * len(start), " " * (len(start) + 3))
        if self.profile is not None:
            lines += ["", str(self.profile)]
        return "\n".join([*lines, "", *wrap(self.summary(), other="  ")])


_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The properties of a dataset that matter for reading it on this machine.

    Attributes:
        path: Of the dataset.
        num_samples: In it.
        data_nbytes: Of its data and index files.
        sample_nbytes: Stored bytes of a sample, all fields, on average.
        codecs: Share of the stored bytes by how they are stored, the largest first.
        image_side: Median of the longer sides of the largest images of a sample; None without images.
        filesystem: The file system of its folder.
        residency: Share of its data files that is in memory; None if unknown.
    """

    path: str
    num_samples: int
    data_nbytes: int
    sample_nbytes: float
    codecs: dict[str, float]
    image_side: int | None
    filesystem: FileSystem
    residency: float | None


def dataset_facts(path: str | os.PathLike[str], root: Path = _ROOT) -> DatasetFacts:
    """Return facts about a dataset; its pixels are not read.

    Args:
        path: Of the dataset.
        root: The folder of `proc` and `sys`; tests plant one.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: Not a finished dataset of this format version.
        CorruptError: A file is cut short or damaged.
    """
    reader = open_reader(path)
    arrays = reader.index.arrays
    columns = []
    sides: list[int] = []
    for name, field in reader.fields.items():
        if field.is_payload:
            columns.append((arrays[f"{name}.codec"], arrays[f"{name}.stored_nbytes"]))
        if field.kind == "image" and len(reader):
            height, width = arrays[f"{name}.height"], arrays[f"{name}.width"]
            sides.append(int(np.median(np.maximum(height, width))))
    shares, total = codec_shares(columns)
    manifest, files = reader.manifest, reader.on_disk
    return DatasetFacts(
        os.fspath(path),
        len(reader),
        manifest.sizes["data_nbytes"] + manifest.sizes["index_nbytes"],
        total / max(1, len(reader)),
        shares,
        max(sides, default=None),
        filesystem_of(files[0], root),
        residency_of_all(files),
    )
