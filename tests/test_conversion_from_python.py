"""`lmdbloader.write`: samples come back in order; a sample that does not fit is named, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
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
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.fields import Array, Bytes, Float, Image, Int, Json, Text

FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
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

OTHER_KEYS = (True, False, None, 0, -12, 1.5, -0.0, 1e300, 5e-324, np.float64(2.5))
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


def test_an_image_like_array_is_an_array_when_asked(out: Path) -> None:
    write([{"mask": PIXELS[:, :, 0], "image": PIXELS}], out, fields={"mask": Array(), "image": None})
    assert kinds(out) == {"mask": "array", "image": "image"}
    assert LMDBDataset(out)[0].mask.shape == (5, 7)


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 6, 5), (6, 5, 4)])
def test_an_image_of_another_shape_is_an_array_with_a_warning(out: Path, shape: tuple[int, ...]) -> None:
    image = np.zeros(shape, np.uint8)
    with pytest.warns(UserWarning, match="field 'hr'"):  # flips of lr alone would part the pair
        write([{"lr": PIXELS, "hr": image}], out)
    assert kinds(out) == {"lr": "image", "hr": "array"}
    write([{"lr": PIXELS, "hr": image}], out, fields={"lr": None, "hr": Array()}, overwrite=True)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_arrays_of_other_classes_are_stored_by_content() -> None:
    grey = PIXELS[:, :, 0]
    masked = np.ma.masked_array(PIXELS, mask=False)
    (found,) = written([{"a": np.asmatrix(grey), "b": np.asmatrix(np.eye(3)), "c": masked}])
    np.testing.assert_array_equal(found.a.numpy(), grey[None])
    np.testing.assert_array_equal(found.b.numpy(), np.eye(3))
    np.testing.assert_array_equal(found.c.numpy(), np.moveaxis(PIXELS, 2, 0))


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


def test_memory_stays_bounded_if_large_bytes_come_in_one_buffer(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 10_000)
    done: list[int] = []
    buffer, text = bytearray(4000), ["x" * 4000]
    write(({"data": buffer, "text": text} for _ in range(12)), out, progress=done.append)
    assert max(done) == 2 and sum(done) == 12


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


class Streamed(IterableDataset[Any]):
    """An IterableDataset with a length; its base class has a __getitem__ that only raises."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter(Indexed()[i] for i in range(3))


class Endless(IterableDataset[Any]):
    """An IterableDataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(Streamed())


class Liar:
    """An iterable whose length is wrong, or an error."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return int(self.length)

    def __iter__(self) -> Iterator[Any]:
        return iter(Streamed())


