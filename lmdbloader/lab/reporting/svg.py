"""A figure as SVG for a page: in the page's colours, with ids of its own, named and described in words."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from lmdbloader.lab.reporting.style import colours, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
# "600 12px 'DejaVu Sans', sans-serif", as some releases of matplotlib write a font.
_FONT = re.compile(r"(?:(?P<weight>bold|[1-9]00) )?(?:[a-z-]+ )*(?P<size>[0-9.]+px)")
_VARIABLES = {look.light: name for name, look in colours().items()}


def file_text(figure: Figure) -> str:
    """Return a figure as an SVG file, text as text; the same figure gives the same text."""
    out = io.StringIO()
    with settings():
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    return out.getvalue()


def inline(figure: Figure, name: str, *, title: str, description: str) -> str:
    """Return a figure as an <svg> element for an HTML page whose CSS has the variables of `style.variables`.

    Args:
        figure: The figure; its paper becomes transparent.
        name: Unique in the page, letters, digits and hyphens: begins every id.
        title: Its title.
        description: Its content, for screen readers.
    """
    was = figure.patch.get_alpha()
    figure.patch.set_alpha(0.0)
    try:
        root = ElementTree.fromstring(file_text(figure))
    finally:
        figure.patch.set_alpha(was)
    for parent in list(root.iter()):
        for child in [*parent.findall(f"{{{_SVG}}}metadata"), *parent.findall(f"{{{_SVG}}}style")]:
            parent.remove(child)
    known = {found for element in root.iter() for found in _references(element)}
    for element in root.iter():
        _adapt(element, name, known)
    labels = f"{name}-title", f"{name}-description"
    size = {"viewBox": root.attrib["viewBox"]}
    root.attrib = {**size, "role": "img", "aria-labelledby": labels[0], "aria-describedby": labels[1]}
    for i, (tag, text, label) in enumerate(zip(("title", "desc"), (title, description), labels, strict=True)):
        element = ElementTree.Element(tag, {"id": label})
        element.text = text
        root.insert(i, element)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _references(element: ElementTree.Element) -> list[str]:
    """Return the ids that an element refers to."""
    values = (*element.attrib.values(), element.get(f"{{{_XLINK}}}href", "").replace("#", "url(#", 1) + ")")
    return [found for value in values for found in _REFERENCE.findall(value)]


def _adapt(element: ElementTree.Element, name: str, known: set[str]) -> None:
    """Bring one element of matplotlib's SVG into an HTML page, where only ids that something refers to are kept."""
    # HTML knows both without their namespace.
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    target = element.attrib.pop(f"{{{_XLINK}}}href", None)
    if element.get("id") not in known:
        element.attrib.pop("id", None)
    for key in ("fill", "stroke"):
        # Only in a style can a colour be a variable everywhere.
        if key in element.attrib:
            element.set("style", f"{key}: {element.attrib.pop(key)}; {element.get('style', '')}".rstrip("; "))
    for key, value in element.attrib.items():
        element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    if target is not None:
        element.set("href", f"#{name}-{target.removeprefix('#')}")
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    if "style" in element.attrib:
        element.set("style", _style(element.attrib["style"]))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    element.text, element.tail = (text if text and text.strip() else None for text in (element.text, element.tail))


def _style(text: str) -> str:
    """Return the style of an element in the page's colours, and text in the page's own type face.

    >>> _style("font: 700 12px 'DejaVu Sans', sans-serif; fill: #1d2126")
    'font-weight: 700; font-size: 12px; fill: var(--frame-ink)'
    """
    kept = []
    for declaration in text.split("; "):
        key, _, value = declaration.partition(": ")
        if key == "font" and (found := _FONT.match(value)):
            kept += [f"font-weight: {found['weight']}"] * bool(found["weight"]) + [f"font-size: {found['size']}"]
        elif key != "font-family":
            kept.append(f"{key}: {_COLOUR.sub(lambda found: _variable(found[0]), value)}")
    return "; ".join(kept)


def _variable(colour: str) -> str:
    """Return a colour as the page's variable of its meaning."""
    return f"var(--{_VARIABLES[colour]})" if colour in _VARIABLES else colour
