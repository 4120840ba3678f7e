"""A profile warns of two memory formats in half precision, of nothing else, and leaves every step as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader.lab.profiling import profile
from lmdbloader.lab.profiling.memory_formats import format_of, run_watched
from lmdbloader.transforms import ToDtype

LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format


def network(channels: int = 3, *, kernel: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, kernel, padding=kernel // 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip


def training(model: nn.Module, *, half: bool = True) -> Callable[[torch.Tensor], None]:
    """Return a step in bfloat16, or in float32."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(images: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            output = model(images)
        output.float().sum().backward()
        optimizer.step()

    return step


def images(memory_format: torch.memory_format = CONTIGUOUS, *, channels: int = 3) -> list[torch.Tensor]:
    return [torch.rand(2, channels, 8, 8).contiguous(memory_format=memory_format) for _ in range(4)]


def warnings_of(model: nn.Module, batches: Any, **options: Any) -> tuple[str, ...]:
    return profile(batches, training(model, **options), steps=2, warmup=1).warnings


@pytest.fixture(scope="module")
def patches(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    path = tmp_path_factory.mktemp("formats") / "patches"
    lmdbloader.convert(photos, path, patch_size=24, codec="raw", workers=1)
    return lmdbloader.LMDBDataset(path)


def loader_of(patches: lmdbloader.LMDBDataset, **options: Any) -> lmdbloader.Loader:
    return lmdbloader.Loader(patches, 16, shuffle=True, transforms=[ToDtype(torch.float32, scale=True)], **options)


@pytest.mark.parametrize("weights", [LAST, CONTIGUOUS])
@pytest.mark.parametrize("pixels", [LAST, CONTIGUOUS])
@pytest.mark.parametrize("half", [True, False])
def test_two_formats_in_half_precision_are_warned_of(
    weights: torch.memory_format, pixels: torch.memory_format, half: bool
) -> None:
    model = network().to(memory_format=weights)  # type: ignore[call-overload]
    found = warnings_of(model, images(pixels), half=half)
    assert len(found) == (half and weights != pixels)
    if found and weights == LAST:
        assert "weights are channels_last, the images that reach it are contiguous" in found[0]
        assert found[0].endswith("write images = images.contiguous(memory_format=torch.channels_last).")
    elif found:
        assert found[0].endswith("Write model = model.to(memory_format=torch.channels_last).")


def test_the_line_for_a_loader_ends_the_warning(patches: lmdbloader.LMDBDataset) -> None:
    model = network().to(memory_format=LAST)  # type: ignore[call-overload]
    step = training(model)
    for given_format, expected in ((CONTIGUOUS, 1), (LAST, 0)):
        loader = loader_of(patches, memory_format=given_format)
        assert loader.memory_format == given_format
        found = profile(loader, lambda batch: step(batch.image), steps=2, warmup=0)
        assert len(found.warnings) == expected
        if expected:
            assert found.warnings[0].endswith("Write Loader(..., memory_format=torch.channels_last).")
            assert f"\nWarning: {found.warnings[0]}\n" in str(found)
    # What a Loader gives may be made contiguous again: then another option of the Loader would change nothing.
    loader = loader_of(patches, memory_format=LAST)
    (warning,) = profile(loader, lambda batch: step(batch.image.contiguous()), steps=2, warmup=0).warnings
    assert "images.contiguous(memory_format" in warning


def test_what_the_step_converts_itself_is_seen(patches: lmdbloader.LMDBDataset) -> None:
    model = network().to(memory_format=LAST)  # type: ignore[call-overload]
    step = training(model)
    for convert in (lambda x: x.to(memory_format=LAST), lambda x: (x - 0.5).to(torch.bfloat16, memory_format=LAST)):
        assert profile(images(), lambda batch, c=convert: step(c(batch)), steps=2, warmup=0).warnings == ()
    # Also what is enlarged first.
    enlarged = lambda batch: step(nn.functional.interpolate(batch, scale_factor=2, mode="bilinear"))  # noqa: E731
    assert len(profile(images(), enlarged, steps=2, warmup=0).warnings) == 1
    assert profile(images(LAST), enlarged, steps=2, warmup=0).warnings == ()


@pytest.mark.parametrize("weights", [LAST, CONTIGUOUS])
@pytest.mark.parametrize("pixels", [LAST, CONTIGUOUS])
def test_formats_that_are_the_same_are_not_told_apart(
    weights: torch.memory_format, pixels: torch.memory_format
) -> None:
    """One channel, and kernels of one pixel, have strides that fit both."""
    gray = network(1).to(memory_format=weights)  # type: ignore[call-overload]
    assert warnings_of(gray, images(pixels, channels=1)) == ()
    points = network(kernel=1).to(memory_format=weights)  # type: ignore[call-overload]
    assert warnings_of(points, images(pixels)) == ()


def test_models_without_convolutions_have_no_format() -> None:
    assert warnings_of(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), images()) == ()
    volume = [torch.rand(2, 3, 4, 8, 8)] * 4
    assert warnings_of(nn.Conv3d(3, 4, 3), volume) == ()
    assert profile(images(), lambda batch: None, steps=2, warmup=0).warnings == ()


