"""What must never change by accident: the samples of converted datasets, and the epochs of Loaders, bit for bit.

The digests in `tests/golden/` were made by the code of 2026-11-28, before datasets became lists of parts, and the
payloads of delta by its encoder of 2026-11-29. A change that
means to alter one of them says so in CHANGELOG, and `python tests/test_golden.py` writes them again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from delta_reference import encoded
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader, ProgressiveResize, QuasiRandom
from lmdbloader.fields import Boxes, Labels, Mask, Points
from lmdbloader.kernels import entries
from lmdbloader.transforms import (
    CenterCrop,
    ColorJitter,
    CompiledFunction,
    CutMix,
    Cutout,
    LabelSmoothing,
    MixUp,
    Normalize,
    RandomCrop,
    RandomDihedral,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
    SanitizeBoxes,
    ToDtype,
)

GOLDEN = Path(__file__).resolve().parent / "golden"
PICTURES = Path(skimage.data.__file__).parent
JPEGS = ("hubble_deep_field.jpg", "retina.jpg", "rocket.jpg")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photographs(folder: Path, size: tuple[int, int], names: Iterable[str]) -> Path:
    """Cut the middle of (width, height) out of each of scikit-image's photographs."""
    folder.mkdir(parents=True)
    for name in names:
        picture = Image.open(PICTURES / name).convert("RGB")
        left, top = (picture.width - size[0]) // 2, (picture.height - size[1]) // 2
        picture.crop((left, top, left + size[0], top + size[1])).save((folder / name).with_suffix(".png"))
    return folder


def classes(folder: Path) -> Path:
    """Make class folders of scikit-image's own JPEG files and of PNG files."""
    for name, files in {
        "sky": ("hubble_deep_field.jpg", "rocket.jpg", "moon.png"),
        "body": ("retina.jpg", "cell.png"),
    }.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            shutil.copy(PICTURES / file, folder / name)
    return folder


