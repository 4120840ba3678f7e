"""The comparison of networks: what it trains, what it keeps, its table and its picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from loading_scripts import load_script
from PIL import Image

pytest.importorskip("skimage")
compare_sr = load_script("compare_sr")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_sr, "STEPS", {"srcnn915": 2, "espcn": 2})
    monkeypatch.setattr(compare_sr, "HELD_OUT", ("chelsea.png",))
    monkeypatch.setattr(compare_sr, "TRAINING_PHOTOGRAPHS", ("chelsea.png", "rocket.jpg", "coins.png"))
    monkeypatch.setattr(compare_sr, "TEST_DRAWS", 2)
    monkeypatch.setattr(compare_sr, "DRAWN", (("bicubic", 0), ("real_esrgan", 1)))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


def test_it_trains_what_is_missing_and_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, results = tmp_path / "work", tmp_path / "results.json"
    assert compare_sr.main([str(folder), "--results", str(results), "--seeds", "1"]) == 0
    assert len(list((folder / "train").iterdir())) == 2, "what is held out is not trained on"
    first = json.loads(results.read_text())["runs"]
    assert [(run["model"], run["pairs"]) for run in first] == [
        ("bicubic", ""), *((model, pairs) for model in ("srcnn915", "espcn") for pairs in ("bicubic", "real_esrgan"))
    ]  # fmt: skip
    picture = tmp_path / "picture.png"
    capsys.readouterr()
    assert compare_sr.main([str(folder), "--results", str(results), "--seeds", "2", "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    runs = json.loads(results.read_text())["runs"]
    assert runs[:5] == first, "what is there is not trained again"
    assert [run["seed"] for run in runs[5:]] == [1] * 4
    assert re.fullmatch(r"\| bicubic \|  \|  \| \d\d\.\d\d \| 0\.\d{3} \| \d\d\.\d\d \| 0\.\d{3} \|", lines[2])
    cell = r"-?\d+\.\d+ ± \d+\.\d+"
    assert sum(bool(re.search(rf"\| {cell} \| {cell} \|$", line)) for line in lines) == 4 + 4
    with Image.open(picture) as image:
        assert image.size == (4 * 288 + 5 * 8, 2 * (288 + 22 + 8) + 8)


def test_the_interval_is_students() -> None:
    """Of 1, 2 and 3 the standard deviation is 1, and t is 4.303 for two degrees of freedom."""
    assert compare_sr.interval([1.0, 2.0, 3.0], 2) == "2.00 ± 2.48"
    assert compare_sr.interval([1.5], 1) == "1.5"


def test_degraded_photographs_are_the_same_for_every_network_and_not_sharpened(tmp_path: Path) -> None:
    held_out = compare_sr.prepare(tmp_path)[1]
    first, second = (compare_sr.test_pairs(held_out) for _ in range(2))

    for (lr, hr), (again, _) in zip(first["real_esrgan"], second["real_esrgan"], strict=True):
        assert torch.equal(lr, again)
        assert torch.equal(hr, first["real_esrgan"][0][1])
    assert not torch.equal(first["real_esrgan"][0][0], first["real_esrgan"][1][0])
