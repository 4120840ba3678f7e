"""What a comparison varies: the arms, the settings of a turn of training, and the sweeps, which change one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from classification.models import MODEL_NAMES as CLASSIFIERS

Arm = Literal["folder", "dataloader", "lmdbloader"]
ARMS: tuple[Arm, ...] = get_args(Arm)
"""Image files through torch's DataLoader, the dataset through torch's DataLoader, the dataset through Loader."""
SR_MODELS = ("srcnn", "edsr")
MODELS = (*SR_MODELS, *CLASSIFIERS)
SCALE = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is trained in one turn.

    Attributes:
        model: One of MODELS.
        batch_size: Samples of a step.
        size: Height and width in pixels: of the larger image of a pair, or of a classifier's images.
        workers: Processes of the DataLoader, or threads of the Loader.
        is_pinned: Whether batches are in page-locked memory, which matters on CUDA only.
        is_ahead: Whether batches are copied to the device before the loop asks for them; else by the loop.
        stored_size: Height and width in which images are loaded, and resized to `size` on the device; None where the
            loader makes them of that size.
        precision: "fp32", "bf16" or "fp16": of a classifier's forward pass.
        is_channels_last: Whether a classifier and its batches have torch's newer memory format.
        is_mixed_format: Whether the batches have the other memory format than the model has.
        label_smoothing: Share of a classifier's target that is spread over all classes.
        has_ema: Whether a moving average of the weights is kept.
    """

    model: str
    batch_size: int
    size: int
    workers: int
    is_pinned: bool = False
    is_ahead: bool = False
    stored_size: int | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    is_channels_last: bool = True
    is_mixed_format: bool = False
    label_smoothing: float = 0.0
    has_ema: bool = False

    @property
    def loaded_size(self) -> int:
        """Height and width of the images that the loader gives."""
        return self.stored_size or self.size

    @property
    def is_classifier(self) -> bool:
        """Whether the model names classes; else it enlarges images."""
        return self.model in CLASSIFIERS

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A question that is answered by changing one thing.

    Attributes:
        name: On the command line.
        title: Heading of its table.
        thing: What changes, for the axis of its chart.
        values: Makes the values from the setting that everything else keeps, and the number of cores.
        change: Returns the setting with a value.
        show: Names a value.
        arms: Those that it concerns.
        needs_cuda: Whether the CPU shows nothing of it.
        only: "pairs" or "classes" where it concerns only those; None for both.
    """

    name: str
    title: str
    thing: str
    values: Callable[[Setting, int], Sequence[Any]]
    change: Callable[[Setting, Any], Setting]
    show: Callable[[Any], str] = str
    arms: tuple[Arm, ...] = ARMS
    needs_cuda: bool = False
    only: Literal["pairs", "classes"] | None = None

    def concerns(self, setting: Setting, device: str) -> bool:
        """Return whether a model on a device, "cpu" or "cuda", can show it."""
        kind = "classes" if setting.is_classifier else "pairs"
        return self.only in (None, kind) and (device == "cuda" or not self.needs_cuda)


BATCH_SIZES = (8, 16, 32, 64, 128)
PATCHES = (16, 64)


def _workers(setting: Setting, cores: int) -> list[int]:
    """Return 0, the powers of two up to the cores, and the cores."""
    return sorted({0, cores, *(1 << k for k in range(cores.bit_length()) if 1 << k <= cores)})


def _sides(setting: Setting, cores: int) -> list[tuple[int, str]]:
    """Return shares of the full size, as progressive resizing uses them, each made by the loader and on the device."""
    sides = sorted({max(8, round(setting.size * share / 8) * 8) for share in (0.5, 0.75, 1.0)})
    return [(side, where) for where in ("loader", "device") for side in sides]


def _resized(setting: Setting, value: tuple[int, str]) -> Setting:
    side, where = value
    return replace(setting, size=side, stored_size=setting.size if where == "device" else None)


def _formats(setting: Setting, cores: int) -> list[tuple[bool, bool]]:
    return [(True, False), (False, False), (True, True)]


_FORMAT_NAMES = {(True, False): "channels last", (False, False): "contiguous", (True, True): "mixed"}

SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "batch-size", "Batch sizes", "samples of a batch", lambda setting, cores: BATCH_SIZES,
            lambda setting, value: replace(setting, batch_size=value),
        ),
        Sweep(
            "patch", "Patch sizes", "side of a patch, pixels", lambda setting, cores: PATCHES,
            lambda setting, value: replace(setting, size=value), only="pairs",
        ),
        Sweep(
            "workers", "Workers", "worker processes, or threads of Loader", _workers,
            lambda setting, value: replace(setting, workers=value),
        ),
        Sweep(
            "memory", "Pinned and paged memory", "memory of the batches", lambda setting, cores: (True, False),
            lambda setting, value: replace(setting, is_pinned=value, is_ahead=False),
            lambda value: "pinned" if value else "paged", needs_cuda=True,
        ),
        Sweep(
            "copies", "Copies to the device", "where batches are copied", lambda setting, cores: (False, True),
            lambda setting, value: replace(setting, is_pinned=True, is_ahead=value),
            lambda value: "ahead, on a stream of their own" if value else "in the loop",
            arms=("lmdbloader",), needs_cuda=True,
        ),
        Sweep(
            "resize", "Where images are resized", "side of the images, pixels", _sides, _resized,
            lambda value: f"{value[0]} px, by the {value[1]}", only="classes",
        ),
        Sweep(
            "precision", "Precision", "type of the forward pass", lambda setting, cores: ("fp32", "bf16"),
            lambda setting, value: replace(setting, precision=value), only="classes",
        ),
        Sweep(
            "memory-format", "Memory format", "memory format of model and batches", _formats,
            lambda setting, value: replace(setting, is_channels_last=value[0], is_mixed_format=value[1]),
            lambda value: _FORMAT_NAMES[value], arms=("lmdbloader",), only="classes",
        ),
        Sweep(
            "label-smoothing", "Label smoothing", "share for all classes", lambda setting, cores: (0.0, 0.1),
            lambda setting, value: replace(setting, label_smoothing=value), arms=("lmdbloader",), only="classes",
        ),
        Sweep(
            "ema", "Moving average of the weights", "average", lambda setting, cores: (False, True),
            lambda setting, value: replace(setting, has_ema=value), lambda value: "kept" if value else "none",
            arms=("lmdbloader",),
        ),
    )
}  # fmt: skip
"""Every sweep by its name, in the order in which they are run."""
