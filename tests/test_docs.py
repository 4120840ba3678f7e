"""The documentation: readable as plain Markdown and as a site, its reference current, its links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import Browser
from loading_scripts import load_script
from site_search import FIRST, TERMS

import lmdbloader
from lmdbloader.cli import make_parser

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
# Public modules, each with its own __all__.
MODULES = ("errors", "fields", "lab", "ray", "superres", "superres.degradations", "transforms")


def names_in_documents() -> Iterator[str]:
    """Yield the names that documents import from modules of ours, such as lmdbloader.errors.CorruptError."""
    for document in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = document.read_text("utf-8")
        for module, names in re.findall(r"^[ \t]*from (lmdbloader(?:\.\w+)*) import ([^#(\n]+)", text, re.MULTILINE):
            yield from (f"{module}.{name.partition(' as ')[0].strip()}" for name in names.split(","))


def public_names() -> list[str]:
    """Return every public name: of the package, of its public modules, and the names that documents import."""
    found = {f"lmdbloader.{name}" for name in lmdbloader.__all__ if name != "__version__"} | set(names_in_documents())
    modules = {f"lmdbloader.{name}" for name in MODULES}
    found |= {f"{name}.{member}" for name in modules for member in importlib.import_module(name).__all__}
    return sorted(found - modules - {"lmdbloader.integrations"})


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("griffe", reason="griffelib (the extra `docs`) is not installed")
    return load_script("make_reference")


@pytest.fixture(scope="module")
def package(reference: ModuleType) -> Any:
    """Return the package as griffe, from which the reference is made, reads it."""
    return reference.Package()


def sections(reference: ModuleType) -> set[str]:
    """Return the names that have a section in the reference."""
    return {name for page in reference.pages_of() for name in reference.sections_of(page.read_text("utf-8"))}


def test_every_public_name_has_a_section_in_the_reference(reference: ModuleType) -> None:
    missing = sorted({*public_names()} - sections(reference))
    assert missing == [], "add `<!-- generated: lmdbloader.Loader -->` and `<!-- end -->` to a page of docs/reference/"


def test_every_integration_has_a_section_in_the_reference(reference: ModuleType) -> None:
    found = {name.split(".")[2] for name in sections(reference) if name.startswith("lmdbloader.integrations.")}
    assert found == {*lmdbloader.integrations.__all__}


def test_the_reference_is_current(reference: ModuleType, package: Any) -> None:
    pages = reference.pages_of()
    stale = [page.name for page in pages if reference.made(page, package, pages) != page.read_text("utf-8")]
    assert stale == [], "run `python scripts/make_reference.py` and commit docs/reference"


# Docstrings


def unexplained(obj: Any) -> Iterator[str]:
    """Yield the gaps in the docstrings of a function, or of a class and its public methods."""
    if obj.is_class:
        yield from unexplained_class(obj)
    elif obj.is_function:
        yield from unexplained_function(obj, obj.docstring.value if obj.docstring else "")
    elif not obj.docstring:
        yield f"{obj.path}: no docstring; put a string below the value"


def unexplained_class(obj: Any) -> Iterator[str]:
    """Yield the gaps of a class: a base may explain its parameters, or a method of the same name."""
    line = [obj, *(base for base in obj.mro() if base.path.startswith("lmdbloader"))]
    about = "\n".join(part.docstring.value for part in line if part.docstring)
    if not obj.docstring:
        yield f"{obj.path}: no docstring"
    init = obj.members.get("__init__")
    if init is not None and not init.is_alias:
        yield from unexplained_function(init, about + (init.docstring.value if init.docstring else ""))
    for name, member in obj.members.items():
        if name.startswith("_") or member.is_alias or not (member.is_function or "property" in member.labels):
            continue
        of_bases = [base.members[name] for base in line[1:] if name in base.members]
        said = [found.docstring.value for found in (member, *of_bases) if found.docstring]
        # The arguments of a callback's hooks are explained by the package that calls them.
        if member.is_function and not name.startswith("on_"):
            yield from unexplained_function(member, "\n".join(said))
        elif not said:
            yield f"{member.path}: no docstring"


def unexplained_function(function: Any, text: str) -> Iterator[str]:
    """Yield the parameters, errors and result that a docstring does not describe."""
    if not text:
        yield f"{function.path}: no docstring"
        return
    for parameter in function.parameters:
        name = parameter.name
        if name not in ("self", "cls") and not re.search(rf"\b{re.escape(name)}\b", text):
            yield f"{function.path}: `{name}` is in none of its Args: (or Attributes:), nor in its sentence"
    for name in sorted(raised_by(function)):
        if name not in text:
            yield f"{function.path}: raises {name}, which is not in its Raises:"
    returns = str(function.returns or "None")
    silent = not re.match(r"(Return|Yield|Iterate)", text) and not re.search(r"^(Returns|Yields):", text, re.MULTILINE)
    if returns not in ("None", "NoReturn") and function.name != "__init__" and silent:
        yield f"{function.path}: returns {returns}; begin with `Return ...`, or add a section Returns:"


def raised_by(function: Any) -> set[str]:
    """Return the names of the errors that leave a function's own lines."""
    tree = ast.parse(function.source)
    caught = {
        id(raised)
        for attempt in ast.walk(tree)
        if isinstance(attempt, ast.Try)
        for line in attempt.body
        for raised in ast.walk(line)
        if any(name_of(raised) in ast.unparse(handler.type or attempt) for handler in attempt.handlers)
    }
    return {name_of(node) for node in ast.walk(tree) if id(node) not in caught} - {"", "NotImplementedError"}