@pytest.mark.parametrize(
    "samples",
    [
        [Indexed()[i] for i in range(3)],
        [list(Indexed()[i]) for i in range(3)],
        (Indexed()[i] for i in range(3)),
        (Pair(*Indexed()[i]) for i in range(3)),
        ({"image": i, "label": n} for i, n in (Indexed()[i] for i in range(3))),
        Indexed(),
        Streamed(),
        Subset(Indexed(), [0, 1, 2]),
        DataLoader(Indexed(), batch_size=None),
        # These two have a __len__ that raises TypeError.
        DataLoader(Endless(), batch_size=None),
        ChainDataset([Endless()]),
        Liar(NotImplementedError("not known")),
        Liar(-3),
        Liar(10**15),
        Liar(10**30),
    ],
    ids=[
        "tuples", "lists", "generator", "namedtuples", "dicts", "Dataset", "IterableDataset", "Subset", "DataLoader",
        "DataLoader without length", "ChainDataset", "failing", "negative", "too long", "no length at all",
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


@pytest.mark.parametrize("key", ["1", "true", "null", "-1.5", "1e+16", '"1": ', "kNaN"])
def test_keys_of_json_that_look_like_others_come_back(key: str) -> None:
    value = {key: [{key: key}, {"a": {key: '"1": '}}], "b": "\\"}
    assert written([{"x": value}])[0].x == value


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


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ("zip", "codec='zip': expected one of auto, raw, lz4"),
        ({"image": "zip"}, "codec='zip': expected one of"),
        ({"picture": "lz4"}, r"codec for 'picture': expected one of the fields with a codec: image"),
        ({"label": "lz4"}, r"fields with a codec: image; it is a field of kind int, which has none"),
    ],
)
def test_codecs_that_do_not_exist(out: Path, codec: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write([{"image": PIXELS, "label": 1}], out, codec=codec)
    assert os.listdir(out.parent) == []


# --- refusals ---


def refused(out: Path, samples: Any, message: str, **options: Any) -> None:
    with pytest.raises(OptionError, match=message):
        write(samples, out, **options)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (PIXELS, np.zeros((4, 4, 4), np.uint8), r"\(4, 4, 4\) uint8; expected uint8 or uint16 pixels"),
        (PIXELS, PIXELS.astype(np.float32), r"\(5, 7, 3\) float32; expected uint8 or uint16"),
        (PIXELS, np.zeros((0, 7, 3), np.uint8), r"\(0, 7, 3\) uint8"),
        (PIXELS, "a.png", "str; expected uint8 or uint16"),
        (PIXELS, PilImage.fromarray(PIXELS).convert("P"), "a PIL image of mode P; expected L, RGB or I;16"),
        (np.zeros(3), "three", "str where the first sample had an array or a tensor"),
        (np.zeros(3), [1, 2, 3], "list where the first sample had an array or a tensor"),
        (np.zeros(3), np.array(["a"]), "an array of <U1"),
        (np.zeros(3), np.ma.masked_equal([1, 2, 3], 2), "an array with masked values. Fill them"),
        (PIXELS, np.ma.masked_less(PIXELS, 9), "an array with masked values. Fill them"),
        (np.zeros(3), torch.zeros(3, dtype=torch.bfloat16), "a tensor of torch.bfloat16 that NumPy cannot hold"),
        (1, 2.5, "2.5 where the first sample had int"),
        (1, 2**63, f"{2**63} where the first sample had int of 64 bits"),
        (1, True, "True where the first sample had int"),
        (1.5, "x", "'x' where the first sample had float"),
        (1.5, 2**53 + 1, r"9007199254740993 would be rounded to 9007199254740992\.0\. .*fields\.Int\(\)"),
        (1.5, np.int64(-(2**53) - 1), r"would be rounded to -9007199254740992\.0"),
        (1.5, np.uint64(2**64 - 1), "would be rounded to 1.8446744073709552e"),
        ("x", 1, "1 where the first sample had text"),
        ("x", "\ud800", "text that is not valid Unicode"),
        (b"x", "x", "str where the first sample had bytes"),
        ({"a": 1}, {"a": {1, 2}}, "cannot be stored"),
        ({"a": 1}, {"a": math.nan}, "cannot be stored"),
        ({"a": 1}, np.zeros(2), "cannot be stored"),
        ({"a": 1}, {1: "int", "1": "str"}, "the key 1 is of type int"),
        ({"a": 1}, {"b": [{}, ({"c": {None: 2}},)]}, "the key None is of type NoneType"),
        *(({"a": 1}, [{key: 0}], f"the key {re.escape(repr(key))} is of type") for key in OTHER_KEYS),
        ({"a": 1}, {"a": ["\ud800"]}, "'.ud800'.* cannot be stored .*surrogates not allowed"),
        ({"a": 1}, {"\udfff": 1}, "surrogates not allowed"),
        ({"a": 1}, {"a": "\ud83d\ude00"}, "surrogates not allowed"),
        ({"a": 1}, {"a": [-(10**4300)]}, "cannot be stored .*4300 digits"),
    ],
)
@pytest.mark.parametrize("codec", ["auto", "lz4"])
def test_a_later_sample_that_does_not_fit_is_named(out: Path, first: Any, later: Any, message: str, codec: str) -> None:
    samples = [{"n": 0, "x": first}] * 2 + [{"n": 0, "x": later}]
    refused(out, iter(samples), rf"^sample 2, field 'x': .*{message}", codec=codec)


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "LA", "CMYK", "YCbCr", "I", "F", "HSV", "LAB"])
def test_odd_pil_modes_are_refused_clearly(out: Path, mode: str) -> None:
    picture = PilImage.new(mode, (4, 4))
    refused(out, [{"x": picture}], rf"sample 0, field 'x': a PIL image of mode {mode}; expected L, RGB or I;16")


def test_a_pil_image_that_does_not_load_is_named(out: Path) -> None:
    buffer = io.BytesIO()
    PilImage.fromarray(RNG.integers(0, 256, (60, 60, 3)).astype(np.uint8)).save(buffer, "PNG")
    cut = PilImage.open(io.BytesIO(buffer.getvalue()[:3000]))
    refused(out, [{"x": PIXELS}, {"x": cut}], r"sample 1, field 'x': the PIL image does not load \(")


def test_json_that_only_looks_odd_is_stored() -> None:
    values = ["\U0001f600 \\ud800 \\\\ud800", {"digits": "1" * 5000}, [10**4299, -(10**4299)], 1e308, "9" * 4300 + "e"]
    assert [s.x for s in written([{"x": value} for value in values], fields={"x": Json()})] == values


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"a": 1}, "a value of type int cannot be stored .*4300 digits"),
        (1, "a value of type int where the first sample had int of 64 bits"),
        (1.5, "a value of type int where the first sample had float"),
        ("x", "a value of type int where the first sample had text"),
        (PIXELS, "int; expected uint8"),
    ],
)
def test_an_integer_that_python_does_not_even_show_is_refused(out: Path, first: Any, message: str) -> None:
    refused(out, [{"x": first}, {"x": 10**6000}], f"^sample 1, field 'x': {message}")


