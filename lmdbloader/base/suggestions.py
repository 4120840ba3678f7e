"""Finds the name that a mistyped name stands for."""

from __future__ import annotations

from collections.abc import Iterable

_LEAST_LIKENESS = 0.72
_LEAST_COMMON_START = 4


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a word; None if none is similar.

    Case, hyphens and underscores do not count.

    >>> nearest("--patchsize", ["--patch-size", "--max-pixels"]), nearest("benchmark", ["bench", "plan"])
    ('--patch-size', 'bench')
    >>> nearest("heap", ["images", "pairs"]) is None
    True
    """
    from difflib import get_close_matches

    names = {_bare(name): name for name in known}
    wanted = _bare(word)
    if close := get_close_matches(wanted, names, n=1, cutoff=_LEAST_LIKENESS):
        return names[close[0]]
    starts = (name for name in names if min(len(name), len(wanted)) >= _LEAST_COMMON_START)
    start = next((name for name in starts if wanted.startswith(name) or name.startswith(wanted)), None)
    return None if start is None else names[start]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a similar known name, or nothing.

    >>> did_you_mean("jpeg", ["raw", "jpg"]), did_you_mean(3, ["raw", "jpg"])
    ('. Did you mean jpg?', '')
    """
    found = nearest(word, known) if isinstance(word, str) else None
    return "" if found is None else f". Did you mean {found}?"


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
