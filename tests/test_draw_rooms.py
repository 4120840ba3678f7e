"""The picture of the rooms in CONTRIBUTING is drawn from the table of edges as it is now."""

from __future__ import annotations

from types import ModuleType

import pytest
from loading_scripts import load_script
from test_layers import EDGES


@pytest.fixture(scope="module")
def draw_rooms() -> ModuleType:
    return load_script("draw_rooms")


def test_the_picture_is_current(draw_rooms: ModuleType) -> None:
    edges = draw_rooms.read_edges()
    drawn = draw_rooms.draw(edges, draw_rooms.read_purposes(list(edges)))
    stored = draw_rooms.PICTURE.read_text("utf-8")
    assert stored == drawn, "the rooms changed: run `python scripts/draw_rooms.py` and commit the picture"


def test_the_table_is_current(draw_rooms: ModuleType) -> None:
    text = draw_rooms.CONTRIBUTING.read_text("utf-8")
    assert draw_rooms.with_table(text, draw_rooms.read_purposes(list(EDGES))) == text, (
        "run python scripts/draw_rooms.py"
    )
    assert all(f"| `{room}` | " in text for room in EDGES)


def test_every_edge_is_a_dot(draw_rooms: ModuleType) -> None:
    assert draw_rooms.read_edges() == EDGES
    drawn = draw_rooms.draw(
        {"a": "b c", "b": "", "c": "", "base": ""}, dict.fromkeys(("a", "b", "c", "base"), "Is < a `room`.")
    )
    assert drawn.count('class="edge"') == 2
    assert drawn.count('class="room"') == 4
    assert "Is &lt; a room." in drawn and "`" not in drawn
