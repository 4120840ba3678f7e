"""`lmdbloader.write`: samples come back in order; a sample that does not fit is named, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image as PilImage
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, Subset

import lmdbloader
from lmdbloader import LMDBDataset, fields, write
from lmdbloader.base import system
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.fields import Array, Bytes, Float, Int, Json, Text
from lmdbloader.store.writing.work import own_tag

FEW = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 7, 3)).astype(np.uint8)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def written(samples: Any, **options: Any) -> list[Any]:
    """Write samples and return them as they are read back."""
    with tempfile.TemporaryDirectory() as folder:
        write(samples, Path(folder) / "out", **options)
        assert os.listdir(folder) == ["out"]
        return list(LMDBDataset(Path(folder) / "out"))


def kinds(path: Path) -> dict[str, str]:
    return {f.name: f.kind for f in LMDBDataset(path).fields.values()}


# --- round trips ---

NUMBERS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@FEW
@given(st.lists(hnp.arrays(NUMBERS, SHAPES), min_size=1, max_size=4), st.sampled_from(["raw", "lz4", "auto"]))
def test_arrays_of_any_dtype_and_shape(arrays: list[np.ndarray[Any, Any]], codec: str) -> None:
    found = written([{"x": a} for a in arrays], fields={"x": Array()}, codec=codec)
    for sample, array in zip(found, arrays, strict=True):
        back = sample.x.numpy()
        assert back.dtype == array.dtype.newbyteorder("=") and back.shape == array.shape
        assert back.tobytes() == array.astype(back.dtype).tobytes()  # bit for bit, NaNs included


@FEW
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "number": st.integers(-(2**63), 2**63 - 1),
                "ratio": st.floats(width=64),
                "text": st.text(),
                "data": st.binary(max_size=60),
                "more": st.recursive(
                    st.none()
                    | st.booleans()
                    | st.integers()
                    | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                    max_leaves=6,
                ),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_plain_values(samples: list[dict[str, Any]]) -> None:
    kind = {"number": Int(), "ratio": Float(), "text": Text(), "data": Bytes(), "more": Json()}
    found = written(samples, fields=kind)
    assert len(found) == len(samples)
    for sample, given_ in zip(found, samples, strict=True):
        assert sample._fields == tuple(samples[0])
        assert sample.ratio == given_["ratio"] or (math.isnan(sample.ratio) and math.isnan(given_["ratio"]))
        assert math.copysign(1, sample.ratio) == math.copysign(1, given_["ratio"]) or math.isnan(sample.ratio)
        for name in ("number", "text", "data", "more"):
            assert getattr(sample, name) == given_[name]
            assert type(getattr(sample, name)) is type(given_[name])


@FEW
@given(
    st.lists(
        hnp.arrays(
            st.sampled_from([np.uint8, np.uint16]),
            st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_images_of_any_size_depth_and_channels(images: list[np.ndarray[Any, Any]]) -> None:
    for sample, image in zip(written([{"image": i} for i in images]), images, strict=True):
        assert sample.image.dtype == (torch.uint8 if image.dtype == np.uint8 else torch.uint16)
        np.testing.assert_array_equal(sample.image.numpy(), np.moveaxis(image, 2, 0))


@pytest.mark.parametrize("codec", ["auto", "raw", "lz4"])
def test_small_large_and_jpeg_images_keep_their_order(out: Path, codec: str) -> None:
    # From 600 bytes on they become JPEGs, unless they have 16 bits; above 256 KiB they are cut into tiles.
    sides, bits = (5, 400, 20, 6, 400, 7), (8, 16, 8, 16, 16, 8)
    images = [np.full((sides[i], sides[i], 3), 9 * i, f"uint{bits[i]}") for i in range(6)]
    write([{"image": image} for image in images], out, codec=codec, write_mode="smart", smart_threshold=600)
    (field,) = lmdbloader.info(out).fields
    pixels = "raw" if codec == "raw" else "lz4"
    assert field.codecs == {pixels: 3, "tiles": 2, "jpeg": 1}
    for sample, image in zip(LMDBDataset(out), images, strict=True):
        assert sample.image.shape == (3, *image.shape[:2])
        assert (sample.image.numpy() == image[0, 0, 0]).all()


def test_what_a_value_is_taken_for(out: Path) -> None:
    sample = {
        "rgb": PIXELS,
        "grey": PIXELS[:, :, 0],
        "grey_too": PIXELS[:, :, :1].astype(np.uint16),
        "chw": torch.from_numpy(PIXELS).permute(2, 0, 1),
        "pil": PilImage.fromarray(PIXELS),
        "four_channels": np.zeros((5, 7, 4), np.uint8),
        "floats": np.zeros((5, 7, 3), np.float32),
        "vector": np.zeros(5, np.uint8),
        "tensor_2d": torch.zeros(5, 7, dtype=torch.uint8),
        "tensor_hwc": torch.zeros(5, 7, 3, dtype=torch.uint8),
        "scalar_tensor": torch.tensor(2.5),
        "number": np.int32(-3),
        "flag": True,
        "numpy_flag": np.bool_(False),
        "ratio": np.float32(0.5),
        "text": "ö",
        "data": bytearray(b"\0\xff"),
        "nothing": None,
        "things": [1, {"a": None}],
    }
    write([sample], out)
    images = ("rgb", "grey", "grey_too", "chw", "pil")
    arrays = ("four_channels", "floats", "vector", "tensor_2d", "tensor_hwc", "scalar_tensor")
    expected = dict.fromkeys(images, "image") | dict.fromkeys(arrays, "array")
    expected |= {"number": "int", "flag": "json", "numpy_flag": "json", "ratio": "float", "text": "text"}
    expected |= {"data": "bytes", "nothing": "json", "things": "json"}
    assert kinds(out) == expected
    (back,) = LMDBDataset(out)
    assert back._fields == tuple(sample)
    for name in ("rgb", "chw", "pil"):
        np.testing.assert_array_equal(getattr(back, name).numpy(), np.moveaxis(PIXELS, 2, 0))
    np.testing.assert_array_equal(back.grey.numpy(), PIXELS[None, :, :, 0])
    assert back.grey_too.dtype == torch.uint16
    assert back.scalar_tensor.shape == () and back.scalar_tensor == 2.5
    assert (back.number, back.flag, back.numpy_flag, back.ratio) == (-3, True, False, 0.5)
    assert (back.text, back.data, back.nothing, back.things) == ("ö", b"\0\xff", None, [1, {"a": None}])


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 6, 5), (6, 5, 4)])
def test_an_image_of_another_shape_is_an_array_with_a_warning(out: Path, shape: tuple[int, ...]) -> None:
    image = np.zeros(shape, np.uint8)
    with pytest.warns(UserWarning, match="field 'hr'"):  # flips of lr alone would part the pair
        write([{"lr": PIXELS, "hr": image}], out)
    assert kinds(out) == {"lr": "image", "hr": "array"}
    write([{"lr": PIXELS, "hr": image}], out, fields={"lr": None, "hr": Array()}, overwrite=True)


# --- who owns the memory (tests/faults/reused.py has the many kinds of it) ---


def test_a_buffer_that_is_filled_again_gives_each_sample_as_it_was(out: Path) -> None:
    buffer, more, sample = np.empty((8, 8, 3), np.uint8), {"at": [0]}, dict[str, Any]()

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(200):
            buffer[:] = more["at"][0] = number
            sample.update(image=buffer, more=more, label=number)
            yield sample
        buffer[:] = 255

    write(samples(), out)
    for number, found in enumerate(LMDBDataset(out)):
        assert (found.image == number).all()
        assert found.more == {"at": [number]} and found.label == number


# --- whatever samples come from ---


class Pair(NamedTuple):
    image: Any
    label: int


class Indexed(Dataset[Any]):
    """A dataset as users of torch write it: a length and integer indices."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index * 10


