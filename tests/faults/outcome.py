"""What one fault's run came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fault's run came to.

    Attributes:
        name: The fault's, which is its module's.
        must_hold: What was promised, in a few words.
        counts: What was done and what came of it, such as {"kills": 300, "same digest": 300, "lost": 0}, in the order
            in which people read it.
        failures: One line for each time that the promise did not hold, with what it takes to see it again.
        seconds: How long it took; filled in by whoever ran it.
    """

    name: str
    must_hold: str
    counts: dict[str, int]
    failures: list[str]
    seconds: float = 0.0
