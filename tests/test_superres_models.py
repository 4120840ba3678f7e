"""The networks: shapes, untrained outputs, the papers' layers, and upscaling against MATLAB's weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from superresolution import ResidualSR, build_model
from superresolution.models import MODEL_NAMES, ModelName

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
        centre = (place + 0.5) / scale - 0.5
        taps = range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3)
        rows.append(sum(cubic(centre - tap) * plane[mirrored[tap % (2 * length)]] for tap in taps))
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
def test_the_residual_model_starts_as_bicubic(scale: int) -> None:
    model = ResidualSR(scale, num_features=8, num_blocks=1)
    images = torch.rand(2, 3, 9, 11)

    torch.testing.assert_close(model(images), upscale(images, scale))
    assert model(images).shape == (2, 3, 9 * scale, 11 * scale)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_few_steps_move_every_weight(name: ModelName) -> None:
    torch.manual_seed(0)
    model = build_model(name, 2) if name != "residual" else ResidualSR(2, num_features=8, num_blocks=2)
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
    luma_model, rgb_model = build_model("srcnn915", 3), ResidualSR(2, num_features=4, num_blocks=1)

    assert model_inputs(luma_model, rgb).shape == (2, 1, 24, 30)
    assert model_inputs(rgb_model, rgb) is rgb
    torch.testing.assert_close(model_inputs(rgb_model, grey), grey.repeat(1, 3, 1, 1))


@given(seed=st.integers(0, 2**32 - 1))
def test_merging_an_images_own_luma_returns_the_image(seed: int) -> None:
    image = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, 6, 6), dtype=np.uint8))
    own = to_bytes(to_channels(unit_floats(image)[None], 1)[0])

    # Luma is rounded to one of 219 levels, so half a level can be lost on the way.
    assert (merge_luma(image, own).int() - image.int()).abs().max() <= 1