def some_of_everything() -> Iterator[dict[str, Any]]:
    """Yield 40 samples with a field of each kind."""
    numbers = np.random.default_rng(5)
    picture = np.asarray(Image.open(PICTURES / "chelsea.png"))
    for i in range(40):
        top, left = int(numbers.integers(0, 300 - 80)), int(numbers.integers(0, 451 - 96))
        window = picture[top : top + 80, left : left + 96]
        corners = np.sort(numbers.uniform(0, 80, (i % 4, 2, 2)), axis=1).reshape(-1, 4).astype(np.float32)
        yield {
            "image": window,
            "mask": (window[:, :, 0] // 64).astype(np.uint8),
            "boxes": corners,
            "labels": numbers.integers(0, 9, i % 4),
            "points": numbers.uniform(0, 80, (2, 3, 2)).astype(np.float32),
            "label": i % 7,
            "score": float(numbers.normal()),
            "caption": "Übersicht " * (i % 30),
            "blob": bytes(range(i)),
            "extra": {"number": i, "names": ["a", None]},
            "depth": numbers.normal(size=(3, 2)),
        }


def write_everything(out: Path, codec: str) -> None:
    fields = {"boxes": Boxes(image="image"), "labels": Labels(), "points": Points(image="image"), "mask": Mask()}
    lmdbloader.write(list(some_of_everything()), out, fields=fields, codec={"image": codec, "mask": codec})


PATCHED = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg")


def convert_patches(out: Path, **options: Any) -> None:
    source = photographs(out.with_name(out.name + " photos"), (288, 192), PATCHED)
    lmdbloader.convert(source, out, patch_size=48, scale=2, workers=1, **options)


def convert_classes(out: Path, **options: Any) -> None:
    lmdbloader.convert(classes(out.with_name(out.name + " photos")), out, workers=1, **options)


def convert_whole(out: Path, **options: Any) -> None:
    source = photographs(out.with_name(out.name + " photos"), (440, 290), ("chelsea.png", "coffee.png", "rocket.jpg"))
    lmdbloader.convert(source, out, workers=1, **options)


def derive(out: Path, how: str) -> None:
    """Make one dataset of others."""
    first, second = (out.with_name(f"{out.name} {name}") for name in ("first", "second"))
    convert_patches(first, codec="lz4")
    convert_patches(second, codec="raw", stride=96)
    if how == "merge":
        lmdbloader.merge([first, second], out, prefix_sources=True)
    elif how == "subset":
        lmdbloader.subset(first, out, fraction=0.4, seed=3)
    else:
        shutil.copytree(first, out)
        lmdbloader.append(out, [second], prefix_sources=True)


DATASETS: dict[str, Callable[[Path], None]] = {
    "patches raw": partial(convert_patches, codec="raw"),
    "patches lz4": partial(convert_patches, codec="lz4"),
    "patches shuffled in parts": partial(convert_patches, shuffle=7, parts=3),
    "classes as files": convert_classes,
    "classes re-encoded": partial(convert_classes, write_mode="jpg", max_resolution=160, jpeg_quality=85),
    "classes raw or JPEG": partial(
        convert_classes, write_mode="proportion", compress_probability=0.5, seed=1, max_resolution=200
    ),
    "whole in tiles": partial(convert_whole, codec="lz4"),
    "whole pairs": partial(convert_whole, scale=2),
    "everything raw": partial(write_everything, codec="raw"),
    "everything lz4": partial(write_everything, codec="lz4"),
    "merged": partial(derive, how="merge"),
    "appended": partial(derive, how="append"),
    "subset": partial(derive, how="subset"),
}


def parts_of(value: Any) -> Iterator[bytes]:
    """Yield bytes that stand for a value, its types, shapes and names."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield bytes(value.flatten().clone().view(torch.uint8).numpy()) if value.numel() else b""
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        yield from parts_of([*value.items()])
    elif hasattr(value, "_fields"):
        yield from parts_of(list(zip(value._fields, value, strict=True)))
    elif isinstance(value, (list, tuple)):
        yield f"[{len(value)}".encode()
        for element in value:
            yield from parts_of(element)
    else:
        yield repr(value).encode()


def digest(values: Iterable[Any]) -> str:
    """Return a digest of values in order."""
    found = hashlib.sha256()
    for value in values:
        for part in parts_of(value):
            found.update(part)
            found.update(b"\0")
    return found.hexdigest()[:32]


def sample_digest(path: Path) -> str:
    """Return a digest of a dataset's samples in order, and of where each comes from."""
    dataset = LMDBDataset(path)
    names = [name for name in ("source", "top", "left") if name in dataset.table.column_names]
    return digest([*dataset, *dataset.table.select(names).to_pylist()])


def solarize(image: Any, out: Any, threshold: Any) -> None:
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                if image[c, y, x] >= threshold:
                    out[c, y, x] = 255 - image[c, y, x]


def brighter(batch: Any) -> Any:
    return batch._replace(hr=batch.hr.float() + batch.lr.float().mean())


def epochs(loader: Any, num_epochs: int = 2) -> str:
    return digest(batch for _ in range(num_epochs) for batch in loader)


def of_ranks(dataset: Any, world_size: int, **options: Any) -> str:
    return digest(epochs(Loader(dataset, shard=(rank, world_size), **options)) for rank in range(world_size))


def resumed(dataset: Any, after: int, **options: Any) -> str:
    """Return the digest of what is left of three epochs, read by a Loader that continues after some batches."""
    first = Loader(dataset, **options)
    batches = chain.from_iterable(repeat(first))  # epoch after epoch
    for _ in range(after):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    second = Loader(dataset, **options)
    second.load_state_dict(state)
    return epochs(second, 3)


def scheduled(dataset: Any) -> str:
    schedule = ProgressiveResize(num_epochs=6, initial_scale=0.5, size_increment=4)
    loader = Loader(dataset, 8, shuffle=True, seed=3, transforms=[RandomResizedCrop(48)], resolution=schedule)
    return epochs(loader, 6)


def of_torch_loader(dataset: Any, **options: Any) -> str:
    torch.manual_seed(11)
    return digest(lmdbloader.dataloader(dataset, **options))


def mixed(first: Any, second: Any) -> str:
    mixture = lmdbloader.mix([first, second], weights=[3, 1], length=50)
    return epochs(Loader(mixture, 8, shuffle=True, seed=4))


def load(
    name: str, *args: Any, run: Callable[..., str] = epochs, fields: Any = None, **options: Any
) -> Callable[[Callable[[str], Path]], str]:
    def act(path: Callable[[str], Path]) -> str:
        dataset = LMDBDataset(path(name), fields)
        return run(Loader(dataset, *args, **options)) if run is epochs else run(dataset, *args, **options)

    return act


PAIRS = [RandomCrop(32), RandomDihedral()]
IMAGENET = [RandomResizedCrop(64), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), Normalize(MEAN, STD)]
IMAGE = ("image", "label")