def test_deep_json_is_refused(out: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    refused(out, [{"x": deep}], "sample 0, field 'x': .*cannot be stored")


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([], {}, r"there is nothing to write: `samples` is empty"),
        (iter(()), {}, "there is nothing to write"),
        (5, {}, "samples of type int: expected an iterable"),
        ([5], {}, "sample 0 is of type int: expected a dict, a named tuple or a tuple"),
        ({"a": 1}, {}, "samples is a dict: expected"),
        ([(1, 2)], {}, r"sample 0 is a plain tuple of 2 values: name them, for example fields=\('image', 'label'\)"),
        ([(1, 2)], {"fields": ("a",)}, "sample 0 has 2 values, but fields names 1: a"),
        ([(1, 2), (1,)], {"fields": ("a", "b")}, "sample 1 has 1 values, but fields names 2: a, b"),
        ([{"a": 1}, {"b": 1}], {}, "sample 1 has the fields b; the first one had a"),
        ([{"a": 1}, {"a": 1, "b": 1}], {}, "sample 1 has the fields a, b; the first one had a"),
        ([{"a": 1}], {"fields": {"b": Image()}}, "fields names b, but the first sample has a"),
        (
            [{"a": 1, "b": 2}],
            {"fields": ["a"]},
            "fields names a, but the first sample has a, b",
        ),
        ([{"a": 1}], {"fields": {"a": "image"}}, r"fields\['a'\] is 'image': expected Image\(\)"),
        ([{"a": 1}], {"fields": {"a": Image}}, r"fields\['a'\] is <class .*Image'>: expected Image\(\)"),
        ([{"class": 1}], {}, "field name 'class': expected a Python identifier"),
        ([{"two words": 1}], {}, "field name 'two words'"),
        ([{"_x": 1}], {}, "field name '_x'"),
        ([{"source": "a"}], {}, "field name 'source'"),
        ([{1: 2}], {}, "sample 0 has a key 1 of type int: expected str"),
        ([{}], {}, "sample 0 has no fields"),
        ([()], {"fields": ()}, "sample 0 has no fields"),
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


def test_foreign_folders_are_never_replaced_and_empty_ones_are_used(out: Path) -> None:
    out.mkdir()
    (out / "mine.txt").touch()
    with pytest.raises(DestinationError, match="never replaced"):
        write([{"x": 1}], out, overwrite=True)
    (out / "mine.txt").unlink()
    write([{"x": 1}], out)
    with pytest.raises(DestinationError, match="Create it first"):
        write([{"x": 1}], out.parent / "missing" / "out")


class ImageFolder:
    """Like torchvision's ImageFolder: PIL images with class numbers, by index only, and class names."""

    def __init__(self, root: Path) -> None:
        self.classes = sorted(p.name for p in root.iterdir())
        self.samples = [(p, i) for i, name in enumerate(self.classes) for p in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[PilImage.Image, int]:
        path, label = self.samples[index]
        return PilImage.open(path).convert("RGB"), label


def test_an_image_folder_keeps_its_labels_and_the_names_of_its_classes(tmp_path: Path, out: Path) -> None:
    for number in range(6):
        path = tmp_path / "root" / ("cat", "dog", "newt")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PilImage.fromarray(np.full((5 + number, 7, 3), number, np.uint8)).save(path)
    folder = ImageFolder(tmp_path / "root")
    write(folder, out, fields=("image", "label"), classes={"label": folder.classes})
    ds = LMDBDataset(out)
    assert ds.classes == ("cat", "dog", "newt")
    for (image, label), found in zip((folder[i] for i in range(6)), ds, strict=True):
        assert found.label == label
        np.testing.assert_array_equal(np.moveaxis(found.image.numpy(), 0, 2), np.asarray(image))


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


@pytest.mark.parametrize(
    "sample",
    [
        {"image": PLAIN, "box": {"left": 1}},
        {"image": PLAIN, "points": 3},
        {"image": PLAIN, "boxes": "two"},
        {"image": PLAIN, "numbers": [[1, 2, 3, 4]]},
        {"image": PLAIN, "boxes": [[1, 2], [3]]},
        {"boxes": [[1, 2, 3, 4]]},
    ],
)
def test_values_that_are_not_boxes_are_written(tmp_path: Path, sample: Any) -> None:
    assert lmdbloader.write([sample], tmp_path / "d").num_samples == 1


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
    "given", [5, True, "x", b"x", [5], [["x"]], ("x", "x"), {5: None}, {"x"}, iter(["x"]), lmdbloader.fields.Int()]
)
def test_fields_are_names_or_types_by_name(out: Path, given: Any) -> None:
    with pytest.raises(OptionError, match=r"^fields=.*: expected"):
        lmdbloader.write([{"x": 5}], out, fields=given)


@pytest.mark.parametrize(
    "classes", [{"image": ["a"]}, {"label": "cat"}, {"label": ["a", "a"]}, {"label": {"a"}}, ["cat"]]
)
def test_names_of_classes_that_make_no_sense(out: Path, classes: Any) -> None:
    with pytest.raises(OptionError, match="classes"):
        write([{"image": np.zeros((2, 2), np.uint8), "label": 0}], out, classes=classes)
    assert not out.exists()
