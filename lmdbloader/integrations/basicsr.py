"""Two dataset types for BasicSR, Real-ESRGAN, neosr and traiNNer-redux: pairs, and HR images with blur kernels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.draws import drawn
from lmdbloader.batch.many import ReadsMany
from lmdbloader.errors import OptionError
from lmdbloader.integrations.enlarged_sampler import PROGRAMS, adapt_sampler, option
from lmdbloader.superres.degradations import BlurKernels
from lmdbloader.transforms import Normalize, RandomCrop, RandomDihedral, RandomHorizontalFlip, ToDtype, Transform

__all__ = ["LmdbloaderDataset", "LmdbloaderGtDataset"]

# Options of those datasets that these types do not have: a dataset is chosen and paired when it is converted, and a
# sample has one image of each kind.
_UNKNOWN = ("dataroot_lq", "meta_info_file", "meta_info", "filename_tmpl", "color", "num_frame", "clip_size")
# Sides of the images that a model degrades, before its own crop.
_GT_OF_BASICSR, _GT_OF_NEOSR, _MORE_GT_OF_REDUX = 400, 512, 32


class _Registered(ReadsMany):
    """What both types share: compiled code crops, flips and rotates, with the choices of the epoch and the draw.

    A number is a sample's, with new choices at every read; or a pair of the program's sampler, see `adapt_sampler`.

    Attributes:
        opt: The section of the configuration, which the program reads too.
    """

    label: ClassVar[str]

    def __init__(self, opt: Any, options: Mapping[str, Any], fields: Sequence[str], gt_size: int | None) -> None:
        self.opt = opt
        self._dataset = dataset = LMDBDataset(_path(options), fields=fields)
        _check_scale(dataset, options.get("scale"))
        self._seed = torch.initial_seed()  # the program has set it to its manual_seed
        self._view, self._normalize = None, _normalize(options)
        if gt_size is not None:
            _check_size(dataset, fields[-1], gt_size)
            self._view = dataset.transformed(_steps(options, gt_size, self._normalize), seed=self._seed)
        table = dataset.table
        self._sources = table["source"] if "source" in table.column_names else None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return self._many([index])[0]

    def _many(self, numbers: Sequence[Any]) -> list[dict[str, Any]]:
        """Return many samples read in one call."""
        if numbers and isinstance(numbers[0], tuple):
            epoch, draws = numbers[0][0], np.array([draw for _, draw in numbers], np.int64)
            chosen = draws % len(self)
        else:
            chosen = np.array([range(len(self))[number] for number in numbers], np.int64)
            draws, epoch = drawn(chosen) if self._view is not None else (chosen, 0)
        if self._view is not None:
            samples = self._view._read(chosen, draws, epoch)
        else:
            samples = [self._whole(self._dataset[number]) for number in chosen.tolist()]
        keys = [(self._seed, epoch, draw) for draw in draws.tolist()]
        return [self._named(*given) for given in zip(samples, map(self._path_of, chosen.tolist()), keys, strict=True)]

    def _whole(self, sample: Any) -> Any:
        """Return a sample as it is for validation, whose images may have different sizes: floats from 0 to 1."""
        images = [image.to(torch.float32) * (1 / torch.iinfo(image.dtype).max) for image in sample]
        if self._normalize is not None:
            mean, std = (
                torch.tensor(v, device="cpu")[:, None, None] for v in (self._normalize.mean, self._normalize.std)
            )
            images = [(image - mean) / std for image in images]
        return sample._make(images)

    def _path_of(self, number: int) -> str:
        return str(number) if self._sources is None else str(self._sources[number])

    def _named(self, sample: Any, path: str, key: tuple[int, int, int]) -> dict[str, Any]:
        """Return what the program's models read.

        Args:
            sample: Images.
            path: Of the file that the sample was made from.
            key: The seed, the epoch and the draw, on which random choices depend.
        """
        raise NotImplementedError


class LmdbloaderDataset(_Registered):
    """Pairs from an LMDBDataset, in the form that those programs' paired datasets have: RGB float32 from 0 to 1.

    Compiled code crops, flips and rotates training samples. The choices depend on the program's `manual_seed`, the
    epoch and the draw. Import the module once, after the program's own imports in its `train.py`:
    `import lmdbloader.integrations.basicsr`.

    ```yaml
    datasets:
      train:
        name: DIV2K
        type: LmdbloaderDataset
        dataroot_gt: train.lmdb
        gt_size: 96
        use_hflip: true
        use_rot: true
    ```
    """

    label = "image pairs"

    def __init__(self, opt: Any) -> None:
        """Open the dataset that `dataroot_gt` names.

        Args:
            opt: The section of the configuration, a dict or traiNNer-redux's DatasetOptions: `dataroot_gt`; `phase` and
                `scale`, which the program adds; for training `gt_size`, or neosr's `patch_size` of LQ images;
                `use_hflip`, `use_rot`, `mean` and `std`.

        Raises:
            OptionError: The type does not have an option, or the dataset has another scale.
        """
        options = _options(opt, (*_UNKNOWN, "lq_resize_mode"))
        size: int | None = None
        if options.get("phase", "train") == "train":
            scale = options.get("scale") or 1
            size = _needed(options, "gt_size") if "patch_size" not in options else options["patch_size"] * scale
        path, low = _path(options), f"lr{options.get('scale')}"  # of a dataset with several scales
        fields = LMDBDataset(path).fields
        low = low if low in fields else "lr"
        if low not in fields or "hr" not in fields:
            raise OptionError(
                f"{path}: has {', '.join(fields)}, but pairs of scale {options.get('scale')} are hr and lr. Convert "
                "both: lmdbloader convert --hr GT --lr LQ OUT. If the model degrades images itself, write type: "
                "LmdbloaderGtDataset."
            )
        super().__init__(opt, options, (low, "hr"), size)

    def _named(self, sample: Any, path: str, key: tuple[int, int, int]) -> dict[str, Any]:
        return {"lq": _rgb(sample[0]), "gt": _rgb(sample[1]), "lq_path": path, "gt_path": path}


class LmdbloaderGtDataset(_Registered):
    """HR images and random blur kernels, for models that make the LQ images themselves.

    These are BasicSR's and Real-ESRGAN's RealESRGANModel and RealESRNetModel, neosr's `otf`, and traiNNer-redux's
    RealESRGANModel. A sample is {"gt", "kernel1", "kernel2", "sinc_kernel", "gt_path"}; kernels are (21, 21). They
    depend on the program's `manual_seed`, the epoch and the draw, and have the distribution of the program's own
    dataset. With traiNNer-redux's `lq_resize_mode` there are no kernels.
    """

    label = "GT-only images"

    def __init__(self, opt: Any) -> None:
        """Open the dataset that `dataroot_gt` names: its field `hr`, or its only image field.

        Args:
            opt: The section of the configuration: as for `LmdbloaderDataset`, and the programs' options of kernels:
                `kernel_list`, `kernel_prob`, `blur_sigma`, `betag_range`, `betap_range`, `sinc_prob`, the same with a 2
                at the end, `final_sinc_prob`; of traiNNer-redux also `kernel_range`, `kernel_range2` and
                `final_kernel_range`.

        Raises:
            OptionError: An option is missing, wrong or unknown to the type, or images are smaller than the crop.
        """
        options = _options(opt, (*_UNKNOWN, "mean", "std"))  # the models degrade images from 0 to 1
        if options.get("phase", "train") != "train":
            raise OptionError("LmdbloaderGtDataset is for training. Validate with pairs: type: LmdbloaderDataset")
        self._mode = options.get("lq_resize_mode")
        self._kernels = BlurKernels(options["type"], options) if self._mode is None else None
        images = [name for name, field in LMDBDataset(_path(options)).fields.items() if field.has_pixels]
        self._field = images[0] if len(images) == 1 else "hr"
        super().__init__(opt, options, (self._field,), _gt_size(options))

    def _named(self, sample: Any, path: str, key: tuple[int, int, int]) -> dict[str, Any]:
        found = {"gt": _rgb(getattr(sample, self._field)), "gt_path": path}
        if self._kernels is None:
            return {**found, "lq_path": path, "lq_resize_mode": self._mode}
        kernels = map(torch.from_numpy, self._kernels.draw(*key))
        return {**found, **dict(zip(("kernel1", "kernel2", "sinc_kernel"), kernels, strict=True))}


def _rgb(image: torch.Tensor) -> torch.Tensor:
    """Return an image with three channels, as the programs read gray files too."""
    return image.expand(3, -1, -1) if len(image) == 1 else image


def _options(opt: Any, unknown: Sequence[str]) -> dict[str, Any]:
    """Return the options that are set, of a dict or of traiNNer-redux's DatasetOptions.

    Raises:
        OptionError: There is one that the type does not have.
    """
    names = opt if isinstance(opt, Mapping) else opt.__struct_fields__
    found = {name: value for name in names if (value := option(opt, name)) is not None}
    if found.get("filename_tmpl") == "{}":
        del found["filename_tmpl"]  # the programs' default
    for name in unknown:
        if name in found:
            raise OptionError(f"{found['type']}, {name}: {found[name]}: this option is not supported. Leave it out.")
    return found


def _needed(options: Mapping[str, Any], name: str) -> Any:
    if name not in options:
        raise OptionError(f"{options['type']}: the option {name} is missing")
    return options[name]


def _path(options: Mapping[str, Any]) -> str:
    """Return the dataset's path; traiNNer-redux makes a list of it."""
    paths = _needed(options, "dataroot_gt")
    if not isinstance(paths, list):
        return str(paths)
    if len(paths) != 1:
        raise OptionError(
            f"{options['type']}, dataroot_gt: {paths}: expected one dataset. Make one of them: "
            f"lmdbloader merge {' '.join(paths)} OUT"
        )
    return str(paths[0])


