"""The base classes of transforms: frozen descriptions, whose arguments are checked by their declared kinds."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, get_origin

from lmdbloader.base.arguments import shown
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.arguments import Kind, Names
from lmdbloader.transforms.functions import described


class SeveralViews:
    """The base of `Views`, by which other modules know them without theirs."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class Transform:
    """The base of all transforms.

    Sizes and positions refer to a sample's largest image; its smaller ones (`lr` next to `hr`) are transformed in step,
    at their own scale.

    Attributes:
        kinds: The kinds of its arguments by name, which their annotations declare (see
            `lmdbloader.transforms.arguments`); a class with an argument that declares none is refused.
        fields: Names of the image fields that it applies to; None for all of them.
    """

    kinds: ClassVar[Mapping[str, Kind]] = {}

    _: KW_ONLY
    fields: Names = None

    def __init_subclass__(cls) -> None:
        """Collect the kinds of the arguments.

        Raises:
            OptionError: One declares no kind.
        """
        cls.kinds = {**cls.kinds, **_declared_kinds(cls)}

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            object.__setattr__(self, name, kind.check(self, name, getattr(self, name)))

    def __repr__(self) -> str:
        shown = [
            f.name
            for f in dataclasses.fields(self)
            if self.kinds[f.name].is_shown or getattr(self, f.name) != f.default
        ]
        # The inherited `fields` are last, as people write them.
        shown.sort(key="fields".__eq__)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _declared_kinds(cls: type) -> dict[str, Kind]:
    """Return the kinds of the arguments that a class adds."""
    found = {}
    for name, hint in inspect.get_annotations(cls, eval_str=True).items():
        origin: object = get_origin(hint)
        if name == "_" or origin is ClassVar:  # dataclasses' mark of keywords
            continue
        kinds = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Kind)]
        if len(kinds) != 1:
            raise OptionError(
                f"{cls.__name__}.{name}: declares no kind of argument. Annotate it with one of "
                "lmdbloader.transforms.arguments, or with Annotated[type, Kind(check)]."
            )
        found[name] = kinds[0]
    return found


Transform.kinds = _declared_kinds(Transform)


@dataclass(frozen=True, slots=True, repr=False)
class Geometry(Transform):
    """A transform that moves or changes pixels; it gives the kernels an operation.

    A subclass sets the class attributes, and overrides `size_numbers` and `real_numbers` for further numbers.

    Attributes:
        code: Its operation, see `lmdbloader.kernels.transform.opcodes`.
        sets_size: Whether its result has its `size`.
        resizes: Whether it resizes images.
        erases: Whether it fills a rectangle of the finished image with its `value`.
        warps: Whether its pixels are between those of the image, with its `fill` around it.
        mixes: Whether its result is a mix of moved images, which no mask, box or point can follow.
    """

    code: ClassVar[int]
    sets_size: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    erases: ClassVar[bool] = False
    warps: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result; (0, 0) if the size stays; a width of 0: `height` is the shorter side."""
        size: int | tuple[int, int] = getattr(self, "size", 0)
        return size if isinstance(size, tuple) else (size, size)

    @property
    def moves(self) -> bool:
        """Whether it moves pixels or changes the size, rather than values."""
        return self.code < opcodes.JITTER and not self.erases

    @property
    def pads(self) -> int:
        """Whether it puts `fill` around the image: PADS_NOTHING ... PADS_SMALL_IMAGES."""
        if getattr(self, "pad_if_needed", False):
            return opcodes.PADS_SMALL_IMAGES
        return opcodes.PADS if self.warps or any(self.padding_numbers) else opcodes.PADS_NOTHING

    @property
    def varies_size(self) -> bool:
        """Whether the size of its result depends on random choices."""
        return False

    @property
    def padding_numbers(self) -> tuple[int, int, int, int]:
        """Pixels around the image: top, bottom, left, right."""
        padding: Any = getattr(self, "padding", 0)
        if not isinstance(padding, tuple):
            return padding, padding, padding, padding
        left, top, right, bottom = padding * 2 if len(padding) == 2 else padding
        return top, bottom, left, right

    @property
    def whole_numbers(self) -> dict[int, int]:
        """Its whole numbers by column (OP_HEIGHT ... OP_CUBIC)."""
        height, width = self.size_numbers
        top, bottom, left, right = self.padding_numbers
        return {
            opcodes.OP_HEIGHT: height,
            opcodes.OP_WIDTH: width,
            opcodes.OP_PADS: self.pads,
            opcodes.OP_PAD_TOP: top,
            opcodes.OP_PAD_BOTTOM: bottom,
            opcodes.OP_PAD_LEFT: left,
            opcodes.OP_PAD_RIGHT: right,
            opcodes.OP_CUBIC: getattr(self, "interpolation", "") == ("bilinear" if self.warps else "bicubic"),
            opcodes.OP_EXPANDS: getattr(self, "expand", False),
        }

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Its real numbers, at most NUM_REAL: probabilities and ranges of its random choices."""
        return ()

    @property
    def num_operations(self) -> int:
        """How many operations it is in a program, with the same numbers; if several, each has a stage of its own."""
        return 1

    @property
    def ends_stage(self) -> bool:
        """Whether its result is written out as pixels before the next operation."""
        return self.resizes or self.warps or self.code >= opcodes.JITTER


