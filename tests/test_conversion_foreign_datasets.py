"""`lmdbloader.write` of datasets of other libraries, and of images that come encoded: no byte of them is lost."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import lmdbloader
from lmdbloader import LMDBDataset, fields, write
from lmdbloader.errors import OptionError
from lmdbloader.fields import Image, Mask

RNG = np.random.default_rng(0)
PIXELS = [RNG.integers(0, 256, (24, 32, 3)).astype(np.uint8) for _ in range(4)]


def encoded(pixels: Any, kind: str, **options: Any) -> bytes:
    PilImage.fromarray(pixels).save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


FILES = [encoded(PIXELS[0], "PNG"), encoded(PIXELS[1], "JPEG"), encoded(PIXELS[2], "BMP"), encoded(PIXELS[3], "JPEG")]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def kinds(path: Path) -> dict[str, str]:
    return {f.name: f.kind for f in LMDBDataset(path).fields.values()}


def extracted(path: Path, folder: Path) -> list[bytes]:
    lmdbloader.extract(path, folder, fields=["image"])
    return [file.read_bytes() for file in sorted(folder.iterdir()) if not file.suffix.startswith(".json")]


def pixels_of(data: bytes) -> Any:
    return np.moveaxis(np.asarray(PilImage.open(io.BytesIO(data)).convert("RGB")), 2, 0)


# --- Hugging Face datasets: stand-ins with the interface that is used ---


class Features(dict[str, Any]):
    pass


@dataclass
class ClassLabel:
    names: list[str]


@dataclass
class List:
    feature: Any


@dataclass
class Value:
    dtype: str


@dataclass
class Array2D:
    shape: tuple[int, int]
    dtype: str


@dataclass
class ImageFeature:
    mode: str | None = None
    decode: bool = True


ImageFeature.__name__ = "Image"


class HuggingFace:
    """Rows of a datasets.Dataset, in one of its formats."""

    def __init__(
        self, rows: Sequence[dict[str, Any]], features: dict[str, Any] | None, kind: str | None = None
    ) -> None:
        self.rows, self.features, self.kind = rows, features, kind
        self.column_names = list(rows[0])

    @property
    def format(self) -> dict[str, Any]:
        return {"type": self.kind, "columns": self.column_names}

    def with_format(self, kind: str | None) -> HuggingFace:
        return HuggingFace(self.rows, self.features, kind)

    def select_columns(self, names: list[str]) -> HuggingFace:
        return HuggingFace([{name: row[name] for name in names} for row in self.rows], self.features, self.kind)

    def cast_column(self, name: str, feature: Any) -> HuggingFace:
        return HuggingFace(self.rows, {**(self.features or {}), name: feature}, self.kind)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.kind == "pandas":
            raise AssertionError("rows are not tables")
        for row in self.rows:
            yield {name: self._decoded(name, value) for name, value in row.items()}

    def _decoded(self, name: str, value: Any) -> Any:
        feature = (self.features or {}).get(name)
        if isinstance(feature, ImageFeature) and feature.decode:
            image = PilImage.open(io.BytesIO(value["bytes"]))
            return image.convert(feature.mode) if feature.mode else image
        return torch.tensor(value) if self.kind == "torch" and not isinstance(value, dict | str) else value


FEATURES = {
    "image": ImageFeature(),
    "label": ClassLabel(["cat", "dog"]),
    "caption": Value("string"),
    "weight": Value("float32"),
    "grid": Array2D((2, 2), "float32"),
}
ROWS = [
    {
        "image": {"bytes": data, "path": f"{i}.png"},
        "label": i % 2,
        "caption": f"number {i}",
        "weight": i / 2,
        "grid": [[float(i), 1.0], [2.0, 3.0]],
    }
    for i, data in enumerate(FILES)
]
KINDS = {"image": "image", "label": "int", "caption": "text", "weight": "float", "grid": "array"}


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas"])
@pytest.mark.parametrize("decode", [True, False])
def test_a_dataset_of_hugging_face(out: Path, tmp_path: Path, kind: str | None, decode: bool) -> None:
    samples = HuggingFace(ROWS, {**FEATURES, "image": ImageFeature(decode=decode)}, kind)
    write(samples, out, write_mode="original")
    assert kinds(out) == KINDS
    dataset = LMDBDataset(out)
    assert dataset.classes == ("cat", "dog")
    assert extracted(out, tmp_path / "files") == FILES
    for i, sample in enumerate(dataset):
        np.testing.assert_array_equal(sample.image.numpy(), pixels_of(FILES[i]))
        assert (sample.label, sample.caption, sample.weight) == (i % 2, f"number {i}", i / 2)
        assert sample.grid.tolist() == [[i, 1], [2, 3]] and sample.grid.dtype == torch.float32
    write(samples, out, overwrite=True)  # by default, images are decoded once and stored as pixels
    assert lmdbloader.info(out).fields[0].codecs in ({"raw": 4}, {"lz4": 4})
    np.testing.assert_array_equal(LMDBDataset(out)[1].image.numpy(), pixels_of(FILES[1]))


def test_nested_values_are_plain_in_every_format(out: Path) -> None:
    boxes = {"bbox": torch.tensor([[1.0, 2.0, 3.0, 4.0]]), "name": ["a", np.int64(3)], "more": [{"x": torch.tensor(1)}]}
    write(HuggingFace([{"objects": boxes}], {"objects": {}}, "numpy"), out)
    assert kinds(out) == {"objects": "json"}
    assert LMDBDataset(out)[0].objects == {"bbox": [[1, 2, 3, 4]], "name": ["a", 3], "more": [{"x": 1}]}


def test_files_are_kept_only_where_they_are_the_images(out: Path) -> None:
    converted = HuggingFace(ROWS, {**FEATURES, "image": ImageFeature(mode="L")})
    with pytest.raises(
        OptionError, match=r"sample 0, field 'image': write_mode='original' keeps files, but this image was made"
    ):
        write(converted, out, write_mode="original")
    write(converted, out)
    assert LMDBDataset(out)[0].image.shape == (1, 24, 32)
    own = HuggingFace([{"image": PIXELS[0], "label": 1}], FEATURES, "custom")  # with_transform
    own._decoded = lambda name, value: value  # type: ignore[method-assign, assignment]
    write(own, out, overwrite=True)
    assert LMDBDataset(out).classes == ("cat", "dog")
    np.testing.assert_array_equal(LMDBDataset(out)[0].image.numpy(), np.moveaxis(PIXELS[0], 2, 0))


def test_a_list_of_labels_keeps_its_names(out: Path) -> None:
    features = {
        "image": ImageFeature(),
        "bbox": List(List(Value("float32"))),
        "category": List(ClassLabel(["cat", "dog"])),
    }
    rows = [{"image": row["image"], "bbox": [[0, 0, 1, 1]], "category": [1]} for row in ROWS]
    write(HuggingFace(rows, features), out, fields={"image": None, "bbox": fields.Boxes(), "category": fields.Labels()})
    assert LMDBDataset(out).classes == ("cat", "dog") and LMDBDataset(out)[0].category.tolist() == [1]
    write(HuggingFace(rows, features), out, fields=dict.fromkeys(rows[0]) | {"bbox": fields.Boxes()}, overwrite=True)
    assert LMDBDataset(out).classes == ()  # which JSON cannot have


def test_the_package_itself(out: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=["cat", "dog"]),
        caption=datasets.Value("string"),
        weight=datasets.Value("float32"),
        grid=datasets.Array2D((2, 2), "float32"),
    )
    samples = datasets.Dataset.from_list(ROWS, features=features)
    others = [samples.with_format(kind) for kind in ("torch", "numpy", "pandas", "arrow")]
    others += [samples.cast_column("image", datasets.Image(decode=False)), samples.to_iterable_dataset()]
    for number, given in enumerate([samples, *others, samples.to_iterable_dataset().with_format("torch")]):
        write(given, out, write_mode="original", overwrite=True)
        assert kinds(out) == KINDS
        assert LMDBDataset(out).classes == ("cat", "dog")
        assert [sample.label for sample in LMDBDataset(out)] == [0, 1, 0, 1]
        assert extracted(out, tmp_path / f"files{number}") == FILES
    write(samples.with_transform(lambda rows: {"label": rows["label"]}), out, overwrite=True)
    assert kinds(out) == {"label": "int"} and LMDBDataset(out).classes == ("cat", "dog")
    with pytest.raises(OptionError, match="samples is a DatasetDict"):
        write(datasets.DatasetDict(train=samples), out, overwrite=True)


# --- torchvision datasets ---


class Folder(Dataset[Any]):
    """(image, label) with the attributes of torchvision's ImageFolder."""

    def __init__(self, change: Callable[[Any], Any] = PilImage.fromarray, **attributes: Any) -> None:
        self.change, self.labels = change, [0, 1, 1, 0]
        self.__dict__.update({"classes": ["cat", "dog"], "class_to_idx": {"cat": 0, "dog": 1}, **attributes})

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.change(PIXELS[index]), self.labels[index]