def _normalize(options: Mapping[str, Any]) -> Normalize | None:
    if "mean" not in options and "std" not in options:
        return None
    return Normalize(_needed(options, "mean"), _needed(options, "std"))


def _steps(options: Mapping[str, Any], gt_size: int, normalize: Normalize | None) -> list[Transform]:
    """Return the transforms of training."""
    steps: list[Transform] = [RandomCrop(gt_size)]
    names = ("use_hflip", "use_rot")  # neosr's datasets flip and turn unless they are asked not to
    flips, turns = (options.get(n, True) if "patch_size" in options else _needed(options, n) for n in names)
    if turns and not flips:
        raise OptionError(f"{options['type']}: use_rot: true needs use_hflip: true. Write both.")
    steps += [RandomDihedral()] if turns else [RandomHorizontalFlip()] if flips else []
    return [*steps, ToDtype(torch.float32, scale=True), *([] if normalize is None else [normalize])]


def _gt_size(options: Mapping[str, Any]) -> int:
    """Return the side of the images that a program's model degrades and then crops."""
    if "kernel_range" in options:  # traiNNer-redux
        size = int(_needed(options, "gt_size"))
        return size if "lq_resize_mode" in options else size + _MORE_GT_OF_REDUX
    return _GT_OF_NEOSR if "patch_size" in options else _GT_OF_BASICSR


