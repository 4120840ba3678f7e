"""The browser reports a page's errors, and nothing if there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser


def write_page(folder: Path, body: str) -> Path:
    page = folder / "page with a space.html"
    page.write_text(f"<!doctype html><html lang=en><meta charset=utf-8><title>A page</title>{body}", "utf-8")
    return page


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("<script>console.error('planted')</script>", "planted"),
        ("<script>console.warn('planted')</script>", "planted"),
        ("<script>absent()</script>", "absent is not defined"),
        ("<script>setTimeout(() => { throw new Error('late') })</script>", "late"),
        ("<script>Promise.reject(new Error('unheard'))</script>", "unheard"),
        ("<img src=absent.png alt=''>", "ERR_FILE_NOT_FOUND"),
        ("<link rel=stylesheet href=https://example.invalid/a.css>", "request failed"),
        (
            "<style>@font-face { font-family: f; src: url(https://example.invalid/f) } * { font-family: f }</style>a",
            "f",
        ),
        ("<svg><path d='M 0 nonsense'/></svg>", "Expected number"),
        (
            "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><script>alert()</script>",
            "Content Security Policy",
        ),
    ],
)
def test_a_planted_fault_is_reported(browser: Browser, tmp_path: Path, fault: str, told: str) -> None:
    page = browser.open(write_page(tmp_path, fault))
    assert told in "\n".join(page.errors)
    page.close()