@pytest.mark.parametrize(
    ("samples", "classes"),
    [
        (Folder(), ("cat", "dog")),
        (Folder(lambda image: torch.from_numpy(image).permute(2, 0, 1)), ("cat", "dog")),
        (Folder(classes=None, class_to_idx={"dog": 1, "cat": 0}), ("cat", "dog")),
        (Folder(classes=[("cat", "tomcat"), ("dog",)]), ("cat, tomcat", "dog")),
        (Folder(classes=2, class_to_idx=None), ()),
        (Folder(target_transform=lambda label: label), ()),
        (Subset(Folder(), [0, 1, 2, 3]), ("cat", "dog")),
        (Subset(Subset(Folder(), [3, 2, 1, 0]), [3, 2, 1, 0]), ("cat", "dog")),
        (ConcatDataset([Subset(Folder(), [0]), Subset(Folder(), [1, 2, 3])]), ("cat", "dog")),
        (ConcatDataset([Subset(Folder(), [0]), Subset(Folder(classes=["a", "b"]), [1, 2, 3])]), ()),
        (DataLoader(Folder(lambda image: torch.from_numpy(image).permute(2, 0, 1)), batch_size=None), ("cat", "dog")),
    ],
)
def test_a_dataset_of_torchvision(out: Path, samples: Any, classes: tuple[str, ...]) -> None:
    write(samples, out)
    dataset = LMDBDataset(out)
    assert kinds(out) == {"image": "image", "label": "int"}
    assert dataset.classes == classes
    assert [sample.label for sample in dataset] == [0, 1, 1, 0]
    for sample, pixels in zip(dataset, PIXELS, strict=True):
        np.testing.assert_array_equal(sample.image.numpy(), np.moveaxis(pixels, 2, 0))