LOADERS: dict[str, Callable[[Callable[[str], Path]], str]] = {
    "in order": load("patches raw", 16),
    "in order, last left out": load("patches lz4", 9, drop_last=True),
    "in order as a dict": load("patches raw", 7, as_="dict"),
    "renamed": load("patches raw", 7, as_={"x": "lr", "y": "hr"}),
    "random": load("patches raw", 16, shuffle=True, seed=0),
    "random of another seed": load("patches raw", 16, shuffle=True, seed=2**40 + 1),
    "random, large batches": load("patches lz4", 64, shuffle=True, seed=1),
    "random repeated": load("patches raw", 16, shuffle=True, seed=1, repeat=3),
    "quasi random": load("patches raw", 8, order=QuasiRandom(block_nbytes=40_000, window_nbytes=200_000), seed=1),
    "quasi random by name": load("patches lz4", 8, order="quasi_random", seed=1),
    "a list": load("patches raw", 4, order=[5, 3, 3, -1, 0, 17, 40]),
    "a function": load("patches raw", 4, order=lambda epoch: [(epoch * 7 + i) % 90 for i in range(30)]),
    "weights": load("patches raw", 8, weights=(1.0 + np.arange(96) % 5)[:96], num_samples=70, seed=6),
    "three ranks": load("patches raw", batch_size=8, shuffle=True, seed=5, world_size=3, run=of_ranks),
    "three ranks padded": load("patches raw", batch_size=7, shuffle=True, seed=5, pad=True, world_size=3, run=of_ranks),
    "two ranks, quasi random": load(
        "patches raw", batch_size=8, order=QuasiRandom(40_000, 200_000), seed=5, world_size=2, run=of_ranks
    ),
    "pairs augmented": load("patches raw", 16, shuffle=True, seed=0, transforms=PAIRS),
    "pairs augmented, lz4": load("patches lz4", 16, shuffle=True, seed=0, transforms=PAIRS),
    "pairs augmented, pread, two threads": load(
        "patches lz4", 16, shuffle=True, seed=0, transforms=PAIRS, io="pread", num_threads=2
    ),
    "pairs as float, channels last": load(
        "patches raw",
        16,
        shuffle=True,
        seed=0,
        memory_format=torch.channels_last,
        transforms=[*PAIRS, ToDtype(torch.float32, scale=True)],
    ),
    "pairs as half": load(
        "patches raw", 16, shuffle=True, seed=0, transforms=[*PAIRS, ToDtype(torch.float16, scale=True)]
    ),
    "pairs as bfloat16": load(
        "patches raw", 16, shuffle=True, seed=0, transforms=[*PAIRS, ToDtype(torch.bfloat16, scale=True)]
    ),
    "pairs and a function": load("patches raw", 16, shuffle=True, seed=0, transforms=[*PAIRS, brighter]),
    "pairs and a compiled function": load(
        "patches raw",
        16,
        shuffle=True,
        seed=0,
        transforms=[*PAIRS, CompiledFunction(solarize, draw={"threshold": (128.0, 256.0)}, p=0.5)],
    ),
    "pairs of parts": load("patches shuffled in parts", 16, shuffle=True, seed=0, transforms=PAIRS),
    "resumed in the first epoch": load(
        "patches raw", after=3, batch_size=16, shuffle=True, seed=8, transforms=PAIRS, run=resumed
    ),
    "resumed in the second epoch": load("patches raw", after=8, batch_size=16, shuffle=True, seed=8, run=resumed),
    "resumed, weights": load(
        "patches raw", after=5, batch_size=8, weights=(1.0 + np.arange(96) % 5)[:96], seed=8, run=resumed
    ),
    "windows of tiles": load(
        "whole in tiles", 2, shuffle=True, seed=1, transforms=[RandomCrop(96), RandomVerticalFlip()]
    ),
    "whole pairs, cropped": load("whole pairs", 2, shuffle=True, seed=1, transforms=[RandomCrop(64), RandomDihedral()]),
    "JPEG files, evaluated": load("classes as files", 2, fields=IMAGE, transforms=[Resize(144), CenterCrop(128)]),
    "JPEG files, trained": load("classes as files", 2, shuffle=True, seed=1, fields=IMAGE, transforms=IMAGENET),
    "JPEG files, bicubic": load(
        "classes as files",
        2,
        shuffle=True,
        seed=1,
        fields=IMAGE,
        transforms=[RandomResizedCrop(80, interpolation="bicubic")],
    ),
    "small JPEGs, trained": load("classes re-encoded", 3, shuffle=True, seed=1, fields=IMAGE, transforms=IMAGENET),
    "raw or JPEG": load("classes raw or JPEG", 3, shuffle=True, seed=1, fields=IMAGE, transforms=IMAGENET),
    "colors": load(
        "classes re-encoded",
        3,
        shuffle=True,
        seed=2,
        fields=IMAGE,
        transforms=[RandomResizedCrop(64), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.5), RandomSolarize(128)],
    ),
    "erased": load(
        "patches lz4",
        8,
        shuffle=True,
        seed=2,
        transforms=[RandomTranslate(4, fill=9, fields=("hr",)), Cutout(8, value=7), RandomErasing(0.7)],
    ),
    "MixUp": load(
        "everything raw",
        8,
        shuffle=True,
        seed=2,
        fields=IMAGE,
        transforms=[ToDtype(torch.float32, scale=True), MixUp(0.4, 7)],
    ),
    "CutMix": load(
        "everything raw",
        8,
        shuffle=True,
        seed=2,
        fields=IMAGE,
        transforms=[ToDtype(torch.float32, scale=True), CutMix(1.0, 7)],
    ),
    "smooth labels": load("everything raw", 8, shuffle=True, seed=2, fields=IMAGE, transforms=[LabelSmoothing(0.1, 7)]),
    "everything": load("everything raw", 7, shuffle=True, seed=2),
    "everything, lz4": load("everything lz4", 7, shuffle=True, seed=2, as_="dict"),
    "masks, boxes and points": load(
        "everything lz4",
        8,
        shuffle=True,
        seed=2,
        fields=("image", "mask", "boxes", "labels", "points"),
        transforms=[RandomResizedCrop(48), RandomHorizontalFlip()],
    ),
    "boxes sanitized": load(
        "everything raw",
        8,
        shuffle=True,
        seed=2,
        fields=("image", "boxes", "labels"),
        transforms=[RandomCrop(40), RandomDihedral(), SanitizeBoxes("boxes", "labels")],
    ),
    "a schedule of sizes": load("classes re-encoded", fields=IMAGE, run=scheduled),
    "merged": load("merged", 16, shuffle=True, seed=0, transforms=PAIRS),
    "appended": load("appended", 16, shuffle=True, seed=0, transforms=PAIRS),
    "mixed": lambda path: mixed(LMDBDataset(path("patches raw")), LMDBDataset(path("subset"))),
    "torch's DataLoader": load("patches raw", batch_size=16, shuffle=True, num_workers=0, run=of_torch_loader),
    "a view": lambda path: epochs(
        Loader(LMDBDataset(path("patches lz4")).transformed(PAIRS, seed=9), 16, shuffle=True)
    ),
    "a subset": lambda path: epochs(
        Loader(
            torch.utils.data.Subset(LMDBDataset(path("patches raw")), list(range(0, 90, 4))), 8, shuffle=True, seed=1
        )
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the path of one of DATASETS, made when it is first asked for."""
    return maker(tmp_path_factory.mktemp("golden"))


def maker(folder: Path) -> Callable[[str], Path]:
    def path(name: str) -> Path:
        out = folder / name.replace("'", "")
        if not out.exists():
            DATASETS[name](out)
        return out

    return path


def golden(file: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((GOLDEN / file).read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", DATASETS)
def test_samples_of_a_dataset_are_those_of_ever(name: str, made: Callable[[str], Path]) -> None:
    assert sample_digest(made(name)) == golden("samples.json")[name]


@pytest.mark.parametrize("name", LOADERS)
def test_epochs_of_a_loader_are_those_of_ever(name: str, made: Callable[[str], Path]) -> None:
    assert LOADERS[name](made) == golden("epochs.json")[name]


def test_a_resumed_epoch_is_the_rest_of_an_uninterrupted_one(made: Callable[[str], Path]) -> None:
    loader = Loader(LMDBDataset(made("patches raw")), 16, shuffle=True, seed=8, transforms=PAIRS)
    batches = [batch for _ in range(3) for batch in loader]
    assert digest(batches[3:]) == golden("epochs.json")["resumed in the first epoch"]


def delta_images() -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and images (C, H, W), parts of photographs."""
    for name, (top, left) in (("astronaut.png", (60, 170)), ("chelsea.png", (100, 120)), ("coffee.png", (200, 300))):
        whole = np.asarray(Image.open(PICTURES / name).convert("RGB")).transpose(2, 0, 1)
        image = whole[:, top : top + 24, left : left + 37]
        yield f"{name}, color", image
        yield f"{name}, grey", image[1:2, :16]
        yield f"{name}, 16 bits", image[:, :10].astype(np.uint16) * 201 + image[::-1, :10]
        yield f"{name}, 4 bands", np.concatenate([image, image[:1]])[:, 3:9]
    yield "one color", np.full((3, 9, 9), 77, np.uint8)


def delta_payloads() -> dict[str, str]:
    return {name: base64.b64encode(encoded(image)).decode() for name, image in delta_images()}


def test_payloads_of_delta_are_those_of_ever_and_decode() -> None:
    stored = golden("delta.json")
    assert delta_payloads() == stored
    for name, image in delta_images():
        payload, out = np.frombuffer(base64.b64decode(stored[name]), np.uint8), np.empty(image.shape, image.dtype)
        found = entries.delta_decompress(payload.ctypes.data, out.ctypes.data, payload.size, out.nbytes)
        assert found == out.nbytes and (out == image).all()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = maker(Path(folder))
        found = {
            "samples.json": {name: sample_digest(path(name)) for name in DATASETS},
            "epochs.json": {name: act(path) for name, act in LOADERS.items()},
            "delta.json": delta_payloads(),
        }
    for file, digests in found.items():
        (GOLDEN / file).write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
