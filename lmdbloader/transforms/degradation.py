"""Degradation: makes low-resolution images from high-resolution ones with random blur, resizes, noise and JPEG."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import flag, number, whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import steps
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.base import Transform
from lmdbloader.transforms.functions import BatchFunction
from lmdbloader.transforms.values import Normalize, ToDtype

if TYPE_CHECKING:
    import torch

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# A step of a chain: numbers by column, see `lmdbloader.kernels.degrade.steps`.
Step = Mapping[int, float]
Rule = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the chains of a degradation.

    Attributes:
        steps: In their usual order.
        rules: How the order is drawn: rows of FIRST_PLACE ... REORDER.
        p: Its probability.
    """

    steps: Sequence[Step]
    rules: Sequence[Rule] = ()
    p: float = 1.0


@dataclass(frozen=True, repr=False, eq=False)
class Degradation(BatchFunction):
    """A random chain of degradations for each sample, which makes `lr` from `hr`; `lmdbloader.superres` has presets.

    In a Loader's list it comes after the transforms that move pixels, and before ToDtype and Normalize, which then hold
    for both images. The draws depend on the seed, the epoch and the sample's number alone; no two samples share any.

    Attributes:
        name: Of the preset.
        scale: How many times smaller `lr` is.
        variants: Its chains.
        options: Arguments of the preset that are not the default, for its text.
        sharpens: "both": `hr` is sharpened, and `lr` is made of the sharpened image; "lr": only the latter; or "".
        fixed: Whether the draws are the same in every epoch, as for validation.
        field: The name of the image field; None if there is only one.
        after: The ToDtype and Normalize after it in a Loader's list.
        walks: How far parameters change from one frame of a clip to the next, see `walking`.
    """

    name: str
    scale: int
    variants: tuple[Variant, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sharpens: str = ""
    fixed: bool = False
    field: str | None = None
    after: tuple[Transform, ...] = ()
    walks: tuple[float, ...] = (0.0,) * 9

    is_compiled: ClassVar[bool] = True
    makes_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Make the tables that kernels read."""
        object.__setattr__(self, "fixed", flag(f"{self.name}: fixed", self.fixed))
        num_steps = max(len(v.steps) for v in self.variants)
        num_rules = max(len(v.rules) for v in self.variants)
        table = np.zeros((len(self.variants), num_steps, steps.NUM_STEP))
        rules = np.zeros((len(self.variants), num_rules, 4))
        for v, variant in enumerate(self.variants):
            for s, step in enumerate(variant.steps):
                table[v, s, list(step)] = list(step.values())
            rules[v, : len(variant.rules)] = np.array(variant.rules).reshape(-1, 4)
            rules[v, len(variant.rules) :, steps.REORDER] = steps.FIRST_LAST  # with a probability of 0
        chances = np.cumsum([v.p for v in self.variants])
        object.__setattr__(self, "tables", (chances, table, rules))

    tables: tuple[F64, F64, F64] = dataclasses.field(init=False)

    @property
    def is_random(self) -> bool:
        """Whether it makes other choices in every epoch."""
        return not self.fixed

    @property
    def growth(self) -> float:
        """How many times larger than the image a side may become on the way."""
        _, table, _ = self.tables
        # Ranges may run downwards.
        most = np.maximum(
            table[:, :, [steps.MOST_UP, steps.MOST_DOWN]], table[:, :, [steps.LEAST_UP, steps.LEAST_DOWN]]
        )
        most = np.where(table[:, :, [steps.UP_P, steps.DOWN_P]] > 0, most, 1.0)
        most[table[:, :, steps.DIVIDES] > 0, 1] = 1.0
        most = np.where(table[:, :, steps.CODE] == steps.RESIZE, np.maximum(most.max(2), 1.0), 1.0)
        of_image = table[:, :, steps.OF] == steps.OF_IMAGE
        # Those of the result may come first in a random order.
        of_result = np.where(of_image, 1.0, most / self.scale).max(1)
        return float((np.where(of_image, most, 1.0).prod(1) * np.maximum(of_result, 1.0)).max())

    def __repr__(self) -> str:
        fixed = {"fixed": True} if self.fixed else {}
        field = {} if self.field is None else {"field": self.field}
        shown = {"scale": self.scale, **self.options, **fixed, **field}
        walking = f".walking{self.walks}" if any(self.walks) else ""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in shown.items())}){walking}"

    def walking(
        self,
        sigma_step: float = 0.02,
        rotate_angle_step: float = 0.31416,
        beta_gaussian_step: float = 0.05,
        beta_plateau_step: float = 0.1,
        omega_step: float = 0.0628,
        resize_step: float = 0.015,
        gaussian_sigma_step: float = 0.1,
        poisson_scale_step: float = 0.005,
        quality_step: float = 3.0,
    ) -> Degradation:
        """Return the same degradation with parameters that change from frame to frame of a window of `Clips`.

        Without it, all frames of a window get the same chain with the same parameters, and each its own noise. With it,
        each parameter does a random walk: it changes by at most its step from one frame to the next, and stays in its
        range. 0 keeps a parameter. The defaults are those of RealBasicVSR.

        Args:
            sigma_step: For both standard deviations of a blur, or BSRGAN's variances.
            rotate_angle_step: For the angle of an anisotropic blur, in radians.
            beta_gaussian_step: For the exponent of a generalized Gaussian kernel.
            beta_plateau_step: For the exponent of a plateau kernel.
            omega_step: For the cutoff of a low-pass (sinc) filter, in radians per pixel.
            resize_step: For the factor of a random resize.
            gaussian_sigma_step: For the standard deviation of Gaussian noise, in 255ths.
            poisson_scale_step: For the scale of Poisson noise.
            quality_step: For JPEG's quality.

        Raises:
            OptionError: A step is negative, or not finite.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        walks = tuple(number(name, value) for name, value in given.items())
        if not all(0 <= value < math.inf for value in walks):
            raise OptionError(f"{self.name}: walking: {given}: expected finite numbers of at least 0")
        return dataclasses.replace(self, walks=walks)

    def followed_by(self, transforms: Sequence[Transform]) -> Degradation:
        """Return the same degradation with these transforms after it.

        Raises:
            OptionError: One is neither ToDtype nor Normalize.
        """
        for transform in transforms:
            if not isinstance(transform, ToDtype | Normalize):
                raise OptionError(
                    f"transforms: {type(transform).__name__} comes after {self.name}; expected ToDtype and Normalize "
                    "there. Put crops, flips and changes of colors before it."
                )
            if wrong := set(transform.fields or ()) - {"lr", "hr"}:
                raise OptionError(f"{transform}: no image field {min(wrong)!r}; after {self.name} there are lr and hr")
        return dataclasses.replace(self, after=tuple(transforms))

    def draw(
        self, draws: I64, height: int, width: int, *, seed: int = 0, epoch: int = 0, frames: int = 1
    ) -> tuple[F64, I64, I64]:
        """Return what is drawn for samples: the numbers of steps (n, steps, 7), their orders (n, steps), variants (n,).

        Args:
            draws: (n,) integers, numbers of the samples.
            height: Of the images.
            width: Of the images.
            seed: The Loader's.
            epoch: Its number.
            frames: The number of frames in a window; each frame has the window's number in `draws`.
        """
        draws, (_, table, _) = np.ascontiguousarray(draws, np.int64), self.tables
        drawn = np.zeros((len(draws), table.shape[1], steps.NUM_DRAWN))
        orders, variants = np.zeros((len(draws), table.shape[1]), np.int64), np.zeros(len(draws), np.int64)
        epoch = 0 if self.fixed else epoch
        walks = np.array(self.walks)
        entries.draw_chains(
            *self.tables, seed, epoch, draws, height, width, self.scale, walks, frames, drawn, orders, variants
        )
        return drawn, orders, variants

    def room(self, channels: int, height: int, width: int) -> tuple[tuple[Any, ...], npt.NDArray[np.uint64]]:
        """Return the kernel's last arguments for images (`channels`, `height`, `width`), and the memory behind them."""
        count = self.tables[1].shape[1]
        sides = (math.ceil(side * self.growth) + 1 for side in (height, width))
        sizes = np.array([0, *entries.degrade_rooms(channels, *sides)], np.int64)
        sizes = -(-sizes // 8) * 8  # cache lines
        memory = np.empty(int(sizes.sum()) + 8, np.uint64)
        rooms = np.zeros(len(sizes) + opcodes.NUM_GEOMETRY + 2, np.int64)
        rooms[: len(sizes)] = -(-memory.ctypes.data // 64) * 64 + 8 * np.cumsum(sizes)
        return (rooms, np.zeros((count, steps.NUM_DRAWN)), np.zeros(count, np.int64)), memory

    def degraded(
        self, image: npt.NDArray[Any], sample: int, *, seed: int = 0
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return `lr` and `hr` of one image (H, W, C), as epoch 0 of a Loader with this seed has them.

        Args:
            image: (H, W, C) uint8 or uint16 of 1 or 3 channels; both sides are multiples of the scale.
            sample: Its number, on which the draws depend.
            seed: Of the draws.

        Returns:
            (H / scale, W / scale, C) and (H, W, C) of the image's type.

        Raises:
            OptionError: The image has another shape or type.
        """
        height, width, channels = image.shape if image.ndim == 3 else (0, 0, 0)
        is_divisible = height % self.scale == width % self.scale == 0
        if not (image.size and image.dtype in (np.uint8, np.uint16) and channels in (1, 3) and is_divisible):
            raise OptionError(
                f"{self}: {image.dtype} of shape {image.shape}; expected uint8 or uint16 (H, W, C) of 1 or 3 channels, "
                f"with sides that are multiples of {self.scale}"
            )
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))
        lr, hr = made = [np.empty((height // n, width // n, channels), image.dtype) for n in (self.scale, 1)]
        described = np.zeros((2, at.NUM_DESCRIBED), np.int64)  # copied
        described[:, at.OUT_ITEMSIZE], described[:, at.CHANNELS_LAST] = image.itemsize, 1
        for row, out in zip(described, made, strict=True):
            row[[at.OUT_HEIGHT, at.OUT_WIDTH, at.OUT_CHANNELS]] = out.shape
        arguments, _memory = self.room(channels, height, width)
        self._run(
            planes.ctypes.data, image.itemsize, planes.shape, np.array([sample], np.int64),
            np.array([out.ctypes.data for out in made], np.int64), described, np.zeros((2, 3, 2), np.float32),
            arguments, seed=seed, epoch=0, frames=1,
        )  # fmt: skip
        return lr, hr

    def _run(
        self,
        images: int,
        itemsize: int,
        shape: tuple[int, ...],
        samples: I64,
        out: I64,
        described: I64,
        affine: npt.NDArray[np.float32],
        room: tuple[Any, ...],
        *,
        seed: int,
        epoch: int,
        frames: int,
    ) -> None:
        """Call the kernel `degrade`, whose arguments these are."""
        done = entries.degrade(
            images, itemsize, shape, samples, frames, np.array(self.walks), self.tables, self.scale,
            ("", "lr", "both").index(self.sharpens), seed, 0 if self.fixed else epoch, out, described, affine, *room,
        )  # fmt: skip
        if not done:
            raise OptionError(f"{self}: its last resize does not give the size of 'lr'")

    def on_device(self, hr: torch.Tensor, samples: Any, *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `lr` and `hr` of a batch, made by torch where the images are.

        They equal those of a Loader for the same samples and epoch, except for rounding and noise: kernels, sizes,
        modes, qualities, orders and noise levels are the same. The noise comes from torch's generator. It depends only
        on the seed, the epoch, the sample's number and the kind of device.

        Args:
            hr: (B, 1 or 3, H, W) uint8, uint16, or float32 from 0 to 1, on any device: cropped, but neither degraded
                nor normalized.
            samples: (B,) integers, the samples' numbers, as `lmdbloader.transforms.WithIndices` gives them.
            seed: That of the Loader.
            epoch: The number of the Loader's epoch; the same one again gives the same draws.

        Returns:
            `lr` (B, C, H / scale, W / scale), and `hr`, sharpened if the preset says so; both of the type and on the
            device of the images, float32 rounded to 255ths.

        Raises:
            OptionError: The images or the numbers have a wrong type, shape or range.
        """
        from lmdbloader.transforms.degradation_in_torch import degrade, numbers_of

        if any(self.walks):
            raise OptionError(f"{self}.on_device takes single images. Leave `.walking` out, or degrade in the Loader.")
        numbers = numbers_of(samples, hr, self.scale, f"{self}.on_device")
        seed, epoch = whole("seed", seed, 0, 2**64 - 1), whole("epoch", epoch, 0, 2**63 - 1)
        drawn, orders, variants = self.draw(numbers, *hr.shape[2:], seed=seed, epoch=epoch)
        keys = np.array([(seed, 0 if self.fixed else epoch, number) for number in numbers.tolist()], "<u8")
        return degrade(hr, keys, self.tables[1][variants], drawn, orders, self.sharpens)

    def apply(self, batch: Any, random: np.random.Generator) -> NoReturn:
        """Raise OptionError: only a Loader knows the numbers of the samples.

        Args:
            batch: A batch.
            random: Random numbers.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"{self}: only a Loader calls it. Add it to Loader(..., transforms=[RandomCrop(256), ...]), or call "
            ".on_device(hr, samples, seed=0, epoch=0)."
        )
