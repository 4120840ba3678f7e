"""The pictures of recipes show what the page's code makes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from loading_scripts import load_script
from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "how-to"


def test_the_pictures_show_what_the_page_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load_script("draw_recipes").main(["--out", str(tmp_path)])
    names = re.findall(r"\]\(pictures/(.+\.jpg)\)", (FOLDER / "self-supervision.md").read_text("utf-8"))
    assert sorted(names) == sorted(path.name for path in tmp_path.glob("*.jpg"))
    for name in names:
        drawn, stored = (
            np.asarray(Image.open(folder / name), np.float64) for folder in (tmp_path, FOLDER / "pictures")
        )
        assert drawn.shape == stored.shape
        # A resampling of another version may round otherwise.
        assert np.abs(drawn - stored).mean() < 1, "run `python scripts/draw_recipes.py` and commit the pictures"
    assert "pictures in" in capsys.readouterr().out