def name_of(node: ast.AST) -> str:
    """Return the class that a `raise Error(...)` names; an empty string for anything else."""
    called = node.exc.func if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else None
    return called.id if isinstance(called, ast.Name) and called.id[0].isupper() else ""


def test_every_public_name_explains_itself(package: Any) -> None:
    assert [line for name in public_names() for line in unexplained(package.find(name))] == []


def test_the_reference_shows_the_options_of_a_conversion(package: Any) -> None:
    convert = package.find("lmdbloader.convert")
    assert {"patch_size", "write_mode", "on_error"} <= {parameter.name for parameter in convert.parameters}
    assert "options" not in convert.parameters
    assert convert.parameters["patch_size"].default == "None"
    assert "patch_size:" in convert.docstring.value


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site; a warning is an error, as in `make docs`."""
    for package in ("mkdocs", "material"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install 'lmdbloader[docs]'): the site is not built")
    folder = tmp_path_factory.mktemp("site")
    child = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    return folder


class Elements(HTMLParser):
    """The links of a page, the resources that it loads, and its anchors."""

    LOADS = ("script", "img", "iframe", "source", "video", "audio", "embed", "object")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "canonical" not in values.get("rel", ""):
            self.loads.append(values.get("href", ""))
        elif tag in self.LOADS:
            self.loads += [values[name] for name in ("src", "data", "poster") if name in values]
        if tag == "img" and not values.get("alt"):
            self.without_text.append(values.get("src", "?"))


def leads_nowhere(page: Path, links: list[str], places: dict[Path, set[str]]) -> Iterator[str]:
    """Yield the links of a page whose file, or whose anchor in that file, does not exist."""
    for link in links:
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        file = (page.parent / unquote(address.path)).resolve() if address.path else page
        if not file.exists() or (address.fragment and unquote(address.fragment) not in places.get(file, set())):
            yield f"{page.name}: {link}"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Elements]:
    """Return every page of the site."""
    found = {path.resolve(): Elements(path.read_text("utf-8")) for path in site.rglob("*.html")}
    del found[site.resolve() / "404.html"]
    assert len(found) > 10
    return found


def test_every_link_of_the_site_leads_somewhere(pages: dict[Path, Elements]) -> None:
    places = {path: elements.places for path, elements in pages.items()}
    assert [bad for path, elements in pages.items() for bad in leads_nowhere(path, elements.links, places)] == []


def test_the_site_asks_no_other_host_for_anything(site: Path, pages: dict[Path, Elements]) -> None:
    for path, elements in pages.items():
        assert elements.loads
        assert [address for address in elements.loads if urlsplit(address).netloc] == [], path.name
    for path in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", path.read_text("utf-8"))
        assert found == [], path.name


def test_every_picture_has_a_text_for_those_who_do_not_see_it(pages: dict[Path, Elements]) -> None:
    assert {path.name: elements.without_text for path, elements in pages.items() if elements.without_text} == {}


def test_the_command_line_has_a_section_for_every_command(site: Path, pages: dict[Path, Elements]) -> None:
    places = pages[site.resolve() / "reference" / "cli.html"].places
    commands = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert set(commands or ()) <= places


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_open_from_disk_in_a_browser(site: Path, browser: Browser, dark: bool) -> None:
    for name in ("index.html", "how-to/load.html", "reference/loading.html"):
        for width in (1280, 400):
            page = browser.open(site / name, width=width, dark=dark)
            assert page.errors == []
            assert [address for address in page.requests if urlsplit(address).scheme not in ("file", "data")] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than its window"
            page.close()


# Types each term into the search field, as a person does, and returns the first links.
SEARCH_ALL = """(async terms => {
    const field = document.querySelector("[data-md-component=search-query]");
    const items = () => [...document.querySelectorAll(".md-search-result__item")];
    const found = () => items().map(item => item.querySelector("a").href);
    const type = async (text, isDone) => {
        do {
            field.value = text;
            field.dispatchEvent(new Event("keyup", { bubbles: true }));
            await new Promise(done => setTimeout(done, 5));
        } while (!isDone());
    };
    field.focus();
    const results = [];
    for (const term of terms) {
        await type("", () => !found().length);
        await type(term, () => found().length);
        results.push(found().slice(0, %d));
    }
    return results;
})"""


def test_what_people_look_for_is_among_the_first_results(site: Path, browser: Browser) -> None:
    page = browser.open(site / "reference" / "loading.html")
    results = page.evaluate(f"{SEARCH_ALL % FIRST}({json.dumps([*TERMS])})")
    base = site.resolve().as_uri() + "/"
    missing = {}
    for (term, expected), links in zip(TERMS.items(), results, strict=True):
        pages = [re.sub(r"\.html.*", "", link.removeprefix(base)) for link in links]
        if expected not in pages:
            missing[term] = f"expected {expected}, found {pages}"
    assert missing == {}, "add the words to these pages, or to `tags` at their heads"
    assert page.errors == []
    page.close()


# Plain Markdown, as a forge shows it

PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *PAGES]
MOST_PAGES, MOST_WORDS = 45, 60_000
# What only a site shows: directives, admonitions, tabs, attributes, anchors, definition lists, Markdown in HTML.
OF_A_SITE = re.compile(r"^(?:::: |!!! |\?\?\?\+? |=== |: {3}\S)|\{[:.#][^}]*\}|\]\(\)|markdown=|^---$", re.MULTILINE)


def prose(text: str) -> str:
    """Return a document without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ *(```|~~~).*?^ *\1$", "", text, flags=re.MULTILINE | re.DOTALL))


def markdown_places(text: str) -> list[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_is_plain_markdown_whose_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    targets = [*DOCUMENTS, *(ROOT / "benchmarks" / "results").rglob("*.md")]
    places = {path.resolve(): {*markdown_places(path.read_text("utf-8"))} for path in targets}
    links = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    assert list(leads_nowhere(document, links, places)) == []
    assert [found[0] for found in OF_A_SITE.finditer(prose(text))] == []
    headings = markdown_places(text)
    if document in PAGES:
        assert sorted({place for place in headings if headings.count(place) > 1}) == []


def test_the_documentation_is_small(reference: ModuleType) -> None:
    """Count the pages, and the words that are not made from docstrings and parsers; the rules of tables are none."""
    texts = (reference.MARKER.sub("", page.read_text("utf-8")) for page in PAGES)
    words = sum(bool(re.search(r"\w", word)) for text in texts for word in text.split())
    assert len(PAGES) <= MOST_PAGES and words <= MOST_WORDS, f"found {len(PAGES)} pages and {words:,} words"
