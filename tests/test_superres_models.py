"""The networks: shapes, untrained outputs, the papers' layers, and upscaling against MATLAB's weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from superresolution import EDSR, RCAN, SRVGG, SwinIR, build_model
from superresolution.models import MODEL_NAMES, ModelName
from superresolution.swinir import WindowAttention

from lmdbloader.errors import OptionError
from lmdbloader.superres import upscale
from lmdbloader.superres.tensors import merge_luma, model_inputs, to_bytes, to_channels, unit_floats


def matlab_enlarge(plane: NDArray[np.float64], scale: int, axis: int) -> NDArray[np.float64]:
    """Enlarge one axis as `imresize` documents it: cubic kernel with a = -0.5, four taps an output, mirrored ends."""

    def cubic(x: float) -> float:
        x = abs(x)
        if x <= 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    plane = np.moveaxis(plane, axis, 0)
    length = len(plane)
    mirrored = [*range(length), *reversed(range(length))]
    rows = []
    for place in range(length * scale):
        center = (place + 0.5) / scale - 0.5
        taps = range(int(np.floor(center)) - 1, int(np.floor(center)) + 3)
        rows.append(sum(cubic(center - tap) * plane[mirrored[tap % (2 * length)]] for tap in taps))
    return np.moveaxis(np.array(rows), 0, axis)


@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    scale=st.integers(1, 4),
    channels=st.integers(1, 3),
)
def test_upscale_is_matlabs_imresize(seed: int, height: int, width: int, scale: int, channels: int) -> None:
    images = np.random.default_rng(seed).random((2, channels, height, width))
    expected = matlab_enlarge(matlab_enlarge(images, scale, 2), scale, 3)

    np.testing.assert_allclose(upscale(torch.from_numpy(images), scale).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["srcnn915", "srcnn955"])
@pytest.mark.parametrize("size", [(1, 1), (7, 12), (24, 24)])
def test_srcnn_keeps_the_size_and_starts_as_the_identity(name: ModelName, size: tuple[int, int]) -> None:
    images = torch.rand(2, 1, *size)

    torch.testing.assert_close(build_model(name, 2)(images), images)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srcnn915", [(64, 1, 9, 9), (32, 64, 1, 1), (1, 32, 5, 5)]),
        ("srcnn955", [(64, 1, 9, 9), (32, 64, 5, 5), (1, 32, 5, 5)]),
    ],
)
def test_srcnn_has_the_papers_layers(name: ModelName, expected: list[tuple[int, ...]]) -> None:
    weights = [tuple(weight.shape) for key, weight in build_model(name, 3).named_parameters() if key.endswith("weight")]

    assert weights == expected


def test_srcnn_sees_as_far_as_the_papers_kernels_reach() -> None:
    model = build_model("srcnn915", 2)
    for weight in model.parameters():
        torch.nn.init.constant_(weight, 0.01)
    image = torch.rand(1, 1, 31, 31, requires_grad=True)
    model(image)[0, 0, 15, 15].backward()
    assert image.grad is not None
    rows = image.grad[0, 0].abs().sum(dim=1).nonzero().flatten()

    assert (rows.min().item(), rows.max().item()) == (15 - 6, 15 + 6)


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("name", ["edsr-small", "edsr-baseline", "rcan-small", "swinir-light"])
def test_models_on_rgb_start_as_bicubic(name: ModelName, scale: int) -> None:
    images = torch.rand(2, 3, 9, 11)

    torch.testing.assert_close(build_model(name, scale)(images), upscale(images, scale))


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_srvgg_starts_as_the_nearest_pixel_and_espcn_near_bicubic(scale: int) -> None:
    images = torch.rand(2, 3, 9, 11)
    nearest = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)

    assert torch.equal(build_model("srvgg16", scale)(images), nearest)
    luma = images[:, :1]
    inside = np.s_[:, :, 4 * scale : -4 * scale, 4 * scale : -4 * scale]
    torch.testing.assert_close(
        build_model("espcn", scale)(luma)[inside], upscale(luma, scale)[inside], atol=0.02, rtol=0
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # The papers' figures, and those of papers that compare with them; in thousands of weights.
        (lambda: EDSR(2), 1370),
        (lambda: EDSR(3), 1554),
        (lambda: EDSR(4), 1518),
        (lambda: EDSR(2, num_features=256, num_blocks=32), 40_730),
        (lambda: RCAN(2, num_groups=10, num_blocks=20), 15_445),
        (lambda: RCAN(4, num_groups=10, num_blocks=20), 15_592),
        (lambda: SwinIR(2), 910),
        (lambda: SwinIR(3), 918),
        (lambda: SwinIR(4), 930),
        (lambda: SRVGG(4), 1213),
        (lambda: SRVGG(4, num_convs=16), 621),
    ],
)
def test_models_have_as_many_weights_as_published(model: Callable[[], torch.nn.Module], expected: int) -> None:
    assert round(sum(weights.numel() for weights in model().parameters()) / 1000) == expected


@pytest.mark.parametrize(("scale", "expected"), [(2, 878), (3, 886), (4, 897)])
def test_swinir_has_the_papers_number_of_weights_without_those_of_distances(scale: int, expected: int) -> None:
    named = SwinIR(scale).named_parameters()

    assert round(sum(w.numel() for name, w in named if "distance_weights" not in name) / 1000) == expected


@pytest.mark.parametrize(("scale", "expected"), [(2, 21_184), (4, 24_640)])
def test_espcn_has_the_papers_number_of_weights_without_biases(scale: int, expected: int) -> None:
    named = build_model("espcn", scale).named_parameters()

    assert sum(weights.numel() for name, weights in named if name.endswith("weight")) == expected


def reach(model: torch.nn.Module, side: int) -> tuple[int, int]:
    """Return the first and the last row of the input that the pixel in the middle of the output depends on."""
    image = torch.rand(1, 3, side, side, requires_grad=True)
    model(image)[0, 0, side, side].backward()
    assert image.grad is not None
    rows = image.grad[0].abs().sum(dim=(0, 2)).nonzero().flatten()
    return int(rows.min()), int(rows.max())


def test_swinirs_windows_are_shifted_and_do_not_see_round_the_edge() -> None:
    """One block sees a window of 8 pixels, two blocks the windows that a shifted window meets, and not those behind."""
    torch.manual_seed(0)
    models = [SwinIR(2, num_features=12, num_heads=2, depths=(depth,)) for depth in (1, 2)]
    for model in models:
        torch.nn.init.normal_(model.tail.weight)
        # Without the convolutions' own reach.
        for layer in model.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.weight.data[:, :, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 2, 0, 1, 2]] = 0
    # Bicubic sees two pixels. The middle pixel 24 is the first of its window.
    assert reach(models[0], 48) == (22, 31)
    assert reach(models[1], 48) == (16, 31)
    image = torch.rand(1, 3, 48, 48)
    changed = image.clone()
    changed[..., -1] = 0
    for model in models:
        assert torch.equal(model(image)[..., :48], model(changed)[..., :48])


def test_attention_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    layer = WindowAttention(8, 2, 3)
    windows, seen = torch.rand(2, 4, 9, 8), torch.rand(4, 1, 9, 9) > 0.3
    seen |= torch.eye(9, dtype=torch.bool)
    expected = torch.zeros(2, 4, 9, 8)
    for batch, window, head in np.ndindex(2, 4, 2):
        query, key, value = (layer.qkv(windows[batch, window])[:, k * 8 + head * 4 :][:, :4] for k in range(3))
        for pixel in range(9):
            logits = torch.full((9,), -torch.inf)
            for other in range(9):
                if seen[window, 0, pixel, other]:
                    down, right = pixel // 3 - other // 3 + 2, pixel % 3 - other % 3 + 2
                    logits[other] = query[pixel] @ key[other] / 2 + layer.distance_weights[down * 5 + right, head]
            expected[batch, window, pixel, head * 4 : head * 4 + 4] = logits.softmax(0) @ value

    torch.testing.assert_close(layer(windows, seen), layer.proj(expected))


@pytest.mark.parametrize("size", [(1, 1), (7, 20), (8, 16)])
def test_swinir_takes_images_of_any_size(size: tuple[int, int]) -> None:
    assert SwinIR(3, num_features=12, num_heads=2, depths=(2,))(torch.rand(1, 3, *size)).shape[2:] == (
        3 * size[0], 3 * size[1]
    )  # fmt: skip


def test_other_scales_and_names_are_refused() -> None:
    for name in ("espcn", "edsr-small", "rcan-small", "swinir-light", "srvgg16"):
        with pytest.raises(OptionError, match="found scale 5"):
            build_model(name, 5)
    with pytest.raises(OptionError, match="there are srcnn915"):
        build_model("residual", 2)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_few_steps_move_every_weight(name: ModelName) -> None:
    torch.manual_seed(0)
    small = {
        "edsr-small": lambda: EDSR(2, num_features=8, num_blocks=2),
        "edsr-baseline": lambda: EDSR(2, num_features=8, num_blocks=3),
        "rcan-small": lambda: RCAN(2, num_groups=2, num_blocks=2, num_features=16, reduction=2),
        "swinir-light": lambda: SwinIR(2, num_features=12, num_heads=2, depths=(2, 2)),
        "srvgg32": lambda: SRVGG(2, num_convs=2, num_features=8),
    }
    model = small[name]() if name in small else build_model(name, 2)
    before = {key: weight.clone() for key, weight in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(2, model.channels, 16, 16)
    for _ in range(3):
        optimizer.zero_grad()
        output = model(images)
        (output - torch.rand_like(output)).square().mean().backward()
        optimizer.step()

    assert [key for key, weight in model.named_parameters() if torch.equal(weight, before[key])] == []


def test_a_model_gets_the_channels_and_the_size_that_it_takes() -> None:
    rgb, grey = torch.rand(2, 3, 8, 10), torch.rand(2, 1, 8, 10)
    luma_model, rgb_model = build_model("srcnn915", 3), EDSR(2, num_features=4, num_blocks=1)

    assert model_inputs(luma_model, rgb).shape == (2, 1, 24, 30)
    assert model_inputs(rgb_model, rgb) is rgb
    torch.testing.assert_close(model_inputs(rgb_model, grey), grey.repeat(1, 3, 1, 1))


@given(seed=st.integers(0, 2**32 - 1))
def test_merging_an_images_own_luma_returns_the_image(seed: int) -> None:
    image = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, 6, 6), dtype=np.uint8))
    own = to_bytes(to_channels(unit_floats(image)[None], 1)[0])

    # Luma is rounded to one of 219 levels, so half a level can be lost on the way.
    assert (merge_luma(image, own).int() - image.int()).abs().max() <= 1
