"""Numbers on the command line, in the grammar of `base.units`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from lmdbloader.base.units import Grammar


def number(grammar: Grammar) -> Callable[[str], Any]:
    """Return the `type` of an argument that is a number."""

    def parse(text: str) -> Any:
        found = grammar.parse(text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {grammar.forms}")
        return found

    return parse