def test_labels_that_are_not_numbers_of_the_classes(out: Path) -> None:
    samples = Folder(labels=[0, 1, 2, 0])
    with pytest.raises(
        OptionError, match=r"sample 2, field 'label': 2, but there are names of 2 classes; expected 0 to 1, or a"
    ):
        write(samples, out)
    write(Folder(labels=[0, 1, -1, 0]), out)
    write(samples, out, classes={"label": ["a", "b", "c"]}, overwrite=True)
    write(samples, out, classes={}, overwrite=True)
    with pytest.raises(OptionError, match=r"`classes` has 'crane' twice.*\(its `wnids` differ\)"):
        write(Folder(classes=["crane", "crane"], wnids=["n1", "n2"]), out, overwrite=True)
    write(Folder(classes=["crane", "crane"]), out, classes={"label": ["n1", "n2"]}, overwrite=True)


def test_images_that_a_transform_made_floats_are_refused(out: Path) -> None:
    floats = Folder(lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255)
    with pytest.raises(OptionError, match=r"a tensor \(3, 24, 32\) of torch\.float32, made by the dataset's transform"):
        write(floats, out)
    write(floats, out, fields={"image": fields.Image(), "label": fields.Int()})
    assert kinds(out) == {"image": "image", "label": "int"}
    with pytest.warns(UserWarning, match=r'declare it: fields=\{"image": lmdbloader\.fields\.Image\(\)\}'):
        write(floats, out, fields=("image", "label"), overwrite=True)
    assert kinds(out) == {"image": "array", "label": "int"}


