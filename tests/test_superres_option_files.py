"""Option files of the projects: their values become arguments, and what is not supported is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.errors import OptionError
from lmdbloader.superres import degradations

REAL = """
name: train
scale: 4
l1_gt_usm: True
percep_gt_usm: True
gan_gt_usm: False
resize_prob: [0.2, 0.7, 0.1]
resize_range: [0.5, 1.5]
queue_size: 180
gt_size: 256
datasets:
  train:
    name: DF2K
    blur_kernel_size: 21
    kernel_list: ['iso', 'aniso']
    kernel_prob: [0.5, 0.5]
    final_sinc_prob: 0.7
  val: {name: validation}
"""
REDUX = """
scale: 2
high_order_degradation: true
datasets: {train: {kernel_range: [7, 9]}}
blur_prob: 0.5
lq_usm: false
thicklines_prob: 0
resize_mode_list: [bilinear, lanczos]
resize_mode_prob: [0.5, 0.5]
"""
NEOSR = """
scale = 4
[datasets.train]
type = "otf"
[degradations]
noise_range = [0, 3]
jpeg_range2 = [50, 95]
"""


def read(folder: Path, text: str, name: str = "o.yml", **options: int) -> degradations.Degradation:
    pytest.importorskip("yaml")
    (folder / name).write_text(text)
    return degradations.from_yaml(folder / name, **options)


def test_values_become_arguments(tmp_path: Path) -> None:
    assert repr(read(tmp_path, REAL)) == repr(
        degradations.real_esrgan(
            4, resize_range=(0.5, 1.5), kernel_list=["iso", "aniso"], kernel_prob=[0.5, 0.5], final_sinc_prob=0.7
        )
    )
    without = REAL.replace("True", "False")
    assert (read(tmp_path, without).sharpens, read(tmp_path, REAL).sharpens) == ("lr", "both")
    assert repr(read(tmp_path, REDUX)) == repr(
        degradations.trainner_redux(
            2, blur_prob=0.5, resize_mode_list=["bilinear", "lanczos"], resize_mode_prob=[0.5, 0.5], kernel_range=[7, 9]
        )
    )
    assert read(tmp_path, REAL, scale=2).scale == 2


def test_realesrnet_may_train_without_sharpening(tmp_path: Path) -> None:
    text = REAL.replace("l1_gt_usm", "gt_usm").replace("percep_gt_usm: True\ngan_gt_usm: False\n", "")
    text = text.replace("name: train\n", "model_type: RealESRNetModel\n")
    assert read(tmp_path, text).sharpens == "both"
    assert read(tmp_path, text.replace("gt_usm: True", "gt_usm: False")).sharpens == ""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_toml_is_of_neosr(tmp_path: Path) -> None:
    made = read(tmp_path, NEOSR, "o.toml")
    assert repr(made) == repr(degradations.neosr(4, noise_range=(0, 3), jpeg_range2=(50, 95)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "NoneType"), ("- 1\n", "list"), ("text", "str"), ("a: [1", "o.yml"), ("scale: 4", "no options"),
        ("1: 2\nnull: 3", "no options"), ("datasets: x\nscale: 4", "no options"),
        (REAL.replace("scale: 4", ""), "scale"),
        (REAL.replace("scale: 4", "scale: x"), "scale"), (REAL + "thicklines_prob: 0.5\n", "thicklines_prob"),
        (REAL + "noise_rng: [1, 2]\n", "noise_rng"), (REAL + "jpeg_range: 95\n", "jpeg_range"),
        (REAL + "jpeg_range: [1e1, 95]\n", "jpeg_range"), (REAL + "high_order_degradation: False\n", "high_order"),
        (REDUX.replace("lq_usm: false", "lq_usm: true"), "lq_usm"), ("!!python/object:os.x {}", "o.yml"),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(OptionError, match=named) as raised:
        read(tmp_path, text)
    assert "o.yml" in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yml", tmp_path / "none.toml"):
        with pytest.raises(OptionError, match=path.name):
            degradations.from_yaml(path)
    (tmp_path / "binary.yml").write_bytes(bytes(range(128, 256)))
    with pytest.raises(OptionError, match=r"binary\.yml"):
        degradations.from_yaml(tmp_path / "binary.yml")


@given(text=st.text(max_size=40) | st.text("{}[]:,-&*!|>'\"%#?\n ab1", max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_text(text, "utf-8")
    with pytest.raises(OptionError):
        degradations.from_yaml(path)