class Endless(IterableDataset[Any]):
    """An IterableDataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(Indexed()[i] for i in range(3))


class Liar(Endless):
    """An iterable whose length is wrong."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize(
    "samples",
    [
        [Indexed()[i] for i in range(3)],
        (Pair(*Indexed()[i]) for i in range(3)),
        ({"image": i, "label": n} for i, n in (Indexed()[i] for i in range(3))),
        Indexed(),
        Subset(Indexed(), [0, 1, 2]),
        DataLoader(Indexed(), batch_size=None),
        ChainDataset([Endless()]),  # whose __len__ raises TypeError
        Liar(-3),
        Liar(10**15),
    ],
    ids=[
        "tuples", "generator", "dicts", "Dataset", "Subset", "DataLoader", "ChainDataset", "negative", "too long",
    ],
)  # fmt: skip
def test_samples_of_every_origin_keep_their_order(samples: Any) -> None:
    found = written(samples, fields=("image", "label"))
    assert [(int(s.image[0, 0, 0]), int(s.label)) for s in found] == [(0, 0), (1, 10), (2, 20)]
    assert found[0]._fields == ("image", "label")


def test_a_dataset_can_be_written_from_another_one_and_over_it(out: Path) -> None:
    samples = [{"image": PIXELS.astype(np.uint16) + i, "name": f"n{i}"} for i in range(5)]
    write(samples, out)
    write(LMDBDataset(out)[::-1], out, overwrite=True)
    assert [s.name for s in LMDBDataset(out)] == ["n4", "n3", "n2", "n1", "n0"]
    np.testing.assert_array_equal(LMDBDataset(out)[0].image.numpy(), np.moveaxis(samples[4]["image"], 2, 0))