# --- encoded images ---


@pytest.mark.parametrize("form", ["bytes", "bytearray", "dict", "path", "text", "path in a dict"])
def test_encoded_images_are_stored_as_files_or_decoded_once(out: Path, tmp_path: Path, form: str) -> None:
    def given(number: int) -> Any:
        path = tmp_path / f"{number}.png"  # the content decides, not the suffix
        path.write_bytes(FILES[number])
        return {
            "bytes": FILES[number],
            "bytearray": bytearray(FILES[number]),
            "dict": {"bytes": FILES[number], "path": None},
            "path": path,
            "text": str(path),
            "path in a dict": {"bytes": None, "path": str(path)},
        }[form]

    samples = [{"image": given(i), "n": i} for i in range(4)]
    declared = {"image": Image()} if form in ("bytes", "bytearray", "text") else None
    write(samples, out, write_mode="original", fields=declared)
    assert extracted(out, tmp_path / "files") == FILES
    assert lmdbloader.info(out).fields[0].codecs == {"file": 2, "jpeg": 2}
    for mode, codecs in ((None, {"raw": 4}), ("jpg", {"jpeg": 4})):
        write(samples, out, write_mode=mode, fields=declared, overwrite=True)  # type: ignore[arg-type]
        assert lmdbloader.info(out).fields[0].codecs == codecs
        if mode is None:
            for sample, data in zip(LMDBDataset(out), FILES, strict=True):
                np.testing.assert_array_equal(sample.image.numpy(), pixels_of(data))


@pytest.mark.parametrize("alpha", ["drop", "white"])
def test_transparency_of_files_and_of_pillow_images_goes_the_same_way(out: Path, alpha: Any) -> None:
    pixels = RNG.integers(0, 256, (6, 5, 4)).astype(np.uint8)
    samples = [{"image": {"bytes": encoded(pixels, "PNG"), "path": None}}, {"image": PilImage.fromarray(pixels)}]
    for sample in samples:
        with pytest.raises(OptionError, match=r"^sample 0, field 'image': .*(alpha 'drop' or 'white'|alpha='drop')"):
            write([sample], out)
    write(samples, out, alpha=alpha)
    first, second = LMDBDataset(out)
    assert torch.equal(first.image, second.image)
    if alpha == "drop":
        np.testing.assert_array_equal(first.image.numpy(), np.moveaxis(pixels[:, :, :3], 2, 0))


# --- masks that come encoded ---


LABELS = (np.arange(24 * 32) % 5).astype(np.uint8).reshape(24, 32)


def palette_mask() -> bytes:
    mask = PilImage.fromarray(LABELS)
    mask.putpalette([number for color in range(256) for number in (color, 255 - color, 7)])  # of mode P from now on
    mask.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


@pytest.mark.parametrize("mode", [None, "original"])
@pytest.mark.parametrize("name", ["annotation", "ann"])
def test_a_mask_with_a_palette_keeps_its_numbers_or_is_refused(out: Path, name: str, mode: Any) -> None:
    data = palette_mask()
    rows = [{"image": ROWS[1]["image"], name: {"bytes": data, "path": "1.png"}}]
    samples = HuggingFace(rows, {"image": ImageFeature(), name: ImageFeature()})
    with pytest.raises(OptionError, match=rf"{name}'.*mode P.*Mask\(\)"):
        write(samples, out, write_mode=mode)
    write(samples, out, fields={name: Image()})
    np.testing.assert_array_equal(LMDBDataset(out)[0][1].numpy(), pixels_of(data))  # its colors
    write(samples, out, write_mode=mode, fields={name: Mask()}, overwrite=True)
    np.testing.assert_array_equal(LMDBDataset(out)[0][1].numpy(), LABELS)
    assert lmdbloader.info(out).fields[0].codecs == ({"jpeg": 1} if mode else {"raw": 1})


