"""Manifests and array types that hypothesis makes up, or makes of sound ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import Case, Wrong, describe
from .forging import signed
from .hostile import Copy, use

_EXAMPLES = {"manifests": 100, "array types": 500}


def prepare_manifests(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of a hundred manifests, each with a matching digest, next to sound files."""
    from hypothesis import strategies as st

    copies = [Copy(Path(path), folder / name) for name, path in paths.items()]
    for copy in copies:
        use(copy.path, batches=True)

    def check(given: tuple[int, bytes]) -> str:
        copy = copies[given[0]]
        copy.write(manifest=given[1])
        return use(copy.path)

    # Each copy's own strategy is made once: hypothesis looks long at new ones.
    made = st.one_of([st.tuples(st.just(i), _manifests(copy.body)) for i, copy in enumerate(copies)])
    return lambda number: _examples(made, check, _EXAMPLES["manifests"], seed * 10**6 + number)


def prepare_array_types(paths: dict[str, str], folder: Path, seed: int) -> Case:
    """Return the case of five hundred texts that may be an array's type."""
    from hypothesis import strategies as st

    from lmdbloader.errors import FormatError
    from lmdbloader.format.layout import ARRAY_DTYPES, array_type, parse_array_type

    sizes = st.lists(st.integers(0, 10**13), max_size=34).map(lambda values: f"[{','.join(map(str, values))}]")
    likely = st.builds(str.__add__, st.sampled_from([*sorted(ARRAY_DTYPES), "object", "str", "", "V8"]), sizes)
    texts = st.one_of(likely, st.text(max_size=30), st.text("float32[,]0123456789 -+_eé²", max_size=30))

    def check(text: str) -> str:
        try:
            dtype, shape = parse_array_type(text)
        except FormatError:
            return "refused"
        if array_type(dtype, shape) != text and not any(part.startswith("0") for part in text.split(",")):
            again = parse_array_type(array_type(dtype, shape))
            if again != (dtype, shape):
                raise Wrong(f"{text!r} reads as {dtype} {shape}")
        return "read"

    return lambda number: _examples(texts, check, _EXAMPLES["array types"], seed * 10**6 + number)


def _manifests(body: dict[str, Any]) -> Any:
    """Return a strategy of manifests: with other values anywhere, keys left out or added; now and then other text."""
    from hypothesis import strategies as st

    plain = {key: value for key, value in body.items() if key != "manifest_digest"}
    places = list(_places(plain))
    numbers = st.one_of(st.integers(-3, 20), st.sampled_from([2**31, 2**32, 2**62, 2**63, 10**30]), st.floats())
    leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(_words(plain)))
    values = st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
        max_leaves=6,
    )
    changes = st.lists(
        st.tuples(st.sampled_from(places), st.sampled_from(["put", "put", "drop", "add"]), values),
        min_size=1,
        max_size=3,
    )

    def change(given: list[tuple[tuple[Any, ...], str, Any]]) -> bytes:
        new = json.loads(json.dumps(plain))
        for place, how, value in given:
            _change(new, place, how, value)
        try:
            return signed(new)
        except ValueError:  # half a surrogate pair in a key
            return b"{}\n"

    text = signed(plain)
    cut = st.builds(
        lambda at, what: text[: at % len(text)] + what + text[at % len(text) :], st.integers(0), st.binary(max_size=4)
    )
    return st.one_of(changes.map(change), changes.map(change), changes.map(change), cut, st.binary(max_size=80))


def _places(value: Any, here: tuple[Any, ...] = ()) -> Any:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*here, key)
        yield from _places(part, (*here, key))


def _words(body: Any) -> list[Any]:
    if isinstance(body, dict | list):
        parts = body.values() if isinstance(body, dict) else body
        return [word for part in parts for word in _words(part)] + [list(body)[:3]]
    return [body]


def _change(body: Any, place: tuple[Any, ...], how: str, value: Any) -> None:
    for key in place[:-1]:
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            return  # a change before this one took it away
    key = place[-1]
    if isinstance(body, dict):
        key = str(key)
        if how == "drop":
            body.pop(key, None)
        else:
            body[key if how == "put" else f"{key}2"] = value
    elif isinstance(body, list) and isinstance(key, int) and key < len(body):
        if how == "drop":
            del body[key]
        elif how == "put":
            body[key] = value
        else:
            body.append(value)


def _examples(strategy: Any, check: Callable[[Any], str], count: int, seed: int) -> dict[str, int]:
    """Check examples of a strategy; return how often which word came.

    Raises:
        Wrong: For the first that came out as it must not; names it.
    """
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    words: Counter[str] = Counter()
    wrong: list[str] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    @given(strategy)
    def examples(example: Any) -> None:
        try:
            words[check(example)] += 1
        except Wrong as error:
            wrong.append(f"{error}; {example!r:.2000}")
        except Exception as error:
            wrong.append(f"{describe(error)}; {example!r:.2000}")

    examples()
    if wrong:
        raise Wrong(f"{len(wrong)} of {count}, the first: {wrong[0]}")
    return dict(words)