def test_a_model_in_half_precision_needs_no_autocast() -> None:
    model = network().to(torch.bfloat16, memory_format=LAST)  # type: ignore[call-overload]
    batches = [batch.to(torch.bfloat16) for batch in images()]
    assert len(warnings_of(model, batches, half=False)) == 1


def test_frozen_first_layers_and_data_loaders() -> None:
    model = network().to(memory_format=LAST)  # type: ignore[call-overload]
    model[0].requires_grad_(False)  # type: ignore[operator]
    assert run_watched(training(model), images()[0]) is None
    whole = network().to(memory_format=LAST)  # type: ignore[call-overload]
    found = warnings_of(whole, DataLoader(torch.rand(8, 3, 8, 8), 2))  # type: ignore[arg-type]
    assert len(found) == 1 and "images.contiguous" in found[0]


def test_a_watched_step_learns_what_another_learns() -> None:
    """Also with checkpoints, which keep tensors in a way of their own."""
    batch = images()[0]
    results = []
    for watch, kept in itertools.product((True, False), (True, False)):
        torch.manual_seed(0)
        model = network()
        inner = nn.Sequential(*model)  # type: ignore[arg-type]
        if kept:
            model.forward = lambda x, m=inner: checkpoint(m, x, use_reentrant=False)  # type: ignore[assignment]
        step = training(model, half=False)
        if watch:
            run_watched(step, batch)
        else:
            step(batch)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    for others in results[1:]:
        torch.testing.assert_close(others, results[0], rtol=0, atol=0)


def test_a_step_that_cannot_be_watched_is_done_without_it() -> None:
    """torch.func refuses; a step's own error is its own, and it is not done twice."""
    done = []

    def functional(batch: torch.Tensor) -> None:
        done.append(torch.func.grad(lambda weight: (weight * batch).sum())(torch.ones(())))

    assert run_watched(functional, torch.ones(3)) is None
    assert [float(gradient) for gradient in done] == [3.0]

    def failing(batch: torch.Tensor) -> None:
        done.append(batch)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_watched(failing, torch.ones(3))
    assert len(done) == 2
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        assert run_watched(training(network()), images()[0]) is None


def test_a_compiled_model_is_compiled_once_and_not_judged() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = network().to(memory_format=LAST)  # type: ignore[call-overload]
    compiled: Any = torch.compile(model, backend="aot_eager")
    assert profile(images(), training(compiled), steps=3, warmup=0).warnings == ()
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([LAST, CONTIGUOUS]),
)
def test_a_format_is_told_only_where_there_are_two(
    shape: tuple[int, int, int, int], memory_format: torch.memory_format
) -> None:
    tensor = torch.empty(shape, memory_format=memory_format)
    _, channels, height, width = shape
    expected = None if channels == 1 or height * width == 1 else str(memory_format).removeprefix("torch.")
    assert format_of(tensor) == (expected and expected.removesuffix("_format"))
    assert format_of(torch.empty(2, 4, 8, 8)[:, ::2, ::2]) is None  # neither