@pytest.mark.parametrize("mode", [None, "original"])
def test_a_grey_file_that_looks_like_a_mask_is_refused(out: Path, mode: Any) -> None:
    data = encoded(LABELS, "PNG")
    samples = [{"image": {"bytes": FILES[1], "path": None}, "mask": {"bytes": data, "path": None}}]
    with pytest.raises(OptionError, match=r"field 'mask' looks like a mask by its name and values"):
        write(samples, out, write_mode=mode)
    write(samples, out, write_mode=mode, fields={"mask": Mask()})
    assert kinds(out) == {"image": "image", "mask": "mask"}
    with pytest.raises(OptionError, match="field 'mask': not an image of a supported kind"):
        write([{"mask": b"none"}], out, fields={"mask": Mask()}, overwrite=True)


def test_an_image_folder_itself(out: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    for number, pixels in enumerate(PIXELS):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        PilImage.fromarray(pixels).save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png")
    folder = datasets.ImageFolder(tmp_path / "photos")
    for samples in (folder, Subset(folder, range(4))):
        write(samples, out, overwrite=True)
        dataset = LMDBDataset(out)
        assert dataset.classes == ("a", "b") and [sample.label for sample in dataset] == [0, 0, 1, 1]
        for sample, (image, _) in zip(dataset, folder, strict=True):
            np.testing.assert_array_equal(sample.image.numpy(), np.moveaxis(np.asarray(image), 2, 0))
    with pytest.raises(
        OptionError, match=r"write_mode='original' keeps files, but this image was made in Python \(Image\)"
    ):
        write(folder, out, write_mode="original", overwrite=True)


@pytest.mark.parametrize("key", ["transform", "transforms"])
def test_a_transform_that_draws_is_refused(out: Path, tmp_path: Path, key: str) -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    from torchvision.transforms import v2

    (tmp_path / "photos" / "a").mkdir(parents=True)
    PilImage.fromarray(PIXELS[0]).save(tmp_path / "photos" / "a" / "0.png")
    chain = v2.Compose([v2.Resize(8), v2.RandomApply([v2.ColorJitter(0.4)]), v2.RandomCrop(4)])
    folder = datasets.ImageFolder(tmp_path / "photos", chain)
    if key == "transforms":
        folder.transform, folder.transforms = None, chain
    for samples in (folder, Subset(folder, [0]), folder + folder):
        with pytest.raises(OptionError, match=r"draws at random \(RandomApply, RandomCrop\).* with transform=None"):
            write(samples, out)
    assert not out.exists()
    write((sample for sample in datasets.ImageFolder(tmp_path / "photos", chain)), out)
    assert LMDBDataset(out)[0].image.shape == (3, 4, 4)
    write(datasets.ImageFolder(tmp_path / "photos", v2.Resize(8)), out, overwrite=True)


@pytest.mark.parametrize("label", [torch.tensor, np.array, np.int32], ids=["tensor", "array", "NumPy's"])
@pytest.mark.parametrize("given", [None, ("image", "label")], ids=["found", "given"])
def test_labels_of_pairs_are_numbers_in_any_form(tmp_path: Path, label: Any, given: Any) -> None:
    class Pairs:
        classes = ("cat", "dog", "eel")

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return PilImage.new("RGB", (8, 6)), label(index % 3)

    lmdbloader.write(Pairs(), tmp_path / "out", fields=given)
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert [sample.label for sample in dataset] == [0, 1, 2, 0, 1, 2]
    assert dataset.classes == ("cat", "dog", "eel")
