"""The outcome of one fault's run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one fault's run.

    Attributes:
        counts: Numbers of runs and outcomes, such as {"kills": 300, "same digest": 300, "lost": 0}, in the order
            in which people read it.
        failures: One line for each time that the promise did not hold, with the arguments to reproduce it.
    """

    counts: dict[str, int]
    failures: list[str]