def test_tuples_in_json_come_back_as_lists() -> None:
    assert written([{"x": {"size": (3, (4,)), "pair": Pair(0, 1)}}])[0].x == {"size": [3, [4]], "pair": [0, 1]}


def test_many_samples_span_chunks_and_records(out: Path) -> None:
    done: list[int] = []
    total = 4096 * 2 + 5
    result = write(({"i": i, "x": np.full(50, i)} for i in range(total)), out, progress=done.append)
    assert result.num_samples == sum(done) == total and len(done) > 1
    dataset = LMDBDataset(out)
    assert dataset.table["i"].to_pylist() == list(range(total))
    assert all(int(dataset[i].x[49]) == i for i in range(0, total, 301))
    assert lmdbloader.verify(out).is_sound


# --- codecs ---


def codecs(path: Path) -> dict[str, str | None]:
    return {f.name: f.codec for f in LMDBDataset(path).fields.values()}


def test_codecs_field_by_field(out: Path) -> None:
    flat, rough = np.zeros((40, 40, 3), np.uint8), RNG.integers(0, 256, (40, 40, 3)).astype(np.uint8)
    sample = {"flat": flat, "rough": rough, "forced": rough, "plain": flat, "label": 1}
    write([sample] * 3, out, codec={"forced": "lz4", "plain": "raw"})
    assert codecs(out) == {"flat": "lz4", "rough": "raw", "forced": "lz4", "plain": "raw", "label": None}
    for codec in ("raw", "lz4"):
        write([sample], out, codec=codec, overwrite=True)
        assert set(codecs(out).values()) == {codec, None}


# --- refusals ---


def refused(out: Path, samples: Any, message: str, **options: Any) -> None:
    with pytest.raises(OptionError, match=message):
        write(samples, out, **options)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (PIXELS, np.zeros((4, 4, 4), np.uint8), "an image of whole numbers with 4 channels, and the first"),
        (PIXELS, PIXELS.astype(np.float32), "an image of float32, gray or RGB, and the first sample"),
        (PIXELS, PIXELS.astype(np.float64), r"\(5, 7, 3\) float64; expected pixels of uint8, .*astype\('float32'\)"),
        (PIXELS, np.zeros((0, 7, 3), np.uint8), r"\(0, 7, 3\) uint8"),
        (PIXELS, PilImage.fromarray(PIXELS).convert("P"), "a PIL image of mode P; expected L, RGB, I;16 or F"),
        (np.zeros(3), np.ma.masked_equal([1, 2, 3], 2), "an array with masked values. Fill them"),
        (PIXELS, np.ma.masked_less(PIXELS, 9), "an array with masked values. Fill them"),
        (np.zeros(3), torch.zeros(3, dtype=torch.bfloat16), "a tensor of torch.bfloat16 that NumPy cannot hold"),
        (1, 2.5, "2.5 where the first sample had int"),
        (1, True, "True where the first sample had int"),
        (1, None, r"None where the first sample had int.*float\('nan'\).*fields\.Float\(\)"),
        (1.5, None, r"None where the first sample had float.*float\('nan'\) for a missing number"),
        (1.5, 2**53 + 1, r"9007199254740993 would be rounded to 9007199254740992\.0\. .*fields\.Int\(\)"),
        (1.5, np.uint64(2**64 - 1), "would be rounded to 1.8446744073709552e"),
        ("x", "\ud800", "text that is not valid Unicode"),
        (b"x", "x", "str where the first sample had bytes"),
        ({"a": 1}, {"a": math.nan}, "cannot be stored"),
        ({"a": 1}, {1: "int", "1": "str"}, "the key 1 is of type int"),
        ({"a": 1}, [{1.5: 0}], "the key 1.5 is of type"),
        ({"a": 1}, {"a": ["\ud800"]}, "'.ud800'.* cannot be stored .*surrogates not allowed"),
    ],
)
def test_a_later_sample_that_does_not_fit_is_named(out: Path, first: Any, later: Any, message: str) -> None:
    samples = [{"n": 0, "x": first}] * 2 + [{"n": 0, "x": later}]
    refused(out, iter(samples), rf"^sample 2, field 'x': .*{message}")


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "CMYK", "I"])
def test_odd_pil_modes_are_refused_clearly(out: Path, mode: str) -> None:
    picture = PilImage.new(mode, (4, 4))
    refused(out, [{"x": picture}], rf"sample 0, field 'x': a PIL image of mode {mode}; expected L, RGB")


