"""The options of a conversion: one table for `convert`, `estimate`, the manifest and the command line."""

# ruff: noqa: RUF009 - opt() returns a field

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from types import NoneType
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from lmdbloader.base.option_names import option
from lmdbloader.base.units import NBYTES, PIXELS, REAL, SHARE, WHOLE, Grammar
from lmdbloader.conversion.sources.layouts import Layout, layout_names

# The groups of flags in `lmdbloader convert --help`, in order.
GROUPS: dict[str, str | None] = {
    "inputs": None,
    "samples and codecs": None,
    "how images are stored": "By default whole JPEG files are stored without loss; all other images, and\n"
    "patches, are stored as pixels.",
    "unusual images": None,
    "running": None,
}
TAKE, MAKE, STORE, UNUSUAL, RUN = GROUPS

P = ParamSpec("P")
S_contra = TypeVar("S_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
Options = TypeVar("Options", bound="ConvertOptions")


def opt(
    default: Any,
    group: str,
    text: str,
    *,
    metavar: str | None = None,
    flag: str | None = "",
    limits: tuple[float, float | None] | None = None,
    grammar: Grammar | None = None,
    choices: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Return a field of an options class.

    Args:
        default: The default value.
        group: The group of its flag in the help, one of GROUPS.
        text: One sentence without a full stop, for docstrings and the help. `{name}` stands for another option.
        metavar: The name of its value in the help.
        flag: Its flag, if that is not the field's name; None for an option that the command does not have.
        limits: The least and the most value; None for no upper limit.
        grammar: The texts that mean its number, if they are not those of any whole number or any number.
        choices: Returns the values that it can have, if its type does not list them.
    """
    about: dict[str, Any] = {"group": group, "text": text, "metavar": metavar, "flag": flag}
    about |= {"limits": limits, "grammar": grammar, "choices": choices}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """The options that `convert` and `estimate` share. Every field is a keyword argument of both and a flag."""

    layout: Layout | Literal["auto"] = opt(
        "auto",
        TAKE,
        "how {src} is laid out, or auto to detect it (default: auto)",
        choices=lambda: ("auto", *layout_names()),
    )
    hr: str | os.PathLike[str] | None = opt(
        None, TAKE, "folder, LMDB or tar of pairs' high-resolution images, instead of {src}", metavar="DIR"
    )
    lr: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = opt(
        None,
        TAKE,
        "folder, LMDB or tar of pairs' low-resolution images; give {lr} once for each scale (in Python, a list) for "
        "the fields lr2, lr4 and so on",
        metavar="DIR",
    )
    masks: str | os.PathLike[str] | None = opt(
        None,
        TAKE,
        "folder of the masks of the images in {src}, matched by name: a.jpg with a.png or a_mask.png",
        metavar="DIR",
    )
    binary_masks: bool = opt(
        False,
        TAKE,
        "store 1 for the 255 of masks of 0 and 255, and for the brighter half of soft edges between them (default: "
        "refuse such masks, as 255 marks pixels without a label)",
    )
    annotations: str | os.PathLike[str] | None = opt(
        None,
        TAKE,
        "COCO's JSON file with the boxes of the images in {src}",
        metavar="FILE",
    )
    min_pair_psnr: float | None = opt(
        None,
        TAKE,
        "refuse a given pair if the PSNR between its downscaled HR image and its LR image is below this, in dB "
        "(default: 20; no bound for images of the same size), or rises when one of them is moved by a pixel; 0 "
        "accepts every pair",
        metavar="DB",
    )
    subset: int | None = opt(None, TAKE, "take only N of the images, chosen at random, in their order", metavar="N")
    seed: int | None = opt(
        None,
        TAKE,
        "seed of {subset}, {degradation} and {write_mode:proportion} (default: 0); the choice depends only on it and "
        "the names",
        metavar="S",
        limits=(0, 2**64 - 1),
    )
    shuffle: int | None = opt(
        None,
        TAKE,
        "store the images in a random order, drawn from this seed and their names; patches of an image and frames of "
        "a clip stay together (default: in the order of their names)",
        metavar="SEED",
        limits=(0, 2**64 - 1),
    )
    classes: Sequence[str] | None = opt(
        None,
        TAKE,
        "names of the classes by label (default: those of class folders, in byte order, or those in files of boxes)",
        flag=None,
    )
    patch_size: int | None = opt(
        None,
        MAKE,
        "cut patches of N x N pixels, of hr if there are pairs (default: store whole images)",
        metavar="N",
        limits=(1, None),
        grammar=PIXELS,
    )
    stride: int | None = opt(
        None,
        MAKE,
        "distance between patches (default: the patch size)",
        metavar="M",
        limits=(1, None),
        grammar=PIXELS,
    )
    scale: int | Sequence[int] | None = opt(
        None,
        MAKE,
        "make lr from hr, S times smaller (2 to 8), by bicubic downscaling; hr is first cropped at the right "
        "and bottom to a multiple of S. Several, such as 2,3,4, make lr2, lr3 and lr4, and crop hr to a multiple of "
        "their least common multiple. For given pairs: the factor that they must have",
        metavar="S",
        limits=(2, 8),
    )
    crop_to_scale: bool = opt(
        False,
        MAKE,
        "crop the HR images of given pairs at the right and bottom to a multiple of the scale, if the LR images were "
        "made from cropped images (default: refuse such pairs)",
    )
    bicubic: Literal["matlab", "pillow"] = opt(
        "matlab", MAKE, "which bicubic: MATLAB's imresize, as the literature uses it (default), or Pillow's"
    )
    degradation: str | os.PathLike[str] | None = opt(
        None,
        MAKE,
        "with {scale}, make lr by a random degradation instead of bicubic, once for each image: real_esrgan, bsrgan, "
        "bsrgan_plus, neosr, trainner_redux or first_order, also with arguments, as in 'bsrgan(jpeg_range=[50, 95])', "
        "or an option file (YAML, TOML) of those projects. real_esrgan sharpens hr too, unless gt_usm=False",
        metavar="NAME",
    )
    codec: str | None = opt(
        None,
        MAKE,
        "codec of pixels (default: auto, which tries a few inputs). delta makes photographs smallest. If "
        "it is given without {write_mode}, all images are stored as pixels",
        metavar="{auto,raw,lz4,delta}",
    )
    prefer: Literal["speed", "size"] = opt(
        "speed",
        MAKE,
        "what the codec auto chooses by. speed (default): lz4 if that saves 10 %, else raw. size: the smallest of raw, "
        "lz4 and delta",
    )
    write_mode: Literal["raw", "jpg", "proportion", "smart", "original"] | None = opt(
        None,
        STORE,
        "how images are stored. raw: pixels, not compressed (see {codec}). jpg: as JPEG. proportion: some of them as "
        "JPEG, the others as pixels. smart: large ones as JPEG, the others as pixels. original: the files' own bytes",
        metavar="MODE",
    )
    max_resolution: int | None = opt(
        None,
        STORE,
        "shrink images whose longer side has more than N pixels to N",
        metavar="N",
        limits=(1, 65500),  # the most that libjpeg writes
        grammar=PIXELS,
    )
    jpeg_quality: int | None = opt(
        None, STORE, "quality of the JPEGs that are made, 1 to 100 (default: 90)", metavar="Q", limits=(1, 100)
    )
    jpeg_code: Literal["fast", "file"] | None = opt(
        None,
        STORE,
        "how JPEGs are stored, without loss in both cases. fast (default): recoded, so that they decode faster; only "
        "lmdbloader reads them, and extract restores the files byte for byte. file: the file and, unless it is "
        "progressive, a table for crops, which other programs can open",
    )
    compress_probability: float | None = opt(
        None,
        STORE,
        "share of the images that proportion stores as JPEG, 0 to 1 (default: 0.5)",
        metavar="P",
        limits=(0, 1),
        grammar=SHARE,
    )
    smart_threshold: int | None = opt(
        None,
        STORE,
        "smart stores images with more bytes of pixels (height x width x channels) than this as JPEG",
        metavar="BYTES",
        limits=(0, None),
        grammar=NBYTES,
    )
    alpha: Literal["refuse", "drop", "white"] = opt(
        "refuse",
        UNUSUAL,
        "transparent images: refuse them (default), drop the transparency, or put them on a white background",
    )
    max_pixels: int = opt(
        200_000_000, UNUSUAL, "refuse larger images (default: 200 million)", metavar="N", limits=(1, None)
    )
    on_error: Literal["stop", "skip"] = opt(
        "stop", UNUSUAL, "what to do with an image that cannot be used (default: stop)"
    )
    workers: int | None = opt(
        None,
        RUN,
        "worker processes, 0 and 1 for none (default: the cores that this process may use, fewer for small inputs); "
        "{out} does not depend on it",
        metavar="N",
        limits=(0, None),
    )

    @property
    def low_scales(self) -> dict[str, int]:
        """The scale of each low-resolution field, by name, in order; empty without a scale.

        >>> ConvertOptions(scale=2).low_scales, ConvertOptions(scale=[2, 3]).low_scales
        ({'lr': 2}, {'lr2': 2, 'lr3': 3})
        """
        if self.scale is None or isinstance(self.scale, int):
            return {} if self.scale is None else {"lr": self.scale}
        return {f"lr{scale}": scale for scale in self.scale}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(ConvertOptions):
    """The options of `convert`."""

    parts: int | None = opt(
        None,
        RUN,
        "write N parts, each with a contiguous share of the samples (default: as {part_size} says)",
        metavar="N",
        limits=(1, 100_000),
    )
    part_size: int | None = opt(
        None,
        RUN,
        "write parts of about this size; their number follows from the estimated size of the whole (default: 256MiB). "
        "Several processes write at the same time, and an interrupted conversion keeps complete parts",
        metavar="SIZE",
        limits=(1, None),
        grammar=NBYTES,
    )
    overwrite: bool = opt(False, RUN, "convert again, and replace the dataset at {out} once the new one is complete")
    restart: bool = opt(False, RUN, "discard the progress of an interrupted conversion (default: resume it)")
    check_content: bool = opt(
        False,
        RUN,
        "find inputs that have changed since their conversion by reading all of them again (default: compare sizes, "
        "and read the content only if a time has changed)",
        flag="--hash",
    )
    progress: bool = opt(
        False, RUN, "show the progress: a line on a terminal, in a log one every 30 seconds", flag=None
    )
    log: Callable[[str], None] = opt(lambda line: None, RUN, "called with each message, a line of text", flag=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions(ConvertOptions):
    """The options of `estimate`."""

    sample: int = opt(100, RUN, "inputs to try, at least 4 (default: 100)", metavar="N", limits=(4, None))
    sample_seed: int = opt(0, RUN, "another seed draws other inputs (default: 0)", metavar="S", limits=(0, None))


def checked(options: Options) -> Options:
    """Return options with values of Python's own types.

    Raises:
        OptionError: A value is of another type, or out of its range. Values that other options exclude are not found.
    """
    hints = get_type_hints(type(options))
    values = {f.name: _checked(f, hints[f.name], getattr(options, f.name)) for f in fields(options)}
    return replace(options, **values)


def check_value(name: str, value: Any) -> Any:
    """Return the value of one option as a value of Python's own types.

    Raises:
        OptionError: It is of another type, or out of its range.
    """
    f = next(f for f in fields(ConvertOptions) if f.name == name)
    return _checked(f, get_type_hints(ConvertOptions)[name], value)


def _checked(f: Field[Any], hint: Any, value: Any) -> Any:
    from lmdbloader.base import arguments
    from lmdbloader.errors import OptionError

    if value is None and NoneType in get_args(hint):
        return None
    if choices := choices_of(f, hint):
        if value not in choices:
            expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
            raise OptionError(f"{option(f.name, value)}: expected {expected}")
        return value
    least, most = f.metadata["limits"] or (None, None)
    kind = kind_of(hint)
    if takes_several(hint):
        many = value.split(",") if kind is int and isinstance(value, str) else value
        if isinstance(many, Sequence) and not isinstance(many, str):
            found = sorted({_checked(f, int, each) for each in many}) if kind is int else list(many)
            if not found:
                raise OptionError(f"{option(f.name, value)}: expected at least one")
            return found[0] if len(found) == 1 else found  # a list, as JSON has it
    if (grammar := grammar_of(f, hint)) is not None and isinstance(value, str):
        given, value = value, grammar.parse(value)
        if value is None:
            raise OptionError(f"{option(f.name, given)}: expected {grammar.forms}")
    if kind is int:
        if isinstance(value, float) and value.is_integer():  # 1e6
            value = int(value)
        return arguments.whole(f.name, value, least, most)
    if kind is float:
        number = arguments.number(f.name, value)
        if not math.isfinite(number) or (least is not None and not least <= number <= (most or math.inf)):
            limits = "a finite number" if least is None else f"a number from {least} to {most}"
            raise OptionError(f"{option(f.name, value)}: expected {limits}")
        return number
    if kind is bool:
        return arguments.flag(f.name, value)
    if hint in (str, str | None) and not isinstance(value, str):
        raise OptionError(f"{option(f.name, value)}: expected a str")
    return arguments.function(f.name, value) if get_origin(hint) is Callable else value


def choices_of(f: Field[Any], hint: Any) -> tuple[str, ...]:
    """Return the values that an option can have, empty unless they are a few texts."""
    if f.metadata["choices"] is not None:
        return tuple(f.metadata["choices"]())
    parts = [hint, *get_args(hint)]
    return tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))


def kind_of(hint: Any) -> type | None:
    """Return bool, int or float if an option is one of them."""
    return next((part for part in (hint, *get_args(hint)) if part in (bool, int, float)), None)


def takes_several(hint: Any) -> bool:
    """Return whether an option may be one value or several."""
    return len(get_args(hint)) > 2 and any(get_origin(part) is Sequence for part in get_args(hint))


def grammar_of(f: Field[Any], hint: Any) -> Grammar | None:
    """Return how numbers of an option are written; None if the option is not a number."""
    usual = {int: WHOLE, float: REAL}.get(kind_of(hint))  # type: ignore[arg-type]
    return usual and (f.metadata["grammar"] or usual)


def explain(text: str, named: Callable[..., str]) -> str:
    """Return the text of an option with other options in it named by a function, which may get a value too.

    >>> explain("seed of {subset} and {write_mode:jpg}", option)
    "seed of subset and write_mode='jpg'"
    """
    return re.sub(r"\{(\w+)(?::(\w+))?\}", lambda m: named(*filter(None, m.groups())), text)


def shared(options: ConvertOptions) -> ConvertOptions:
    """Return the options that `convert` and `estimate` share."""
    return ConvertOptions(**{f.name: getattr(options, f.name) for f in fields(ConvertOptions)})


class _Reads(Protocol[S_contra, P, R_co]):
    """What type checkers see of a function of a source: Concatenate would forget the name of its argument."""

    def __call__(self, src: S_contra, *args: P.args, **keywords: P.kwargs) -> R_co: ...


class _Makes(Protocol[S_contra, D_contra, P, R_co]):
    """What type checkers see of a function of a source and a destination."""

    def __call__(self, src: S_contra, out: D_contra, *args: P.args, **keywords: P.kwargs) -> R_co: ...


class with_options(Generic[P, O_contra]):
    """Makes the fields of an options class keyword arguments of a function.

    The function, of `src` or of `src` and `out`, takes them as its last argument, an object of that class whose values
    are checked. Its signature and its docstring, below "Args:", list the fields. Type checkers see them too.
    """

    def __init__(self, options: Callable[P, O_contra]) -> None:
        """Take the class."""
        self._options: Any = options

    @overload
    def __call__(self, function: Callable[[S_contra, O_contra], R_co]) -> _Reads[S_contra, P, R_co]: ...
    @overload
    def __call__(
        self, function: Callable[[S_contra, D_contra, O_contra], R_co]
    ) -> _Makes[S_contra, D_contra, P, R_co]: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with keyword arguments."""
        about = fields(self._options)
        names = {f.name for f in about}

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            given = {name: keywords.pop(name) for name in names & keywords.keys()}
            return function(*args, **keywords, options=checked(self._options(**given)))

        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:-1]
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(f.name, keyword_only, default=f.default, annotation=f.type) for f in about]
        signature = signature.replace(parameters=[*own, *added])
        call.__signature__ = signature  # type: ignore[attr-defined]
        hints = get_type_hints(self._options)
        call.__annotations__ = {**function.__annotations__, **hints}
        del call.__annotations__["options"]
        call.__doc__ = _document(function.__doc__ or "", about)
        return call


def _document(docstring: str, about: Iterable[Field[Any]]) -> str:
    """Return a docstring, without indentation, with the fields of an options class at the end of its "Args:"."""
    lines = []
    for f in about:
        text = explain(f.metadata["text"], lambda *about: f"`{option(*about)}`")
        sentence = f"{f.name}: {text[0].upper()}{text[1:]}."
        lines += textwrap.wrap(sentence, 116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    # From Python 3.13 on the compiler removes the indentation.
    args, end, rest = inspect.cleandoc(docstring).partition("\n\nReturns:\n")
    return "\n".join([args, *lines]) + end + rest
