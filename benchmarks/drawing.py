"""Charts as drawings for the documentation: their colours are variables, light by themselves, or dark."""

from __future__ import annotations

from lmdbloader.lab.reporting.canvas import Chart
from lmdbloader.lab.reporting.style import colours
from lmdbloader.lab.reporting.svg import inline

# In a file of its own a drawing follows the system; the documentation puts it into pages, which have a switch.
_DRAWING = """<style>
.drawing { font: 14px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; LIGHT }
@media (prefers-color-scheme: dark) { svg.drawing:root { DARK } }
[data-md-color-scheme="slate"] .drawing { DARK }
</style>"""


def drawing(chart: Chart, name: str, *, title: str, description: str) -> str:
    """Return a chart as an SVG file.

    Args:
        chart: The chart, in the colours of the reports.
        name: Unique in its page: begins every id.
        title: Its title.
        description: Its content, for screen readers.
    """
    text = inline(chart, name, title=title, description=description)
    used = {name: look for name, look in colours().items() if f"var(--{name})" in text}
    light = " ".join(f"--{name}: {look.light};" for name, look in used.items())
    dark = " ".join(f"--{name}: {look.dark};" for name, look in used.items())
    style = _DRAWING.replace("LIGHT", light).replace("DARK", dark)
    begin, rest = text.split(">", 1)
    begin = begin.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="drawing" ', 1)
    return f"{begin}>\n{style}\n{rest}\n"
