"""Tests of Loaders of image files as they are: batches as after a conversion, a cache that is never stale, errors."""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.conversion import file_index, file_reader
from lmdbloader.errors import CorruptError, FormatError, ImageError, OptionError, SourceError
from lmdbloader.images.png import encode_png
from lmdbloader.loader.views import view_of
from lmdbloader.transforms import ColorJitter, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, ToDtype, Transform

RNG = np.random.default_rng(0)


def picture(height: int, width: int) -> Image.Image:
    """Return a smooth picture with some noise."""
    small = Image.fromarray(RNG.integers(0, 256, (6, 6, 3), np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def exif(orientation: int) -> bytes:
    """Return an EXIF block."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of classes with files of many kinds, and the dataset that a conversion makes of it."""
    folder = tmp_path_factory.mktemp("files") / "photos"
    for name in ("cat", "cat-2", "dog/young"):
        (folder / name).mkdir(parents=True)
    for number in range(1, 9):
        side = 90 + 7 * number
        picture(side, 130).save(folder / "cat" / f"turned{number}.jpg", exif=exif(number), quality=90)
        picture(side, 130).save(folder / "cat" / f"png{number}.png", exif=exif(number))
        picture(130, side).save(folder / "cat-2" / f"plain{number}.JPG", subsampling=number % 3)
    picture(120, 160).save(folder / "dog" / "progressive.jpg", progressive=True)
    picture(120, 160).save(folder / "dog" / "turned.jpg", progressive=True, exif=exif(6))
    picture(120, 160).convert("L").save(folder / "dog" / "grey.jpg")
    picture(120, 160).convert("CMYK").save(folder / "dog" / "inks.jpg")
    picture(120, 160).convert("L").save(folder / "dog" / "grey.png")
    picture(120, 160).convert("P").save(folder / "dog" / "palette.png")
    picture(1300, 1600).save(folder / "dog" / "young" / "large.png", compress_level=1)
    picture(120, 160).save(folder / "dog" / "young" / "picture.bmp")
    (folder / "dog" / "notes.txt").write_text("not an image")
    (folder / "bird").symlink_to(folder / "dog" / "young")
    lmdbloader.convert(folder, folder.parent / "photos.lmdb", workers=1, progress=False)
    return folder, folder.parent / "photos.lmdb"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of twelve small photographs."""
    place = tmp_path / "photos"
    place.mkdir()
    for number in range(12):
        picture(60, 80).save(place / f"{number:02d}.jpg")
    return place


class _ImageFolder:
    """What a Loader sees of torchvision's ImageFolder."""

    def __init__(self, root: Path, **functions: Any) -> None:
        self.root, self.loader = str(root), functions.pop("loader", _default_loader)
        self.transform = self.target_transform = None
        vars(self).update(functions)
        self.classes = sorted(path.name for path in root.iterdir())
        paths = [
            os.path.join(top, name)
            for each in self.classes
            for top, _, names in sorted(os.walk(root / each, followlinks=True))
            for name in sorted(names)
            if not name.endswith(".txt")
        ]
        self.samples = [(path, self.classes.index(Path(path).relative_to(root).parts[0])) for path in paths]

    def __getitem__(self, number: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.samples)


def _default_loader(path: str) -> Any:
    raise NotImplementedError


_ImageFolder.__name__ = "ImageFolder"
_ImageFolder.__module__ = _default_loader.__module__ = "torchvision.datasets.folder"
TRANSFORMS: list[list[Transform]] = [
    [RandomResizedCrop(48), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True)],
    [RandomResizedCrop((40, 64), scale=(0.9, 1)), ColorJitter(0.4, 0.4, 0.4)],
    [RandomCrop(80, pad_if_needed=True)],
]


def assert_same(one: Loader, other: Loader, epochs: int = 2) -> None:
    """Assert that two Loaders give the same batches, bit for bit."""
    for _ in range(epochs):
        count = 0
        for a, b in zip(one, other, strict=True):
            assert type(a)._fields == type(b)._fields
            assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))
            count += 1
        assert count == len(one)


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_batches_are_those_of_the_converted_dataset(places: tuple[Path, Path], transforms: list[Transform]) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": transforms}
    for batch_size, num_threads in ((4, 2), (3, 1), (200, 2)):
        loaders = [Loader(place, batch_size, num_threads=num_threads, **options) for place in places]
        assert loaders[0].dataset.classes == loaders[1].dataset.classes == ("bird", "cat", "cat-2", "dog")
        assert loaders[0].dataset.targets == loaders[1].dataset.targets
        assert_same(*loaders)


def test_samples_and_whole_images_are_those_of_the_converted_dataset(places: tuple[Path, Path]) -> None:
    files, converted = (Loader(place, 1, shuffle=False) for place in places)
    assert_same(files, converted, epochs=1)
    for one, other in zip(files.dataset, converted.dataset, strict=True):
        assert torch.equal(one.image, other.image) and one.label == other.label
    window = {"top": 3, "left": 5, "height": 20, "width": 30}
    assert torch.equal(files.dataset.crop(4, **window), converted.dataset.crop(4, **window))
    assert files.dataset.table.column("source") == converted.dataset.table.column("source")