def test_json_that_only_looks_odd_is_stored() -> None:
    values = ["\U0001f600 \\ud800 \\\\ud800", {"digits": "1" * 5000}, [10**4299, -(10**4299)], 1e308, "9" * 4300 + "e"]
    assert [s.x for s in written([{"x": value} for value in values], fields={"x": Json()})] == values


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([], {}, r"there is nothing to write: `samples` is empty"),
        ([5], {}, "sample 0 is of type int: expected a dict, a named tuple or a tuple"),
        ([(1, 2)], {}, r"sample 0 is a plain tuple of 2 values: name them, for example fields=\('image', 'label'\)"),
        ([(1, 2)], {"fields": ("a",)}, "sample 0 has 2 values, but fields names 1: a"),
        ([(1, 2), (1,)], {"fields": ("a", "b")}, "sample 1 has 1 values, but fields names 2: a, b"),
        ([{"a": 1}, {"b": 1}], {}, "sample 1 has the fields b; the first one had a"),
        ([{"a": 1}], {"fields": {"a": "image"}}, r"fields\['a'\] is 'image': expected Image\(\)"),
        ([{"class": 1}], {}, "field name 'class': expected a Python identifier"),
        ([{"top": "a"}], {}, "field name 'top'"),
        ([{"source": "a"}], {}, "sample 0 has only a source"),
        ([{1: 2}], {}, "sample 0 has a key 1 of type int: expected str"),
    ],
)
def test_samples_and_fields_that_make_no_sense(out: Path, samples: Any, options: Any, message: str) -> None:
    refused(out, samples, message, **options)


def test_an_exception_of_the_samples_own_passes_and_leaves_nothing(out: Path) -> None:
    def samples() -> Iterator[dict[str, int]]:
        yield from ({"x": i} for i in range(5000))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write(samples(), out)
    assert os.listdir(out.parent) == []


# --- the destination ---


def test_a_system_that_cannot_make_datasets_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write([{"x": 1}], out)
    monkeypatch.setattr(system, "CAN_FLUSH_FOLDERS", False)
    for call in (
        lambda: write([{"x": 1}], out.parent / "b"),
        lambda: lmdbloader.convert(out.parent, out.parent / "b"),
        lambda: lmdbloader.append(out, [out]),
        lambda: lmdbloader.stage(out, out.parent),
    ):
        with pytest.raises(OptionError, match=r"cannot be made on Windows"):
            call()


class Meanwhile:
    """Numbers; something happens when one of them is read."""

    def __init__(self, at: int = -1, happen: Callable[[], Any] = lambda: None, first: int = 0) -> None:
        self.at, self.happen, self.first = at, happen, first

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> dict[str, int]:
        if index == self.at:
            self.at = -1
            self.happen()
        return {"x": self.first + index}


@pytest.mark.parametrize(("at", "first"), [(2, 0), (2, 1), (4999, 0)], ids=["equal", "other", "unfinished"])
def test_of_two_at_once_the_later_one_changes_nothing(out: Path, at: int, first: int) -> None:
    # One that is done takes away what the other has written, which then cannot know whether it is equal.
    is_equal = at == 2 and first == 0
    with nullcontext() if is_equal else pytest.raises(DestinationError, match=r"out\.lmdb: a dataset is there already"):
        assert write(Meanwhile(at, lambda: write(Meanwhile(first=first), out)), out).num_samples == 5000
    assert [s.x for s in LMDBDataset(out)] == list(range(first, first + 5000))
    assert (out.parent / "out.lmdb.partial").exists() == (first == 1)


