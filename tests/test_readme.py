"""README's first screen: its chart, badges and picture are those of stored results."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import demos.superres
import pytest
from loading_scripts import load_script
from PIL import Image

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture
def draw() -> ModuleType:
    return load_script("draw_readme")


# The chart


def test_the_chart_and_the_badges_are_current(draw: ModuleType, tmp_path: Path) -> None:
    assert draw.main(["--out", str(tmp_path)]) == 0
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    stored = {path.name: path.read_text("utf-8") for path in PICTURES.glob("*.svg")}
    assert stored == drawn, "run `python scripts/draw_readme.py` and commit docs/pictures"


# The picture


def test_the_picture_is_made_by_training_from_a_dataset(
    draw: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demos.superres, "TRAINING_PHOTOGRAPHS", ("coins.png",))
    draw.draw_picture(tmp_path / "a.png", steps=1)
    with Image.open(tmp_path / "a.png") as made, Image.open(PICTURES / draw.PICTURE) as stored:
        assert made.size == stored.size
        side = draw.CROP[1] * draw.ZOOM
        original = (2 * (side + draw.GAP), 0, made.width, made.height)
        assert made.crop(original).tobytes() == stored.crop(original).tobytes()


# What stands around it


def metadata_with(url: str, tmp_path: Path) -> dict[str, Any]:
    """Return the metadata that setup.py passes on when setup.cfg names this URL."""
    shutil.copyfile(ROOT / "setup.py", tmp_path / "setup.py")
    shutil.copyfile(ROOT / "README.md", tmp_path / "README.md")
    text = (ROOT / "setup.cfg").read_text("utf-8")
    (tmp_path / "setup.cfg").write_text(re.sub(r"(?m)^url =.*$", f"url = {url}", text), "utf-8")
    code = "import json, setuptools; told = {}; setuptools.setup = told.update; import setup; "
    code += "print(json.dumps({k: v for k, v in told.items() if k not in ('cmdclass', 'distclass')}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_with_a_repository_every_link_of_the_long_description_is_absolute(tmp_path: Path) -> None:
    url = "https://git.example/who/lmdbloader"
    told = metadata_with(url + "/", tmp_path)
    assert told["url"] == url and told["project_urls"]["Issues"] == f"{url}/issues"
    was, now = (re.findall(r"\]\(([^)\s]+)\)", text) for text in (README, told["long_description"]))
    assert len(was) == len(now) > 40
    for old, new in zip(was, now, strict=True):
        way = "raw" if old.endswith((".svg", ".png")) else "blob"
        assert new == (old if old.startswith(("#", "https:")) else f"{url}/{way}/HEAD/{old}")


def test_the_citation_is_true() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    told = dict(re.findall(r"(?m)^([\w-]+): (.*)$", text))
    assert told["cff-version"] == "1.2.0" and told["title"] == "lmdbloader"
    assert told["version"] == lmdbloader.__version__
    assert told["license"] == config["metadata"]["license_expression"].partition(" AND ")[0]
    assert f"  - name: {config['metadata']['author']}" in text
    assert told.get("repository-code", "") == config["repository"]["url"], "add or remove the line repository-code"
