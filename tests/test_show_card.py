"""Cards of datasets and loaders in Jupyter: correct pictures, escaped texts, and no exception for damaged data."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Browser
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from nursery import Nursery
from PIL import Image

import lmdbloader
from lmdbloader.show.card import MAX_NBYTES, Card, Shown, as_picture, thumbnail, tones
from lmdbloader.transforms import Normalize, RandomCrop, RandomDihedral, ToDtype

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'single' $x^2$ \x1b[2J \u202e"
TAGS = {"div", "b", "code", "img", "table", "thead", "tbody", "tr", "td", "th"}


class Page(HTMLParser):
    """The texts and pictures of a page, whose tags must be known and closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= {"style", "class", "alt", "title", "width", "height", "src"}
        if tag == "img":
            self.images.append(dict(attrs))
        else:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def pixels(self, number: int) -> np.ndarray:
        uri = self.images[number]["src"] or ""
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cards") / "pairs.lmdb"
    lmdbloader.convert(photos, path, patch_size=48, stride=48, scale=2, workers=1)
    return path


def page_of(shown: object) -> Page:
    html = shown._repr_html_()  # type: ignore[attr-defined]
    assert len(html) < 60_000
    return Page(html)


def test_a_dataset_shows_its_samples_its_fields_its_sizes_and_where_it_is(
    pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = lmdbloader.LMDBDataset(pairs)
    page = page_of(ds)
    assert f"LMDBDataset\n \n{pairs}\n{len(ds)} samples from 8 sources, " in page.text
    assert "lr\nimage\n24 x 24, RGB, 8-bit\n" in page.text
    assert re.search(r"hr\nimage\n48 x 48.*\n[\d.]+ [KM]iB \(\d+%\)\n(raw|lz4) \d+", page.text)
    assert [image["alt"] for image in page.images] == ["lr", "hr"] * 4
    # Both of a pair at one size; pixels that are so few are kept exactly.
    assert {(image["width"], image["height"]) for image in page.images} == {("96", "96")}
    numbers = [int(text.split()[0]) for text in page.texts if re.match(r"\d+ +\w+\.png", text)]
    assert len(numbers) == 4
    lr, _ = ds[numbers[1]]
    shown = page.pixels(2)
    assert (np.atleast_3d(shown).transpose(2, 0, 1) == lr.numpy()).all()
    monkeypatch.chdir(pairs.parent)
    assert "\npairs.lmdb\n" in page_of(ds).text


def test_a_view_shows_its_own_samples_fields_and_transforms(pairs: Path) -> None:
    ds = lmdbloader.LMDBDataset(pairs, fields=["hr"], transform=lambda sample: sample)
    view = ds.transformed([RandomCrop(8)]).scaled()[5:7]
    page = page_of(view)
    assert f"2 of {len(ds)} samples" in page.text
    assert "RandomCrop(size=8" in page.text and "ToDtype" in page.text and "function of its own" in page.text
    assert [image["alt"] for image in page.images] == ["hr", "hr"]
    assert "\nlr\n" not in page.text
    first = np.atleast_3d(page.pixels(0)).transpose(2, 0, 1).astype(int)
    assert abs(first - ds.reader.read_image("hr", 5)).mean() < 4 < abs(first - ds.reader.read_image("hr", 9)).mean()
    assert page_of(ds[:0]).images == []


def test_every_kind_of_field_shows_and_no_text_is_more_than_text(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 64, dtype=np.float32)
    samples = [
        {
            "deep": np.full((40, 60, 1), 1000 * (i + 1), np.uint16),
            "alpha": np.dstack([np.full((32, 32, 3), 200, np.uint8), np.full((32, 32, 1), 7, np.uint8)]),
            "ramp": np.tile(ramp * (i + 1) - 1, (32, 1)),
            "vector": ramp,
            "label": i,
            "score": float("nan"),
            "text": HOSTILE + "long " * 100,
            "note": {"<b>": HOSTILE},
            "blob": b"<i>",
        }
        for i in range(3)
    ]
    path = tmp_path / "<img src=x onerror=alert(1)> &amp;"
    lmdbloader.write(samples, path)
    page = page_of(lmdbloader.LMDBDataset(path))
    assert str(path) in page.text
    assert "<script>alert(1)</script>" in page.text and "\x1b" not in page.text
    assert [image["alt"] for image in page.images] == ["deep", "alpha", "ramp"] * 2
    assert set(np.unique(page.pixels(0))) == {int(1000 * 255 / 3000 + 0.5)}
    assert set(np.unique(page.pixels(3))) == {255}
    assert np.asarray(Image.fromarray(page.pixels(1)).convert("RGBA"))[0, 0].tolist() == [200, 200, 200, 7]
    assert "deep: uint16 values from 0 to 3,000 are shown as black to white." in page.text
    assert "ramp: float32 values from -1 to 2 are shown" in page.text


def test_a_dataset_without_pictures_or_samples_shows_its_fields(tmp_path: Path) -> None:
    lmdbloader.write(({"label": i, "text": "a"} for i in range(2)), tmp_path / "plain")
    ds = lmdbloader.LMDBDataset(tmp_path / "plain")
    page = page_of(ds)
    assert not page.images and "label\nint\n0 to 1" in page.text
    assert "label\nint64 (2,)\ntext\nlist of str" in page_of(lmdbloader.Loader(ds, 2, shuffle=True)).text


def test_damaged_samples_show_as_such(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "db"
    shutil.copytree(pairs, path)
    with open(path / "data.mdb", "r+b") as file:
        file.seek(20_000)
        file.write(b"\x55" * (path / "data.mdb").stat().st_size)
    ds = lmdbloader.LMDBDataset.__new__(lmdbloader.LMDBDataset)
    os.truncate(path / "data.mdb", (pairs / "data.mdb").stat().st_size)
    ds.__init__(path)  # type: ignore[misc]
    for shown in (ds, lmdbloader.Loader(ds, 8, shuffle=True, transforms=[RandomCrop(8)])):
        page = page_of(shown)
        assert "damaged: its checksum does not match" in page.text
        assert "48 x 48" in page.text or "uint8 (8, 3, 8, 8)" in page.text


def test_a_file_that_is_cut_short_while_it_is_mapped_does_not_end_the_process(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "db"
    shutil.copytree(pairs, path)
    ds = lmdbloader.LMDBDataset(path)
    loader = lmdbloader.Loader(ds, 8, shuffle=True)
    os.truncate(path / "data.mdb", 5000)
    for shown in (ds, loader):
        page = page_of(shown)
        assert "data.mdb was cut short" in page.text and not page.images


def test_a_loader_shows_its_next_samples(pairs: Path) -> None:
    ds = lmdbloader.LMDBDataset(pairs)
    loader = lmdbloader.Loader(
        ds, 5, shuffle=True, transforms=[RandomCrop(16), RandomDihedral(), _as_it_is], seed=3, num_threads=1
    )
    next(iter(loader))
    loader.set_epoch(4)
    page = page_of(loader)
    lr, hr = next(iter(loader))
    assert lr.shape == (5, 3, 8, 8)
    for i in range(4):
        for field, batch in enumerate((lr, hr)):
            shown = page.pixels(2 * i + field)
            assert (np.atleast_3d(shown).transpose(2, 0, 1) == batch[i].numpy()).all()
    assert f"{len(loader)} batches of 5 from {len(ds)} samples" in page.text
    assert "random, seed 3, next is epoch 4" in page.text
    assert "lr\nuint8 (5, 3, 8, 8)\nhr\nuint8 (5, 3, 16, 16)" in page.text
    assert "RandomDihedral()" in page.text and "_as_it_is" in page.text


def _as_it_is(batch: object) -> object:
    return batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_loader_of_floats_shows_them_over_their_whole_range(pairs: Path, dtype: torch.dtype) -> None:
    transforms = [ToDtype(dtype, True), Normalize((0.5,) * 3, (0.25,) * 3)]
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(pairs), 8, shuffle=True, transforms=transforms)
    state = loader.state_dict()
    page = page_of(loader)
    assert loader.state_dict() == state
    assert re.search(r"hr: float\d+ values from -[\d.]+ to [\d.]+ are shown as black to white", page.text)
    assert f"hr\n{str(dtype).removeprefix('torch.')} (8, 3, 48, 48)" in page.text
    assert max(page.pixels(i).max() for i in range(8)) > 250


@settings(max_examples=60)
@given(
    st.one_of(
        hnp.arrays(
            st.sampled_from(["uint8", "bool", "int16", "uint64", "float16", "float64", "complex64"]),
            hnp.array_shapes(min_dims=0, max_dims=4, max_side=40),
        ),
        hnp.arrays(np.float32, (3, 9, 7), elements=st.floats(width=32)),
    )
)
def test_any_array_is_a_picture_or_none(array: np.ndarray) -> None:
    picture = as_picture(array)
    if picture is None:
        return
    made = thumbnail("a", picture, tones([("a", picture)]))
    data = base64.b64decode(made.uri.partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == picture.shape[:0:-1]
    assert 0 < made.width <= 96 and 0 < made.height <= 96


@pytest.mark.parametrize("shape", [(1, 900, 40), (3, 2000, 3000), (4, 300, 300), (3, 97, 1)])
def test_pictures_of_noise_stay_small(shape: tuple[int, int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    made = thumbnail("a", noise, {})
    assert len(made.uri) < (6 if shape[0] == 4 else 1.5) * MAX_NBYTES
    assert max(made.width, made.height) <= 96


def test_a_card_of_a_large_dataset_stays_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 400, 400), np.uint8)
    long = HOSTILE * 1000
    rows = [(long, long)] * 500
    html = Card(long, long, long, [Shown([(long, noise)] * 2, long)] * 4, [(long, long)] * 3, ("a",), rows).to_html()
    assert len(html) < 120_000
    assert "480 more" in Page(html).text


def test_reading_without_cards_does_not_import_them(nursery: Nursery, tmp_path: Path) -> None:
    loaded = "[m for m in sys.modules if m.startswith('lmdbloader.show') or m == 'lmdbloader.loader.card']"
    program = nursery.start(f"import sys; print({loaded})", tmp_path / "p")
    assert program.end() == 0 and program.out == "[]\n"


@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_picture_in_the_colours_of_the_page(
    pairs: Path, browser: Browser, tmp_path: Path, dark: bool
) -> None:
    ds = lmdbloader.LMDBDataset(pairs)
    html = ds._repr_html_() + lmdbloader.Loader(ds, 8, shuffle=True, transforms=[RandomCrop(16)])._repr_html_()
    style = "<meta name=color-scheme content='light dark'><style>body { color: light-dark(#123, #abc) }</style>"
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{style}<body>{html}", "utf-8")
    page = browser.open(tmp_path / "page.html", width=800, dark=dark)
    widths = "[...document.images].map(i => i.complete && i.naturalWidth > 0 && i.getBoundingClientRect().width)"
    assert page.evaluate(widths) == [98] * 16
    colors = page.evaluate("[...document.querySelectorAll('td, code')].map(e => getComputedStyle(e).color)")
    assert set(colors) == {"rgb(170, 187, 204)" if dark else "rgb(17, 34, 51)"}
    assert page.evaluate("document.documentElement.scrollWidth") == 800
    assert page.errors == [] and len([url for url in page.requests if not url.startswith("data:")]) == 1
    page.close()