def test_an_iterator_that_is_refused_leaves_nothing(out: Path) -> None:
    def samples() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        write([{"x": 2}], out)
        yield {"x": 3}

    with pytest.raises(DestinationError, match=r"out\.lmdb: a dataset is there already"):
        write(samples(), out)
    assert [s.x for s in LMDBDataset(out)] == [2] and not (out.parent / "out.lmdb.partial").exists()


def test_what_another_process_has_begun_stays(out: Path) -> None:
    partial = out.parent / "out.lmdb.partial"

    def begin() -> None:
        shutil.rmtree(partial)
        partial.mkdir()

    with pytest.raises(DestinationError, match=r"out\.lmdb\.partial: another process"):
        write(Meanwhile(4999, begin), out)
    assert partial.exists() and not out.exists()

    def samples() -> Iterator[dict[str, int]]:
        yield from ({"x": i} for i in range(4999))
        begin()
        (partial / f"part-00000.{own_tag()}").mkdir()
        raise ValueError

    with pytest.raises(ValueError):
        write(samples(), out)
    assert partial.exists()


def test_an_existing_dataset_is_replaced_only_on_request_and_only_by_a_complete_one(out: Path) -> None:
    write([{"x": 1}], out)
    for samples in ([{"x": 1}], [{"x": 2}]):
        with pytest.raises(DestinationError, match="a dataset is there already"):
            write(samples, out)
    with pytest.raises(OptionError, match="sample 1"):
        write([{"x": 1}, {"x": "y"}], out, overwrite=True)
    assert [s.x for s in LMDBDataset(out)] == [1]
    write([{"x": 2}], out, overwrite=True)
    assert [s.x for s in LMDBDataset(out)] == [2]
    assert os.listdir(out.parent) == ["out.lmdb"]
    (out.parent / "thesis").mkdir()
    (out.parent / "thesis" / "mine.txt").touch()
    with pytest.raises(DestinationError, match="never replaced"):
        write([{"x": 1}], out.parent / "thesis", overwrite=True)


def test_the_labels_of_boxes_have_names_too(out: Path) -> None:
    sample = {"image": np.zeros((8, 8, 3), np.uint8), "boxes": [[1, 1, 5, 5]], "labels": [1], "scene": 0}
    kinds = {"boxes": fields.Boxes(), "labels": fields.Labels()}
    names = {"labels": ["cat", "dog"], "scene": ["street"]}
    write([sample], out, fields={"image": None, **kinds, "scene": None}, classes=names)
    assert LMDBDataset(out).classes == ("cat", "dog")
    assert {name: [c for c, _ in cs] for name, cs in lmdbloader.info(out).classes.items()} == names
    lmdbloader.extract(out, out.parent / "files")
    line = json.loads((out.parent / "files" / "samples.jsonl").read_text())
    assert (line["labels"], line["labels.class"], line["scene.class"]) == ([1], ["dog"], "street")


PLAIN = np.zeros((20, 30, 3), np.uint8)


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ({"boxes": [[1, 2, 8, 9]], "labels": [3]}, "'boxes' .*Boxes"),
        ({"bboxes": np.zeros((0, 4), np.float32)}, "'bboxes' .*Boxes"),
        ({"gt_bbox": [1, 2, 8, 9]}, "'gt_bbox' .*Boxes"),
        ({"boxes": []}, "'boxes' .*Boxes"),
        ({"keypoints": torch.zeros(17, 2)}, "'keypoints' .*Points"),
    ],
)
def test_boxes_and_points_that_would_not_move_are_refused(tmp_path: Path, sample: Any, line: str) -> None:
    with pytest.raises(OptionError, match=line):
        lmdbloader.write([{"image": PLAIN, **sample}], tmp_path / "d")
    assert not (tmp_path / "d").exists()
    name, value = next(iter(sample.items()))
    kind = fields.Json() if isinstance(value, list) else fields.Array()
    lmdbloader.write([{"image": PLAIN, **sample}], tmp_path / "d", fields={name: kind})
    assert lmdbloader.LMDBDataset(tmp_path / "d").fields[name].kind == kind.kind