def _check_scale(dataset: LMDBDataset, scale: int | None) -> None:
    if scale is None or not len(dataset) or len(dataset.fields) == 1:
        return
    low, high = (image.shape[1:] for image in dataset[0])
    if high != (low[0] * scale, low[1] * scale):
        raise OptionError(
            f"{dataset.path}: has pairs of {low[0]}x{low[1]} and {high[0]}x{high[1]}, but the configuration has scale: "
            f"{scale}. {f'Convert with --scale {scale}' if scale > 1 else 'Convert with --hr and --lr'}, or correct it."
        )


def _check_size(dataset: LMDBDataset, field: str, gt_size: int) -> None:
    least = min(dataset.reader.extremes(field, part)[0] for part in ("height", "width"))
    if len(dataset) and least < gt_size:
        raise OptionError(
            f"{dataset.path}: has images with a side of {least} pixels, but with these options the program crops "
            f"{gt_size}x{gt_size}. Convert larger images, for example with --patch-size {gt_size}."
        )


def _register() -> None:
    """Add the types to the registry of each program that is loaded, else of those that are installed."""
    found = [name for name in PROGRAMS if name in sys.modules]
    found = found or [name for name in PROGRAMS if importlib.util.find_spec(name) is not None]
    if not found:
        raise ModuleNotFoundError(f"{__name__} needs one of {', '.join(PROGRAMS)}", name=next(iter(PROGRAMS)))
    for name in found:
        registry = importlib.import_module(f"{name}.utils.registry").DATASET_REGISTRY
        for kind in (LmdbloaderDataset, LmdbloaderGtDataset):
            registry.register(kind)
        adapt_sampler(name, _Registered)


_register()
