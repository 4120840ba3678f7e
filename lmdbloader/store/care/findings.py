"""The findings of a check of a dataset, and the remedy for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from lmdbloader.base.text import command
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.store.damage import Damage
from lmdbloader.store.reader import Reader

# The most findings shown of one file: a damaged tree has a hundred.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of `verify`.

    Attributes:
        num_samples: Samples checked; 0 if the dataset does not open.
        problems: Faults of the dataset as a whole, one sentence each.
        damaged: Values that cannot be read.
        files: Names of the files that are missing or were changed; in the parts of a set, with the part's folder.
        advice: The remedy; empty if nothing is wrong.
    """

    num_samples: int
    problems: tuple[str, ...]
    damaged: tuple[Damage, ...]
    files: tuple[str, ...] = ()
    advice: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.damaged


@dataclass(slots=True)
class Findings:
    """The findings so far, in order.

    Attributes:
        folder: The dataset.
        problems: Faults, each with the name of the file, "" for the dataset as a whole, and a sentence.
        files: Names of the files that are missing or were changed.
        damaged: Values that cannot be read.
        num_samples: Samples checked.
        is_mixed: Whether a file, or a part of a set, belongs to another dataset.
        has_description: Whether data.mdb holds a copy of the manifest's content, as far as is known.
        reader: The reader of a dataset that opens; None otherwise.
    """

    folder: Path
    problems: list[tuple[str, str]] = field(default_factory=list)
    files: dict[str, None] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)
    num_samples: int = 0
    is_mixed: bool = False
    has_description: bool = True
    reader: Reader | None = None

    def add(self, file: str, *texts: str) -> None:
        """Add faults of a file, or of the dataset as a whole ("" for `file`), one sentence each."""
        if texts and file:
            self.files.setdefault(file)
        more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
        self.problems += [(file, text) for text in [*texts[:_SHOWN], *more]]

    def add_part(self, name: str, part: Findings, first: int) -> None:
        """Add the findings of a part of a set.

        Args:
            name: The part's folder.
            part: Its findings.
            first: The number that its first sample has in the set.
        """
        self.problems += [(f"{name}/{file}" if file else name, text) for file, text in part.problems]
        self.files |= {f"{name}/{file}": None for file in part.files}
        self.damaged += [replace(damage, sample=damage.sample + first) for damage in part.damaged]
        self.num_samples += part.num_samples
        self.is_mixed |= part.is_mixed

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.damaged

    def result(self, advice: str) -> Verification:
        """Return all findings with advice."""
        problems = tuple(f"{file}: {text}" if file else text for file, text in self.problems)
        return Verification(self.num_samples, problems, tuple(self.damaged), tuple(self.files), advice)


def advice_for(found: Findings) -> str:
    """Return the remedy for a dataset with one data.mdb; empty if nothing is wrong."""
    if found.is_sound:
        return ""
    lost = [name for name in (MANIFEST_FILE, INDEX_FILE) if name in found.files]
    if not (found.folder / DATA_FILE).is_file():
        return f"Without {DATA_FILE} nothing can be repaired. Restore it from a copy, or convert again."
    if found.is_mixed:
        return (
            f"Put back the file that was replaced; or, if {DATA_FILE} is the right one, remove {MANIFEST_FILE}: "
            f"{command('repair', found.folder)} then makes a new one."
        )
    if MANIFEST_FILE in lost and not found.has_description:
        return (
            f"{DATA_FILE} does not hold the content of {MANIFEST_FILE}, so it cannot be repaired. Restore "
            f"{MANIFEST_FILE} from a copy, or convert again."
        )
    if DATA_FILE in found.files:
        return (
            f"{command('repair', found.folder, 'OUT')} writes the samples that are sound into a new dataset, OUT, and "
            "lists the others."
        )
    if lost:
        return f"{command('repair', found.folder)} rebuilds {' and '.join(lost)} from {DATA_FILE}."
    return "Its files contradict each other. Restore all of them from one copy, or convert again."
