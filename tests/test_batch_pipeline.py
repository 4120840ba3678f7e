"""Lists of transforms in compiled code give the results of plain NumPy for the same random words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transform_lists import lists_of_transforms
from transform_reference import Expected, apply_all

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.batch.pipeline import Pipeline, Scratch
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format import codecs, layout
from lmdbloader.format.layout import CODEC_JPEG, DATA_FILE
from lmdbloader.store import Reader

GUARD = 64
MARK = 0xA5
COUNT = 3
# Names of fields and the (height, width) of their images.
LAYOUTS = {
    "one": {"image": (37, 23)},
    "square": {"image": (24, 24)},
    "dot": {"image": (1, 1)},
    "two": {"lr": (20, 18), "hr": (40, 36)},
    "three": {"hr": (45, 30), "lr": (15, 10)},
    "four": {"lr": (5, 7), "hr": (20, 28)},
    "pyramid": {"half": (24, 18), "full": (48, 36), "third": (16, 12)},
    "large": {"image": (150, 131)},
}
KINDS = ("raw", "lz4", "tiled")
DTYPES = (np.uint8, np.uint16, np.float16, np.float32)


def picture(height: int, width: int, channels: int, dtype: Any, seed: Any) -> np.ndarray:
    """Return an image (H, W, C) whose upper half is noise and whose lower half compresses well."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        image = rng.normal(0, 40, (height, width, channels)).astype(dtype)
        image[height // 2 :] = np.round(image[height // 2 :] / 20)
        return image
    image = rng.integers(0, np.iinfo(dtype).max + 1, (height, width, channels)).astype(dtype)
    image[height // 2 :] = image[height // 2 :] // 200 * 200
    return image


def in_clear_order(image: np.ndarray) -> Any:
    """Return an image (H, W, C) as a tensor (C, H, W) if the array might be one (C, H, W) by its sizes."""
    height, width, _ = image.shape
    return torch.from_numpy(image.transpose(2, 0, 1).copy()) if height < width else image


def write(path: Path, samples: Sequence[dict[str, np.ndarray]], kind: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        if kind == "tiled":
            patch.setattr(codecs, "TILED_ABOVE_NBYTES", 0)
            patch.setattr(layout, "TILE_SIZE", 16)  # many tiles in small images
        fields = dict.fromkeys(samples[0], lmdbloader.fields.Image())
        samples = [{name: in_clear_order(image) for name, image in sample.items()} for sample in samples]
        lmdbloader.write(samples, path, fields=fields, codec="raw" if kind == "raw" else "lz4")
    return path


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives the reader of a dataset, and its images (C, H, W), written when first asked for."""
    folder = tmp_path_factory.mktemp("pipeline")
    made: dict[Any, Any] = {}

    def get(layout: str, channels: int, dtype: Any, kind: str) -> tuple[Reader, list[dict[str, np.ndarray]]]:
        key = (layout, channels, np.dtype(dtype).name, kind)
        if key not in made:
            samples = [
                {
                    name: picture(*size, channels, dtype, [i, k])
                    for k, (name, size) in enumerate(LAYOUTS[layout].items())
                }
                for i in range(COUNT)
            ]
            reader = Reader(write(folder / "-".join(map(str, key)), samples, kind))
            planes = [{name: image.transpose(2, 0, 1) for name, image in s.items()} for s in samples]
            made[key] = reader, planes
        return made[key]

    return get


def guarded_scratch(pipeline: Pipeline) -> tuple[Scratch, list[Any]]:
    """Return working memory, and the arrays for resizing in it, each with a guard behind it."""
    prepare, guarded = pipeline._prepare, list[Any]()

    def prepare_guarded(scratch: Scratch) -> Any:
        guarded[:] = [np.full(len(part) + GUARD, MARK, part.dtype) for part in scratch.resize]
        scratch.resize = tuple(part[:-GUARD] for part in guarded)
        return prepare(scratch)

    with patch.object(pipeline, "_prepare", prepare_guarded):
        return pipeline.scratch(), guarded


def _on_a_cache_line(nbytes: int) -> np.ndarray:
    memory = np.full(nbytes + GUARD, MARK, np.uint8)
    return memory[-memory.ctypes.data % GUARD :][:nbytes]


def read(pipeline: Pipeline, rows: Sequence[int], samples: Sequence[int], epoch: int = 0, batch_size: int = 2) -> Any:
    """Return the images of each field, (n, C, H, W); all memory that is written to is between guards."""
    scratch, guarded = guarded_scratch(pipeline)
    num_batches = -(-len(rows) // batch_size)
    sizes = [batch_size * output.nbytes for output in pipeline.outputs]
    memory = [[_on_a_cache_line(GUARD + size + GUARD) for size in sizes] for _ in range(num_batches)]
    at = np.array([[m.ctypes.data + GUARD for m in batch] for batch in memory], np.int64).reshape(num_batches, -1)
    pipeline.read(np.array(rows, np.int64), np.array(samples, np.int64), epoch, at, batch_size, scratch)
    found: list[Any] = [[] for _ in sizes]
    for number, batch in enumerate(memory):
        count = min(batch_size, len(rows) - number * batch_size)
        for f, m in enumerate(batch):
            end = GUARD + count * pipeline.outputs[f].nbytes
            assert (m[:GUARD] == MARK).all(), "written before the batch"
            assert (m[end:] == MARK).all(), "written behind the batch"
            output = pipeline.outputs[f]
            arrays = m[GUARD:end].copy().view(output.values.carrier).reshape(count, *output.stored_shape)
            found[f].append(output.images(torch.from_numpy(arrays)))
    assert all((array[-GUARD:] == MARK).all() for array in guarded), "written behind the scratch"
    return [torch.cat(parts) for parts in found]


def compare(found: torch.Tensor, candidates: Sequence[Expected]) -> None:
    """Check one image of a field against the possible results; resizes may take the two directions in either order."""
    errors = []
    for expected in candidates:
        assert found.dtype == expected.dtype
        assert tuple(found.shape) == expected.values.shape
        wanted, got = expected.values, found.double().numpy()
        if found.dtype.is_floating_point:
            wanted = torch.from_numpy(wanted).float().to(found.dtype).double().numpy()
            info = torch.finfo(found.dtype)
            got, wanted = np.clip(got, info.min, info.max), np.clip(wanted, info.min, info.max)  # of infinity
            ulps = 2 if found.dtype == torch.float32 else 1
            room = ulps * np.maximum(np.abs(expected.values) * info.eps, info.smallest_normal * info.eps)
        else:
            room = np.zeros_like(wanted)
        errors.append((np.abs(got - wanted) - room - expected.slack).max(initial=0.0))
    assert min(errors) <= 0, f"off by {min(errors)}"


def check(
    reader: Reader, images: Any, transforms: Any, *, seed: int = 0, epoch: int = 0, channels_last: bool = False,
    by_descriptor: bool = False, streams: bool = False,
) -> None:  # fmt: skip
    names = tuple(images[0])
    reader = reader.with_io("pread" if by_descriptor else "mmap")
    pipeline = Pipeline(reader, names, transforms, seed=seed, channels_last=channels_last)
    if streams:
        pipeline.stream()
    rows, samples = [1, 0, 2, 1, 2], [5, 0, 2**40, 1, 7]
    found = read(pipeline, rows, samples, epoch)
    for k, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        either = [apply_all(images[row], transforms, seed, epoch, sample, columns_first=c) for c in (False, True)]
        for f, name in enumerate(names):
            if channels_last:
                assert found[f].permute(0, 2, 3, 1).is_contiguous()
            compare(found[f][k], [candidate[name] for candidate in either])


@settings(max_examples=150)
@given(st.data())
def test_any_list_of_transforms_equals_the_plain_definition(datasets: Any, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    channels, dtype = data.draw(st.sampled_from([1, 2, 3, 5, 64])), data.draw(st.sampled_from(DTYPES))
    reader, images = datasets(layout, channels, dtype, data.draw(st.sampled_from(KINDS)))
    transforms = data.draw(lists_of_transforms(LAYOUTS[layout], channels, dtype))
    check(
        reader, images, transforms, seed=data.draw(st.sampled_from([0, 1, 2**64 - 1])),
        epoch=data.draw(st.integers(0, 3)), channels_last=data.draw(st.booleans()),
        by_descriptor=data.draw(st.booleans()), streams=data.draw(st.booleans()),
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (7, 7), (15, 17), (16, 16), (33, 18), (17, 40)])
def test_windows_of_any_size_in_all_eight_ways(datasets: Any, size: Any, dtype: Any, kind: str) -> None:
    # Larger than the image in one direction or both: the outside is filled.
    square = max(size)
    reader, images = datasets("one", 3, dtype, kind)
    fill = (1, 22, 133)
    turned = [T.RandomCrop(square, padding=17, fill=fill), T.RandomDihedral(), T.RandomCrop(size)]
    samples = list(range(40))
    for values in ([], [T.ToDtype(torch.float32, scale=True)]):
        for channels_last, streams in ((False, False), (True, False), (False, True)):
            pipeline = Pipeline(reader, ["image"], turned + values, channels_last=channels_last)
            if streams:
                pipeline.stream()
            (found,) = read(pipeline, [s % COUNT for s in samples], samples, batch_size=16)
            for s in samples:
                expected = apply_all(images[s % COUNT], turned + values, 0, 0, s, columns_first=False)
                compare(found[s], [expected["image"]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "size", [(1, 48), (48, 1), (16, 16), (17, 15), (31, 33), (32, 48), (64, 65), (96, 96), (37, 100), (130, 17)]
)
def test_windows_inside_of_an_image_in_all_eight_ways(datasets: Any, size: tuple[int, int], dtype: Any) -> None:
    reader, images = datasets("large", 3, dtype, "raw")
    turned = [T.RandomCrop(131), T.RandomDihedral(), T.RandomCrop(size)]
    samples = list(range(32))
    for values in ([], [T.ToDtype(torch.float32, scale=True)]):
        expected = [apply_all(images[0], turned + values, 0, 0, s, columns_first=False)["image"] for s in samples]
        for streams in (False, True):
            pipeline = Pipeline(reader, ["image"], turned + values)
            if streams:
                pipeline.stream()
            (found,) = read(pipeline, [0] * len(samples), samples, batch_size=5)
            for s in samples:
                compare(found[s], [expected[s]])


@pytest.mark.parametrize("transforms", [[], [T.ToDtype(torch.float32, scale=True)]], ids=["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_small_size_are_intact(tmp_path: Path, channels: int, transforms: list[Any]) -> None:
    for height in (1, 2, 5, 8, 15, 16):
        samples = [{"image": picture(height, width, channels, np.uint8, width)} for width in (1, 3, 8, 15, 16, 17, 40)]
        reader = Reader(write(tmp_path / f"{height}", samples, "raw"))
        for row, sample in enumerate(samples):
            one = Pipeline(reader, ["image"], transforms, rows=np.array([row]))
            (found,) = read(one, [row], [0])
            wanted = np.broadcast_to(sample["image"].transpose(2, 0, 1), found[0].shape)
            np.testing.assert_allclose(found[0], wanted / 255 if transforms else wanted, rtol=1e-6)


@pytest.mark.parametrize("side", [15, 16, 64, 70])
@pytest.mark.parametrize("transforms", [[], [T.ToDtype(torch.float32, scale=True)]], ids=["uint8", "float32"])
def test_any_damaged_byte_is_found_in_all_eight_ways(tmp_path: Path, side: int, transforms: list[Any]) -> None:
    path = write(tmp_path / "d", [{"image": picture(side, side, 3, np.uint8, 0)}], "raw")
    nbytes, where = 3 * side * side, int(Reader(path).index.columns["image.offset"][0])
    for at in sorted({0, 239, 240, 1023, 1024, nbytes // 2, nbytes - 65, nbytes - 1} & set(range(nbytes))):
        with open(path / DATA_FILE, "r+b") as file:
            file.seek(where + at)
            was = file.read(1)
            file.seek(where + at)
            file.write(bytes([was[0] ^ 4]))
        for ways in ([], [T.RandomDihedral()], [T.RandomCrop(min(side, 16)), T.RandomDihedral()]):
            for streams in (False, True):
                pipeline = Pipeline(Reader(path), ["image"], ways + transforms)
                if streams:
                    pipeline.stream()
                for sample in range(8):
                    with pytest.raises(CorruptError, match="checksum"):
                        read(pipeline, [0], [sample])
        with open(path / DATA_FILE, "r+b") as file:
            file.seek(where + at)
            file.write(was)
    assert len(read(Pipeline(Reader(path), ["image"], transforms), [0], [0])[0]) == 1


@pytest.mark.parametrize("transforms", [[], [T.ToDtype(torch.float32, scale=True)]], ids=["uint8", "float32"])
@pytest.mark.parametrize("side", [1, 5, 8, 21, 37, 64])
def test_batches_past_the_caches_are_bit_for_bit_equal(tmp_path: Path, side: int, transforms: list[Any]) -> None:
    samples = [{"image": picture(side, side, 3, np.uint8, i)} for i in range(COUNT)]
    pipeline = Pipeline(Reader(write(tmp_path / "d", samples, "raw")), ["image"], transforms)
    expected = read(pipeline, [1, 0, 2, 1], [0, 1, 2, 3])
    pipeline.stream()
    assert all(map(torch.equal, read(pipeline, [1, 0, 2, 1], [0, 1, 2, 3]), expected))


@pytest.mark.parametrize("resize", [T.Resize((10, 33)), T.Resize((50, 9), "bicubic"), T.RandomResizedCrop((9, 12))])
@pytest.mark.parametrize("padding", [0, 3])
def test_a_turned_image_is_resized_and_turned_again(datasets: Any, padding: int, resize: T.Transform) -> None:
    reader, images = datasets("square", 3, np.uint8, "tiled")
    first = T.RandomCrop(20, padding=padding, fill=77)
    transforms = [first, T.RandomDihedral(), resize, T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    (found,) = read(Pipeline(reader, ["image"], transforms), [0] * 48, list(range(48)))
    for s in range(48):
        compare(found[s], [apply_all(images[0], transforms, 0, 0, s, columns_first=c)["image"] for c in (False, True)])


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_different_shapes_come_out_alike(tmp_path: Path, kind: str) -> None:
    sizes = [(50, 12), (9, 70), (33, 34)]
    samples = [{"image": picture(*size, 3, np.uint16, i)} for i, size in enumerate(sizes)]
    planes = [{"image": s["image"].transpose(2, 0, 1)} for s in samples]
    reader = Reader(write(tmp_path / "d", samples, kind))
    for first in (T.RandomCrop(9), T.CenterCrop((9, 12)), T.RandomResizedCrop(21, interpolation="bicubic"),
                  T.Resize((40, 41)), T.RandomCrop(80, padding=40, fill=9)):  # fmt: skip
        check(reader, planes, [first, T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])


def test_choices_depend_on_seed_epoch_and_sample_only(datasets: Any) -> None:
    reader, _ = datasets("two", 3, np.uint8, "tiled")
    transforms = [T.RandomCrop(8), T.RandomDihedral(), T.ColorJitter(0.5, 0.5, 0.5), T.RandomErasing(p=0.5)]

    def images(rows: list[int], samples: list[int], seed: int = 4, epoch: int = 2, batch_size: int = 3) -> torch.Tensor:
        return read(Pipeline(reader, ["lr", "hr"], transforms, seed=seed), rows, samples, epoch, batch_size)[1]

    samples = [10, 11, 12, 10, 500]
    whole = images([0, 1, 2, 0, 1], samples)
    assert torch.equal(whole[0], whole[3])
    backwards = images([1, 0, 2, 1, 0], samples[::-1], batch_size=2)
    assert torch.equal(whole, backwards.flip(0))
    for k, row in enumerate([0, 1, 2, 0, 1]):
        assert torch.equal(images([row], [samples[k]], batch_size=1)[0], whole[k])
    assert not torch.equal(images([0, 1, 2, 0, 1], samples, seed=5), whole)
    assert not torch.equal(images([0, 1, 2, 0, 1], samples, epoch=3), whole)
    assert not torch.equal(images([0], [13]), whole[:1])


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of four scales, whose pixels are (row, column, 0)."""
    samples = []
    for height, width in ((60, 36), (36, 48), (84, 72)):
        hr = np.zeros((height, width, 3), np.uint16)
        hr[..., 0], hr[..., 1] = np.mgrid[:height, :width]
        samples.append({**{f"lr{s}": hr[: height // s, : width // s] for s in (2, 3, 4)}, "hr": hr})
    return write(tmp_path_factory.mktemp("scales") / "d", samples, "raw")


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.sampled_from([12, 24, 36]), st.sampled_from([12, 24, 36])),
    st.sampled_from([T.RandomCrop, T.CenterCrop]),
    st.permutations(["lr2", "lr3", "lr4", "hr"]),
    st.integers(0, 2**32),
)
def test_windows_of_several_scales_are_the_same(
    scales: Path, size: tuple[int, int], crop: Any, names: list[str], seed: int
) -> None:
    turns = [T.RandomDihedral()] if size[0] == size[1] else [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    dataset = lmdbloader.LMDBDataset(scales, fields=names)
    for batch in lmdbloader.Loader(dataset, 3, shuffle=True, seed=seed, transforms=[crop(size), *turns], repeat=4):
        hr = batch.hr.to(torch.int64)
        assert hr.shape[2:] == size
        for scale in (2, 3, 4):
            found = getattr(batch, f"lr{scale}").to(torch.int64)
            for corner in (0, scale - 1):
                assert torch.equal(hr[:, :, corner::scale, corner::scale] // scale, found)


@pytest.mark.parametrize("by_descriptor", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_payload_is_refused_by_name(tmp_path: Path, kind: str, by_descriptor: bool) -> None:
    samples = [{"lr": picture(20, 20, 3, np.uint8, i), "hr": picture(40, 40, 3, np.uint8, i)} for i in range(5)]
    path = write(tmp_path / "d", samples, kind)
    arrays = Reader(path).index.arrays
    at = int(arrays["hr.offset"][3]) + int(arrays["hr.stored_nbytes"][3]) // 2
    with (path / DATA_FILE).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))
    reader = Reader(path, io="pread" if by_descriptor else "mmap")
    for transforms in ([], [T.RandomDihedral(), T.ToDtype(torch.float32, scale=True)]):
        pipeline = Pipeline(reader, ["lr", "hr"], transforms)
        read(pipeline, [0, 1, 2, 4], [0, 1, 2, 4])
        with pytest.raises(CorruptError, match=r"field 'hr' of sample 3: .*checksum"):
            read(pipeline, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


UNSUITED = [
    ("two", [T.RandomCrop(42)], r"of sample 0 \(lr 20x18, hr 40x36\): a crop or a Cutout is larger than the image"),
    ("two", [T.CenterCrop(42)], "a crop or a Cutout is larger than the image"),
    ("two", [T.Cutout((2, 38))], "a crop or a Cutout is larger than the image"),
    ("two", [T.RandomDihedral()], "RandomDihedral needs square images"),
    ("two", [T.RandomCrop(7)], "not a multiple of the scale"),
    ("two", [T.RandomCrop(8, padding=3)], "not a multiple of the scale"),
    ("two", [T.RandomTranslate(1)], "not a multiple of the scale"),
    ("two", [T.Resize(7)], "not a multiple of the scale"),
    ("two", [T.RandomResizedCrop(9)], "not a multiple of the scale"),
    ("two", [T.RandomCrop(6, fields=("lr",)), T.RandomCrop(4)], "not a whole multiple of the other"),
    ("two", [T.CenterCrop(6, fields=("lr",)), T.RandomErasing()], "not a whole multiple of the other"),
]


@pytest.mark.parametrize(("layout", "transforms", "message"), UNSUITED)
def test_transforms_that_do_not_suit_the_images_are_refused(
    datasets: Any, layout: str, transforms: Any, message: str
) -> None:
    reader, images = datasets(layout, 3, np.uint8, "raw")
    with pytest.raises(OptionError, match=message):
        Pipeline(reader, list(images[0]), transforms)


def test_images_of_different_kinds_are_refused(tmp_path: Path) -> None:
    def reader(name: str, *images: np.ndarray) -> Reader:
        return Reader(write(tmp_path / name, [{"image": image} for image in images], "raw"))

    rgb, deep = (np.zeros((9, 9, 3), t) for t in (np.uint8, np.uint16))
    with pytest.raises(OptionError, match="holds images of uint8 with 3 and of uint16 with 3"):
        Pipeline(reader("bits", rgb, deep), ["image"])
    mixed = reader("shapes", rgb, np.zeros((9, 12, 3), np.uint8), np.zeros((5, 9, 3), np.uint8))
    with pytest.raises(OptionError, match="different shapes, 5 to 9 rows and 9 to 12 columns"):
        Pipeline(mixed, ["image"], [T.RandomHorizontalFlip()])
    assert Pipeline(mixed, ["image"], rows=np.array([0, 0])).outputs[0].shape == (3, 9, 9)
    assert Pipeline(mixed, ["image"], [T.CenterCrop((5, 9))]).outputs[0].shape == (3, 5, 9)
    with pytest.raises(OptionError, match=r"sample 2 .*5x9.*: a crop or a Cutout is larger"):
        Pipeline(mixed, ["image"], [T.CenterCrop(7)])
    with pytest.raises(OptionError, match="5 to 9 rows"):
        Pipeline(mixed, ["image"], [T.RandomTranslate(3)])


RESIZES = [
    [T.RandomResizedCrop((3, 200))], [T.RandomResizedCrop((200, 3), interpolation="bicubic")], [T.Resize((200, 5))],
    [T.Resize((1, 300), "bicubic")], [T.Resize(9), T.CenterCrop(9)], [T.CenterCrop(1), T.Resize((80, 90))],
    [T.Resize((70, 70)), T.RandomDihedral(), T.RandomResizedCrop((4, 90)), T.Resize((130, 2))],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("transforms", RESIZES)
def test_resizing_stays_inside_its_working_memory(tmp_path: Path, dtype: Any, transforms: Any) -> None:
    sizes = [(1, 400), (400, 1), (30, 30), (7, 90)]
    reader = Reader(write(tmp_path / "d", [{"image": picture(*size, 3, dtype, size)} for size in sizes], "raw"))
    _read_guarded(reader, transforms)


@pytest.mark.parametrize("transforms", [[T.RandomResizedCrop((3, 200))], [T.Resize((200, 5))]])
def test_resizing_an_image_that_is_stored_turned_stays_inside_its_working_memory(
    tmp_path: Path, transforms: Any
) -> None:
    (tmp_path / "src").mkdir()
    for orientation in (1, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo = Image.fromarray(picture(400, 12, 3, np.uint8, orientation))
        photo.save(tmp_path / "src" / f"{orientation}.jpg", exif=exif, quality=90)
    lmdbloader.convert(tmp_path / "src", tmp_path / "d", workers=1)
    reader = Reader(tmp_path / "d")
    assert (reader.index.arrays["image.codec"] == CODEC_JPEG).all()
    _read_guarded(reader, transforms)


def _read_guarded(reader: Reader, transforms: Any) -> None:
    """Read all images with guards behind every part of the memory for resizing."""
    pipeline = Pipeline(reader, ["image"], transforms)
    rows = np.arange(len(reader), dtype=np.int64)
    out = np.empty(pipeline.outputs[0].nbytes * len(rows), np.uint8)
    scratch, guarded = guarded_scratch(pipeline)
    for epoch in range(20):
        pipeline.read(rows, rows, epoch, np.array([[out.ctypes.data]]), len(rows), scratch)
        assert all((part[-GUARD:] == MARK).all() for part in guarded)
    assert any((part[:-GUARD] != MARK).any() for part in guarded), "the guarded memory is not used"


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of images, and arrays of their size or not."""
    image = np.zeros((12, 9, 3), np.uint8)
    shapes = {"depth": (12, 9), "planes": (2, 12, 9), "flow": (12, 9, 2), "turned": (9, 12), "vector": (12,)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("arrays") / "d"
    lmdbloader.write([{"image": image, "half": image[::2, ::3].copy(), **arrays}] * 5, path)
    return path


@pytest.mark.parametrize("name", ["depth", "flow"])
@pytest.mark.parametrize("moving", [T.RandomCrop(4), T.RandomHorizontalFlip(), T.Resize((6, 6))], ids=repr)
def test_an_array_that_moving_images_would_leave_behind_is_refused(arrays: Path, name: str, moving: Any) -> None:
    dataset = lmdbloader.LMDBDataset(arrays, fields=["image", name])
    kind = type(moving).__name__
    message = rf"field '{name}' holds arrays of the size of 'image', which {kind}\("
    for use in (
        lambda: dataset.transformed([moving]),
        lambda: lmdbloader.Loader(dataset, 2, shuffle=True, transforms=[T.ColorJitter(0.1), moving]),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            use()
        assert f"name the fields that do: {kind}(..., fields=('image',))." in str(caught.value)
