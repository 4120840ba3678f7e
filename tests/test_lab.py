"""The names of `lmdbloader.lab`: each is reachable, and has a section in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmdbloader import lab

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


@pytest.mark.parametrize("name", lab.__all__)
def test_every_name_of_the_lab_is_reachable_and_in_the_reference(name: str) -> None:
    assert getattr(lab, name).__name__ == name
    pages = "\n".join(page.read_text("utf-8") for page in REFERENCE.glob("*.md"))
    assert re.search(rf"^<!-- generated: lmdbloader\.lab\.{name} -->$", pages, re.MULTILINE)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Setting'"):
        _ = lab.Setting  # type: ignore[attr-defined]
