"""The options of convert and estimate: their signatures, which callers rely on, and the types that they take."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from loading_scripts import load_script

import lmdbloader
from lmdbloader.conversion.options import ConvertOptions, RunOptions, checked
from lmdbloader.errors import OptionError

SHARED = {
    "layout": "auto", "hr": None, "lr": None, "masks": None, "binary_masks": False, "annotations": None,
    "patch_size": None, "stride": None, "scale": None, "crop_to_scale": False,
    "bicubic": "matlab", "degradation": None,
    "alpha": "refuse", "max_pixels": 200_000_000, "codec": None, "prefer": "speed",
    "write_mode": None, "max_resolution": None,
    "jpeg_quality": None, "jpeg_code": None, "compress_probability": None, "smart_threshold": None, "subset": None,
    "seed": None, "shuffle": None, "classes": None, "on_error": "stop", "min_pair_psnr": None, "workers": None,
}  # fmt: skip
OF_CONVERT = dict.fromkeys(("overwrite", "restart", "check_content", "progress"), False)
OF_CONVERT |= dict.fromkeys(("parts", "part_size"))


def keywords(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY}


def test_the_signature_of_convert() -> None:
    found = keywords(lmdbloader.convert)
    assert found.pop("log")("a line") is None
    assert found == {**SHARED, **OF_CONVERT}
    assert list(inspect.signature(lmdbloader.convert).parameters)[:2] == ["src", "out"]


def test_the_signature_of_estimate() -> None:
    assert keywords(lmdbloader.estimate) == {**SHARED, "sample": 100, "sample_seed": 0}
    assert next(iter(inspect.signature(lmdbloader.estimate).parameters)) == "src"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patch_size", 8.5), ("patch_size", True), ("min_pair_psnr", "20 dB"), ("max_resolution", "4k"),
        ("compress_probability", "50"), ("subset", "10%"), ("subset", "2GB"), ("smart_threshold", "-1"),
        ("min_pair_psnr", float("inf")), ("scale", "2;3"), ("scale", []), ("scale", [2, 9]), ("lr", []),
        ("compress_probability", float("nan")), ("overwrite", 1), ("log", "print"), ("alpha", None),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name}=.*: expected "):
        checked(RunOptions(**{name: value}))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_pixels", "1e6", 1_000_000), ("max_pixels", 1e6, 1_000_000), ("subset", "4k", 4000),
        ("seed", "1_000", 1000), ("compress_probability", "50%", 0.5), ("smart_threshold", "150KB", 150_000),
        ("smart_threshold", "2KiB", 2048),
        ("patch_size", "96", 96), ("min_pair_psnr", "2e1", 20.0),
    ],
)  # fmt: skip
def test_numbers_may_be_texts_as_on_the_command_line(name: str, text: Any, value: float) -> None:
    found = getattr(checked(ConvertOptions(**{name: text})), name)
    assert (found, type(found)) == (value, type(value))


def test_one_of_a_list_is_that_one_and_several_scales_are_in_order() -> None:
    for given, scale in (([4], 4), ("4", 4), ("4,2", [2, 4]), ((3, 2, 3), [2, 3]), (range(2, 5), [2, 3, 4])):
        assert checked(ConvertOptions(scale=given)).scale == scale
    for given, lr in ((["a"], "a"), (("b", Path("a")), ["b", Path("a")]), ("a,b", "a,b")):
        assert checked(ConvertOptions(lr=given)).lr == lr


@pytest.mark.parametrize("name", ["from_files.convert", "estimation.estimate"])
def test_the_reference_shows_every_keyword(name: str) -> None:
    """The pages of the reference are made by griffe, which reads the source and sees no decorator's work."""
    pytest.importorskip("griffe", reason="griffelib (the extra `docs`) is not installed")
    function = load_script("make_reference").Package().find(f"lmdbloader.conversion.{name}")
    parameters = inspect.signature(getattr(lmdbloader, function.name)).parameters
    assert [p.name for p in function.parameters] == [*parameters]
    (explained,) = [s.value for s in function.docstring.parsed if s.kind.value == "parameters"]
    assert [p.name for p in explained] == [*parameters]


def test_a_url_as_destination_is_refused_with_the_lines_that_upload(photos: Path) -> None:
    with pytest.raises(OptionError) as caught:
        lmdbloader.convert(photos, "s3://bucket/train.lmdb")
    assert "`lmdbloader stage train.lmdb s3://bucket/train.lmdb`" in str(caught.value)
    assert "lmdbloader.stage('train.lmdb', 's3://bucket/train.lmdb')" in str(caught.value)
