"""Draws the rooms of the package and who imports whom, and writes the table of rooms in CONTRIBUTING.md."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: written by scripts/draw_rooms.py -->\n", "<!-- end of rooms -->\n"
PICTURE = ROOT / "docs" / "concepts" / "pictures" / "rooms.svg"
ROW, COLUMN, NAMES, HEADER = 30, 30, 110, 96
STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1c1c1c; }
    .name { font-weight: 600; }
    .owns { fill: #555555; }
    .line { stroke: #d8d8d8; }
    .room { fill: #1c5d99; }
    .edge { fill: #d1495b; }
    .base { fill: #b8b8b8; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e8e8e8; } .owns { fill: #aaaaaa; } .line { stroke: #444444; }
      .room { fill: #6fa8dc; } .edge { fill: #f07f8c; } .base { fill: #666666; }
    }"""


def read_edges() -> dict[str, str]:
    """Return the table: room -> the rooms that it imports, highest first."""
    for node in ast.parse((ROOT / "tests" / "test_layers.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["EDGES"]:
            edges: dict[str, str] = ast.literal_eval(node.value)
            return edges
    raise SystemExit("tests/test_layers.py: expected an assignment to EDGES")


def read_purposes(rooms: list[str]) -> dict[str, str]:
    """Return the sentence with which each room begins."""
    texts = {room: (ROOT / "lmdbloader" / room / "__init__.py").read_text("utf-8") for room in rooms}
    return {room: (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0] for room, text in texts.items()}


def draw(edges: Mapping[str, str], purposes: Mapping[str, str]) -> str:
    """Return the SVG: a row for each room, with a dot in the column of every room that it imports.

    All dots are to the right of the diagonal, as a room imports only rooms below it.
    """
    rooms = list(edges)
    right = NAMES + COLUMN * len(rooms) + 16
    width, height = right + 8 * max(map(len, purposes.values())), HEADER + ROW * len(rooms) + 4
    parts = []
    for column, room in enumerate(rooms):
        at = f"{NAMES + COLUMN * column + COLUMN // 2 + 5} {HEADER - 8}"
        parts.append(f'<text transform="translate({at}) rotate(-90)">{escape(room)}</text>')
    for row, room in enumerate(rooms):
        middle, owns = HEADER + ROW * row + ROW // 2, escape(purposes[room].replace("`", ""))
        parts.append(f'<line class="line" x1="{NAMES}" y1="{middle}" x2="{right - 16}" y2="{middle}"/>')
        parts.append(f'<text class="name" x="{NAMES - 8}" y="{middle + 5}" text-anchor="end">{escape(room)}</text>')
        parts.append(f'<text class="owns" x="{right}" y="{middle + 5}">{owns}</text>')
        for column, other in enumerate(rooms):
            center = NAMES + COLUMN * column + COLUMN // 2
            if other == room:
                parts.append(f'<rect class="room" x="{center - 9}" y="{middle - 9}" width="18" height="18" rx="4"/>')
            elif other in edges[room].split():
                parts.append(f'<circle class="edge" cx="{center}" cy="{middle}" r="6"/>')
            elif other == "base":
                parts.append(f'<circle class="base" cx="{center}" cy="{middle}" r="4"/>')
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"  <title>The rooms of lmdbloader and their imports</title>\n  <style>{STYLE}\n  </style>\n{body}\n</svg>\n"
    )


def with_table(text: str, purposes: Mapping[str, str]) -> str:
    """Return the text of CONTRIBUTING.md with the table of rooms as they are."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(f"| `{room}` | {purpose} |\n" for room, purpose in purposes.items())
    return f"{before}{BEGIN}\n| room | what it owns |\n| --- | --- |\n{rows}\n{END}{after}"


def main() -> None:
    """Write the picture and the table."""
    edges = read_edges()
    purposes = read_purposes(list(edges))
    PICTURE.write_text(draw(edges, purposes), "utf-8")
    CONTRIBUTING.write_text(with_table(CONTRIBUTING.read_text("utf-8"), purposes), "utf-8")


if __name__ == "__main__":
    main()
