"""Classification: the networks, anti-aliased strides, recipes, the learning rate, one epoch, scores, precision."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from classification import (
    ResNet,
    blur_pool,
    build_model,
    evaluate,
    learning_rate,
    mirrored,
    parameter_groups,
    train_epoch,
)
from classification.models import MODEL_NAMES, BlurPool
from classification.precision import Precision, choose_precision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lmdbloader.errors import OptionError

CPU = torch.device("cpu")
FLOAT = Precision(CPU, torch.float32)
Batch = tuple[Tensor, Tensor]


def make_batches(count: int = 2, size: int = 16) -> list[Batch]:
    """Images whose brightness is their class, 0 or 1, with noise on them."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        labels = torch.randint(2, (8,), generator=generator)
        noise = torch.randn(8, 3, size, size, generator=generator)
        batches.append((noise + 2.0 * labels.view(-1, 1, 1, 1) - 1, labels))
    return batches


def tiny(num_classes: int = 2) -> ResNet:
    torch.manual_seed(0)
    return ResNet(num_classes, blocks=(1, 1, 1, 1), width=4, small_images=True)


# --- Networks ---


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("small_images", [False, True])
def test_every_model_gives_a_logit_for_each_class(name: str, small_images: bool) -> None:
    model = build_model(name, 7, small_images=small_images).eval()  # type: ignore[arg-type]
    with torch.inference_mode():
        assert model(torch.rand(2, 3, 40, 33)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_weights_of_torchvisions_models_give_the_same_result(name: str) -> None:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # the latter: it is of another build of torch
        pytest.skip(f"torchvision: {error}")
    theirs = getattr(torchvision.models, name)(num_classes=5).eval()
    ours = build_model(name, 5).eval()  # type: ignore[arg-type]
    ours.load_state_dict(theirs.state_dict())
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


def test_blurring_weighs_neighbors_one_two_one() -> None:
    image = torch.zeros(1, 2, 5, 5)
    image[0, 1, 2, 2] = 16
    expected = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert torch.equal(BlurPool(2, 1)(image)[0, 1, 1:4, 1:4], expected)
    assert torch.equal(BlurPool(2, 1)(image)[0, 0], torch.zeros(5, 5))
    assert torch.equal(BlurPool(2, 2)(image)[0, 1], BlurPool(2, 1)(image)[0, 1, ::2, ::2])


def test_a_blurred_shortcut_equals_the_stride_after_the_blur() -> None:
    conv = nn.Conv2d(16, 4, 1, stride=2, bias=False)
    features = torch.rand(1, 16, 9, 9)
    expected = conv(BlurPool(16, 1)(features))
    holder = nn.Sequential(conv)
    assert blur_pool(holder) == 1
    torch.testing.assert_close(holder(features), expected)


# --- Recipes, the learning rate ---


@given(
    epoch=st.floats(0, 30),
    num_epochs=st.integers(1, 30),
    warmup=st.floats(0, 10),
    schedule=st.sampled_from(["cosine", "triangle"]),
)
def test_the_rate_rises_to_its_peak_and_falls_to_0(epoch: float, num_epochs: int, warmup: float, schedule: str) -> None:
    def rate(at: float) -> float:
        return learning_rate(2.0, at, num_epochs=num_epochs, warmup=warmup, schedule=schedule)  # type: ignore[arg-type]

    assert 0 <= rate(epoch) <= 2
    assert rate(warmup) == pytest.approx(2)
    if num_epochs > warmup:
        assert rate(num_epochs) == pytest.approx(0, abs=1e-9)
    later = rate(epoch + 0.5)
    assert later >= rate(epoch) if epoch + 0.5 <= warmup else (epoch < warmup or later <= rate(epoch))


# --- Steps and scores ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_training_lowers_the_loss_and_raises_top1(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    model = tiny().to(memory_format=memory_format)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(parameter_groups(model, 1e-4), lr=0.05, momentum=0.9)
    precision = Precision(CPU, dtype)
    batches = [(images.to(dtype, memory_format=memory_format), labels) for images, labels in make_batches()]
    losses = [train_epoch(model, optimizer, batches, precision=precision).loss for _ in range(8)]

    assert losses[-1] < 0.5 * losses[0]
    assert model.training
    accuracy = evaluate(model, batches, precision=precision)
    assert model.training
    assert accuracy.num_images == 16
    assert accuracy.top1 >= 14 / 16


def test_scores_are_those_of_each_image() -> None:
    model = tiny().eval()
    batches = make_batches(3)
    with torch.inference_mode():
        logits = torch.cat([model(images) for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    accuracy = evaluate(model, batches, precision=FLOAT)

    assert accuracy.num_correct == int((logits.argmax(1) == labels).sum())
    assert accuracy.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels, reduction="sum")), rel=1e-5)
    assert not model.training
    assert evaluate(model, [], precision=FLOAT).top1 == 0


def test_views_are_scored_by_their_mean_probability() -> None:
    model = tiny().eval()
    batches = make_batches(3)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.inference_mode():
        mean = (model(images).softmax(1) + model(images.flip(-1)).softmax(1)) / 2
    found = evaluate(model, batches, precision=FLOAT, views=mirrored)

    assert found.num_images == 24
    assert found.num_correct == int((mean.argmax(1) == labels).sum())
    assert found.loss == pytest.approx(float(nn.functional.nll_loss(mean.log(), labels, reduction="sum")), rel=1e-5)
    # Mirror images of mirror images are the same views.
    again = evaluate(model, [(a.flip(-1), b) for a, b in batches], precision=FLOAT, views=mirrored)
    assert again.loss == pytest.approx(found.loss, rel=1e-5)
    assert evaluate(model, batches, precision=FLOAT, views=lambda seen: [seen, seen]).loss == pytest.approx(
        evaluate(model, batches, precision=FLOAT).loss, rel=1e-5
    )


@pytest.mark.parametrize(
    ("name", "device", "capability", "expected"),
    [
        ("auto", "cpu", None, torch.float32),
        ("auto", "cuda", (9, 0), torch.bfloat16),
        ("auto", "cuda", (8, 0), torch.bfloat16),
        ("auto", "cuda", (7, 5), torch.float16),
        ("fp32", "cuda", (9, 0), torch.float32),
        ("bf16", "cpu", None, torch.bfloat16),
    ],
)
def test_the_type_follows_the_device(
    name: str, device: str, capability: object, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    precision = choose_precision(name, torch.device(device))  # type: ignore[arg-type]
    assert precision.dtype == expected
    assert dataclasses.replace(precision, device=CPU).scaler().is_enabled() is (expected == torch.float16)


def test_smoothed_labels_and_shares_of_classes_train_too() -> None:
    images, labels = make_batches(1)[0]
    shares = nn.functional.one_hot(labels, 2).float()
    losses = []
    for target, smoothing in ((labels, 0.0), (shares, 0.0), (labels, 0.2), (0.9 * shares + 0.1 * (1 - shares), 0.0)):
        model = tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append(
            train_epoch(model, optimizer, [(images, target)], precision=FLOAT, label_smoothing=smoothing).loss
        )
    assert losses[0] == pytest.approx(losses[1])
    assert losses[2] == pytest.approx(losses[3])
    assert losses[0] != pytest.approx(losses[2])


def test_float16_on_a_cpu_is_refused() -> None:
    with pytest.raises(OptionError, match="on a CPU use bf16 or fp32"):
        choose_precision("fp16", CPU)
