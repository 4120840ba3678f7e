"""The notebooks as pages of the documentation site: their text, their code, and the outputs they are stored with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Lines of code that is shown, even if it only draws.
_SHORT = 6
_REPRODUCE = """
This page is the notebook `notebooks/{name}` of the repository, run from top to bottom on a machine with two cores. A
test runs it at every change.
"""


def page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures that this refers to by name."""
    pictures: dict[str, bytes] = {}
    parts = [_REPRODUCE.format(name=notebook.name)]
    is_first = True
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Links between notebooks are links between pages here.
            parts.append(re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source))
            continue
        # Blocks that open: the imports with what makes the images to work with, and code that only draws.
        draws = "plt.show()" in source and source.count("\n") > _SHORT
        code, shown = _fenced(source, "python"), []
        for output in cell["outputs"]:
            shown += _output(output, pictures, f"{notebook.stem}_{len(pictures) + 1}.png")
        if is_first:
            parts.append(_folded([code, *shown], "Imports and photographs"))
        else:
            parts += [_folded([code], "The code of the picture") if draws else code, *shown]
        is_first = False
    title = parts.index(next(part for part in parts if part.startswith("# ")))
    heading, _, rest = parts[title].partition("\n")
    parts[title] = rest
    return "\n\n".join([heading, *parts]), pictures


def _output(output: dict[str, Any], pictures: dict[str, bytes], name: str) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        yield f"![What the code above draws]({name})"
    else:
        # Long ones are scrolled (docs/stylesheets/extra.css).
        yield _fenced("".join(output.get("text", data.get("text/plain", ""))).rstrip(), "{.text .notebook-text}")


def _folded(parts: Sequence[str], title: str) -> str:
    text = "\n\n".join(parts)
    return f'<details class="example" markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def _fenced(text: str, language: str) -> str:
    return f"~~~~{language}\n{text}\n~~~~"