def test_a_mask_of_0_and_255_is_warned_of(tmp_path: Path) -> None:
    mask = np.zeros((20, 30), np.uint8)
    mask[3:9] = 255
    with pytest.warns(UserWarning, match="masks of 0 and 255 only.* write mask > 0") as seen:
        lmdbloader.write([{"image": PLAIN, "mask": mask}], tmp_path / "d", fields={"mask": fields.Mask()})
    assert seen[0].filename == __file__
    lmdbloader.write([{"image": PLAIN, "mask": mask}], tmp_path / "e", fields={"mask": fields.Mask(ignore_index=254)})
    lmdbloader.write([{"image": PLAIN, "mask": mask > 0}], tmp_path / "f", fields={"mask": fields.Mask()})
    assert lmdbloader.LMDBDataset(tmp_path / "f")[0].mask.unique().tolist() == [0, 1]


def test_whole_numbers_that_a_float_holds_are_its_values(out: Path) -> None:
    given = [0.5, 2**53, -(2**60), np.uint64(2**63), np.int64(7), np.float32(0.1), np.float16(0.1)]
    lmdbloader.write([{"x": value} for value in given], out)
    assert [sample.x for sample in lmdbloader.LMDBDataset(out)] == [float(value) for value in given]


@pytest.mark.parametrize("given", [2**24 + 1, 2**53 - 1, -(2**24) - 1, float(2**24 + 1)])
def test_coordinates_that_float32_would_round_are_refused(out: Path, given: Any) -> None:
    for number in (given, np.array(given)):
        points = np.array([[0, number]]) if isinstance(number, np.ndarray) else [[0, number], [0.5, 1]]
        with pytest.raises(OptionError, match=r"with the whole number .*, which float32 would round"):
            lmdbloader.write([{"x": points}], out, fields={"x": lmdbloader.fields.Points()})
    lmdbloader.write([{"x": [[2**24, 2**30], [0.1, 7]]}], out, fields={"x": lmdbloader.fields.Points()})
    assert lmdbloader.LMDBDataset(out)[0].x[0].tolist() == [2**24, 2**30]


@pytest.mark.parametrize(
    "classes", [{"image": ["a"]}, {"label": "cat"}, {"label": ["a", "a"]}, {"label": {"a"}}, ["cat"]]
)
def test_names_of_classes_that_make_no_sense(out: Path, classes: Any) -> None:
    with pytest.raises(OptionError, match="classes"):
        write([{"image": np.zeros((2, 2), np.uint8), "label": 0}], out, classes=classes)
    assert not out.exists()


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize(
    ("kind", "labels", "wrong"),
    [
        (Int(), [*range(5000), -1, -100, 5000], 5000),
        (Int(), [np.int64(1), np.int64(5000)], 5000),
        (fields.Labels(), [[], [-1, 4999], np.array([1, 5000])], 5000),
        (fields.Labels(), [[3, 5001, 2]], 5001),
    ],
)
def test_labels_without_a_name_are_refused(
    out: Path, kind: Any, labels: list[Any], wrong: int, workers: int | None
) -> None:
    options: dict[str, Any] = {
        "fields": {"label": kind}, "classes": {"label": [f"c{number}" for number in range(5000)]},
        "workers": workers, "threads": workers is not None,
    }  # fmt: skip
    samples = [{"label": label} for label in labels]
    with pytest.raises(OptionError, match=f"sample {len(labels) - 1}, field 'label': {wrong}, but there are names of"):
        write(samples, out, **options)
    assert not out.exists()
    if len(samples) > 1:
        write(samples[:-1], out, restart=True, **options)
        assert len(LMDBDataset(out)) == len(samples) - 1


def test_a_file_that_cannot_be_used_is_named(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    PilImage.fromarray(PIXELS).save(path)
    path.write_bytes(path.read_bytes()[:60])
    for image in (path, {"bytes": None, "path": str(path)}, {"bytes": path.read_bytes(), "path": str(path)}):
        with pytest.raises(OptionError, match=r"sample 0, field 'image', .*cut\.png: the PNG file is cut short"):
            write([{"image": image}], out)
    with pytest.raises(OptionError, match=r"field 'image', .*none\.png: .*No such file"):
        write([{"image": tmp_path / "none.png"}], out)
