"""The recipe "Add an option of convert": one field, and it is a keyword argument, a flag, checked and recorded."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Any, Literal

import pytest

import lmdbloader
from lmdbloader.cli._options import add_flags, given
from lmdbloader.conversion import provenance
from lmdbloader.conversion.options import STORE, ConvertOptions, RunOptions, opt, with_options
from lmdbloader.conversion.plan import make_plan
from lmdbloader.errors import OptionError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WithSpeckles(ConvertOptions):
    """The options that convert and estimate share, and two more."""

    speckles: int | None = opt(None, STORE, "speckles in an image, see {codec}", metavar="N", limits=(1, 9))
    note: str | None = opt(None, STORE, "a remark that the dataset records", metavar="TEXT")
    tint: Literal["none", "sepia"] = opt("none", STORE, "color of old photographs (default: none)")


@with_options(WithSpeckles)
def convert(src: str, out: str, options: WithSpeckles) -> WithSpeckles:
    """Convert.

    Args:
        src: The folder.
        out: The dataset.

    Returns:
        The options.
    """
    return options


def test_a_field_is_a_keyword_argument() -> None:
    assert convert("a", "b", speckles=3, codec="raw") == WithSpeckles(speckles=3, codec="raw")
    parameter = inspect.signature(convert).parameters["speckles"]
    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert "\n    speckles: Speckles in an image, see `codec`.\n" in str(convert.__doc__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speckles": 10}, "speckles=10: expected a whole number from 1 to 9"),
        ({"speckles": "three"}, "speckles='three': expected a whole number such as"),
        ({"note": 3}, "note=3: expected a str"),
        ({"note": b"x"}, "note=b'x': expected a str"),
        ({"tint": "blue"}, "tint='blue': expected none or sepia"),
    ],
)
def test_a_field_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        convert("a", "b", **options)


def test_a_field_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, WithSpeckles)
    found = given(parser.parse_args(["--speckles", "3"]), WithSpeckles)
    assert (found["speckles"], found["tint"]) == (3, "none")
    text = parser.format_help()
    assert "--speckles N" in text and "speckles in an image, see --codec" in text and "--tint {none,sepia}" in text


def test_a_field_is_recorded_in_the_manifest_if_it_is_not_the_default(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = provenance.describe(make_plan(photos, ConvertOptions()))["options"]
    monkeypatch.setattr(provenance, "ConvertOptions", WithSpeckles)
    plans = [make_plan(photos, WithSpeckles(speckles=speckles)) for speckles in (None, 3)]
    without, record = (provenance.describe(plan)["options"] for plan in plans)
    assert record == {**without, "speckles": 3}
    assert without == usual


def test_every_option_of_the_function_is_a_flag_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, RunOptions)
    flags = {action.dest for action in parser._actions} - {"help", "split"}
    keywords = {p.name for p in inspect.signature(lmdbloader.convert).parameters.values() if p.kind == p.KEYWORD_ONLY}
    assert keywords - flags == {"classes", "progress", "log"}
    assert flags <= keywords