def test_an_image_folder_gives_the_same_batches(places: tuple[Path, Path]) -> None:
    given = _ImageFolder(places[0])
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": TRANSFORMS[0]}
    assert_same(Loader(given, 4, **options), Loader(places[1], 4, **options))
    numbers = [30, 2, 17, 8]
    converted = LMDBDataset(places[1]).select(numbers)
    assert_same(Loader(Subset(given, numbers), 2, **options), Loader(converted, 2, **options))


def test_images_of_16_bits_in_no_class(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for number in range(6):
        image = RNG.integers(0, 2**16, (40, 50, 1 + 2 * (number % 2)), np.uint16)
        (tmp_path / "scans" / f"{number}.png").write_bytes(encode_png(image))
    lmdbloader.convert(tmp_path / "scans", tmp_path / "scans.lmdb", workers=1, progress=False)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": [RandomCrop(32)]}
    assert_same(*(Loader(tmp_path / name, 3, **options) for name in ("scans", "scans.lmdb")))


def test_shards_and_states(places: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": TRANSFORMS[0], "shard": (1, 2)}
    loaders = [Loader(place, 4, **options) for place in places]
    assert_same(*loaders)
    for loader in loaders:
        next(iterator := iter(loader))
        again = Loader(loader.dataset, 4, **options)
        again.load_state_dict(loader.state_dict())
        assert all(torch.equal(a.image, b.image) for a, b in zip(iterator, again, strict=True))
    copies = [pickle.loads(pickle.dumps(loader)) for loader in loaders]
    assert_same(*copies, epochs=1)


def test_other_datasets_keep_their_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="lmdbloader convert"):
        LMDBDataset(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="lmdbloader convert"):
        Loader(tmp_path / "empty")
    (tmp_path / "splits" / "train").mkdir(parents=True)
    (tmp_path / "splits" / "val").mkdir()
    for name in ("train", "val"):
        (tmp_path / "splits" / name / "0.jpg").write_bytes((folder / "00.jpg").read_bytes())
    with pytest.raises(SourceError, match="splits"):
        Loader(tmp_path / "splits")
    (tmp_path / "splits" / "train").rename(tmp_path / "splits" / "x_HR")
    (tmp_path / "splits" / "val").rename(tmp_path / "splits" / "x_LR")
    with pytest.raises(OptionError, match="pairs"):
        Loader(tmp_path / "splits")
    both: Any = ConcatDataset([view_of(Loader(place).dataset) for place in (folder, tmp_path / "splits" / "x_HR")])
    with pytest.raises(OptionError, match="one folder"):
        Loader(both)


class _Other(_ImageFolder):
    def __getitem__(self, number: int) -> Any:
        return number


@pytest.mark.parametrize("made", [
    lambda root: _ImageFolder(root, transform=len), lambda root: _ImageFolder(root, target_transform=len),
    lambda root: _ImageFolder(root, loader=len), _Other,
])  # fmt: skip
def test_functions_of_an_image_folder_are_refused(places: tuple[Path, Path], made: Any) -> None:
    with pytest.raises(OptionError, match=r"Loader\(ImageFolder\(|lmdbloader.write"):
        Loader(made(places[0]))


def test_an_image_folder_that_has_changed_is_refused(places: tuple[Path, Path]) -> None:
    given = _ImageFolder(places[0])
    loader = Loader(given, 4, transforms=TRANSFORMS[2], shuffle=False)
    given.transform = len
    with pytest.raises(OptionError, match="have changed"):
        iter(loader)


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each file is added whose header is read from now on."""
    found = list[str]()
    inspect = file_index._inspect
    monkeypatch.setattr(file_index, "_inspect", lambda path: found.append(os.path.basename(path)) or inspect(path))
    return found


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the size of each image of a folder, as a new Loader sees it."""
    reader = Loader(folder).dataset.reader
    return {str(reader.source(row)): reader.image_shape("image", row) for row in range(len(reader))}


def test_headers_are_read_once_and_again_after_a_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looked_at(monkeypatch)
    before = shapes(folder)
    assert sorted(seen) == sorted(before) and len(seen) == 12
    seen.clear()
    assert shapes(folder) == before and not seen
    picture(61, 83).save(folder / "03.jpg")
    picture(62, 84).save(folder / "20.png")
    (folder / "05.jpg").unlink()
    after = shapes(folder)
    assert sorted(seen) == ["03.jpg", "20.png"]
    expected = {**before, "03.jpg": (3, 61, 83), "20.png": (3, 62, 84)}
    del expected["05.jpg"]
    assert after == expected


def test_a_photograph_that_a_program_has_turned_keeping_its_size_and_time(folder: Path) -> None:
    path = folder / "03.jpg"
    picture(60, 80).save(path, exif=exif(1))
    before = path.stat()
    assert shapes(folder)["03.jpg"] == (3, 60, 80)
    content = path.read_bytes()
    at = content.index(bytes.fromhex("0112000300000001")) + 9
    path.write_bytes(content[:at] + b"\x06" + content[at + 1 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and shapes(folder)["03.jpg"] == (3, 80, 60)


def test_a_damaged_cache_is_made_again(folder: Path, tmp_path: Path) -> None:
    before = shapes(folder)
    (kept,) = (tmp_path / "cache").rglob("*.npz")
    for content in (b"", b"x" * 100, kept.read_bytes()[:300]):
        kept.write_bytes(content)
        assert shapes(folder) == before
    np.savez(kept, text=np.zeros(9, np.uint8), bounds=np.array(5), facts=np.zeros((2, 8), np.int64))
    assert shapes(folder) == before


def test_without_a_cache_folder_headers_are_read_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "cache_folder", lambda: None)
    seen = looked_at(monkeypatch)
    assert shapes(folder) == shapes(folder) and len(seen) == 24


@pytest.mark.parametrize("change", ["edited", "touched", "removed", "cut"])
def test_a_file_that_changes_while_it_is_used_is_named(folder: Path, change: str) -> None:
    loader, path = Loader(folder, 4, shuffle=False), folder / "06.jpg"
    for _ in loader:
        pass
    if change == "edited":
        picture(60, 80).save(path)
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "removed":
        path.unlink()
    else:
        os.truncate(path, 100)
    with pytest.raises(CorruptError, match=re.escape(str(path))) as caught:
        for _ in loader:
            pass
    assert (caught.value.path, caught.value.sample, caught.value.source) == (str(path), 6, "06.jpg")


@pytest.fixture(params=["header", "data", "empty", "text", "alpha"])
def damaged(request: pytest.FixtureRequest, folder: Path) -> Iterator[Path]:
    """A folder in which file 06.jpg or 06.png cannot be used."""
    path, kind = folder / "06.jpg", request.param
    content = path.read_bytes()
    if kind == "alpha":
        path.unlink()
        picture(60, 80).convert("RGBA").save(folder / "06.png")
    else:
        content = {"header": content[:20], "data": content[: len(content) // 2], "empty": b"", "text": b"hello"}[kind]
        path.write_bytes(content)
    yield folder


@pytest.mark.parametrize("transforms", [[], TRANSFORMS[0]])
def test_a_file_that_cannot_be_used_is_named_or_left_out(damaged: Path, transforms: list[Transform]) -> None:
    with pytest.raises(CorruptError, match=re.escape(str(damaged / "06."))) as caught:
        for _ in Loader(damaged, 4, shuffle=False, transforms=transforms):
            pass
    assert ("alpha channel" in str(caught.value)) == ("photos.lmdb --alpha drop`" in str(caught.value))
    loader = Loader(damaged, 4, shuffle=False, transforms=transforms, on_corrupt="skip")
    assert [len(batch.image) for batch in loader] == [4, 3, 4]
    assert [(found.sample, found.source[:3] if found.source else "") for found in loader.corrupt] == [(6, "06.")]


def test_a_folder_without_any_image_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.jpg").write_bytes(b"hello")
    with pytest.raises(ImageError, match=r"0\.jpg"):
        Loader(tmp_path / "photos")


def test_names_that_are_not_text(folder: Path) -> None:
    os.rename(folder / "06.jpg", os.fsencode(folder) + b"/\xff.jpg")
    loader = Loader(folder, 4, shuffle=False)
    assert sum(len(batch.image) for batch in loader) == 12
    assert loader.dataset.reader.source(11) == r"\xff.jpg"


def test_a_folder_of_many_files(folder: Path) -> None:
    for number in range(3000):
        os.link(folder / "00.jpg", folder / f"more{number}.jpg")
    loader = Loader(folder, 500, shuffle=True, transforms=[RandomCrop(8)])
    assert sum(len(batch.image) for batch in loader) == len(loader.dataset) == 3012


def test_what_a_conversion_would_save_is_logged_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_reader, "_FIRST", 4)
    monkeypatch.setattr(file_reader, "_TIMED", 20)
    loader = Loader(folder, 4, shuffle=True, transforms=[RandomCrop(32)])
    with caplog.at_level(logging.WARNING, "lmdbloader"):
        for _ in range(5):
            for _ in loader:
                pass
    (message,) = caplog.messages
    assert f"lmdbloader convert {folder} photos.lmdb" in message
    assert 0 < int(re.findall(r"took (\d+) %", message)[0]) < 100


def test_tables_that_are_not_kept_are_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "transforms": TRANSFORMS[0]}
    kept = Loader(folder, 4, **options)
    monkeypatch.setattr(file_reader, "_TABLES_NBYTES", 0)
    again = Loader(folder, 4, **options)
    assert_same(kept, again)
    assert not again.dataset.reader._tables
