"""MkDocs hooks: what pages for a forge need to become pages of a site.

Pages are plain Markdown that a forge shows as it stands. The site adds the words of `<!-- search: ... -->` to its
search, leads links out of docs/ to where these files are, and puts drawings into the pages.
"""

from __future__ import annotations

import configparser
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    """Link to the repository if setup.cfg names it (MkDocs calls this once it has read mkdocs.yml)."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg", "utf-8")
    if url := metadata.get("repository", "url", fallback="").strip():
        config.repo_url, config.repo_name = url, "lmdbloader"
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages of the notebooks (MkDocs calls this once it has listed docs/)."""
    from mkdocs.structure.files import File

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))

    from scripts.docs_notebooks import page

    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Take a page's words for the search, and mend its links (MkDocs calls this for each page)."""
    if found := re.match(r"<!-- search: (.*?) -->", markdown):
        page.meta["tags"] = [word.strip() for word in found[1].split(",")]
    return _LINK.sub(lambda link: _mended(link, posixpath.dirname(page.file.src_uri), config.repo_url or ""), markdown)


def _mended(link: re.Match[str], folder: str, repository: str) -> str:
    """Return a link out of docs/ as one to a notebook's page or to the repository; without a repository, its text."""
    path = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
    if path.startswith("docs/"):
        return link[0]
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        page = posixpath.relpath(path.replace(".ipynb", ".md"), folder or ".")
        return f"[{link['text']}]({page})"
    if repository:
        return f"[{link['text']}]({repository.rstrip('/')}/blob/HEAD/{path}{link['anchor'] or ''})"
    return str(link["text"])


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Put drawings into the page, where they take its colors in light and dark (MkDocs calls this for each page)."""

    def inlined(found: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found["source"]))
        drawing = (Path(config.docs_dir) / source).read_text("utf-8")
        labeled = drawing.replace("<svg ", f'<svg aria-label="{found["text"]}" ', 1)
        return f'<div class="drawing-frame">{labeled}</div>'

    return re.sub(r'<img alt="(?P<text>[^"]*)" src="(?P<source>[^":]+\.svg)" ?/?>', inlined, html)