class Branch(NamedTuple):
    """Transforms that are applied if a draw is from `low` to `high`; or in an order, if `item` comes at this place."""

    transforms: Sequence[Any]
    low: float = 0.0
    high: float = 0.0
    place: int = 0
    size: int = 0
    item: int = 0


def _items(of: Any, name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise OptionError(f"{type(of).__name__}({name}={shown(value)}): expected a list of at least one transform")
    return tuple(_item(of, each) for each in value)


def _item(of: Any, value: Any) -> Any:
    """Return a transform with the fields of its container, if it names none; or such a list as a tuple."""
    if isinstance(value, list | tuple):
        return tuple(_item(of, each) for each in value)
    if isinstance(value, Geometry | Container):
        return value if of.fields is None or value.fields is not None else dataclasses.replace(value, fields=of.fields)
    name, kind = type(of).__name__, type(value).__name__
    if isinstance(value, Transform):
        raise OptionError(f"{name}: {value} is for all samples alike. Put it after: [{name}([...]), {value}].")
    if isinstance(value, type):
        line = f"Write {value.__name__}(...)."
    elif kind in ("Compose", "Sequential", "Identity"):
        line = f"Write a list, {'[]' if kind == 'Identity' else '[...]'}, in place of {kind}."
    elif type(value).__module__.startswith("torchvision."):
        line = f"Write lmdbloader.transforms.{kind}(...), or leave it out if there is none."
    elif isinstance(value, SeveralViews):
        line = f"Put {name} into the lists of {kind}: {kind}([{name}([...])], ...)."
    else:
        line = f"Functions go to the end of Loader(..., transforms=[..., {name}([...]), function])."
    raise OptionError(
        f"{name}: {described(value)} is not compiled; expected transforms of lmdbloader.transforms, or lists. {line}"
    )


@dataclass(frozen=True, slots=True, repr=False)
class Container(Transform):
    """The base of the containers. Its `fields` are given to the transforms inside that name none."""

    transforms: Annotated[Sequence[Any], Kind(_items)]

    @property
    def steps(self) -> list[list[Branch]]:
        """The branches of each of its steps, all on one draw; a step takes one of its branches at most."""
        raise NotImplementedError

    @property
    def skips(self) -> bool:
        """Whether a step may take no branch."""
        return False


def leaves(transforms: Iterable[Any]) -> Iterator[Any]:
    """Yield the transforms of a list, and in place of a container or a list in it those inside, in their order.

    >>> from lmdbloader.transforms import CenterCrop, RandomApply, Resize
    >>> [type(t).__name__ for t in leaves([RandomApply([Resize(8), CenterCrop(8)]), CenterCrop(4)])]
    ['Resize', 'CenterCrop', 'CenterCrop']
    """
    for t in transforms:
        if isinstance(t, Container | tuple):
            yield from leaves(t if isinstance(t, tuple) else t.transforms)
        else:
            yield t
