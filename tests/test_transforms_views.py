"""Several views of each sample: each is what its list gives alone, whatever the others, the batches and the threads."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_batch_pipeline import LAYOUTS, read, write
from test_batch_pipeline import datasets as datasets
from transform_lists import lists_of_transforms

import lmdbloader
from lmdbloader import Clips, LMDBDataset, Loader, fields, mix
from lmdbloader import transforms as T
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import OptionError
from lmdbloader.store import Reader
from lmdbloader.transforms import (
    CenterCrop,
    ColorJitter,
    GaussianNoise,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Views,
)

FLOAT = [ToDtype(torch.float32, scale=True), Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.2))]
LARGE = [RandomResizedCrop(48, scale=(0.4, 1)), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8), *FLOAT]
SMALL = [RandomResizedCrop(20, scale=(0.05, 0.4)), RandomHorizontalFlip(), RandomGrayscale(0.2)]
HEIGHT, WIDTH = 90, 120


@pytest.fixture(scope="module")
def jpegs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Datasets of JPEGs of all orientations and samplings, recoded and as files, all of one upright size."""
    found = {}
    files = sorted(photos.glob("*.png"))
    for code in ("fast", "file"):
        samples = []
        for k in range(16):
            turned, exif = Image.open(files[k % len(files)]).convert("L" if k % 8 == 3 else "RGB"), Image.Exif()
            turned = turned.resize((HEIGHT, WIDTH) if k % 8 >= 4 else (WIDTH, HEIGHT))
            exif[0x0112] = k % 8 + 1
            buffer = io.BytesIO()
            turned.save(buffer, "JPEG", quality=85, subsampling=k % 3, exif=exif, progressive=k == 5)
            samples.append({"image": buffer.getvalue(), "label": k})
        path = tmp_path_factory.mktemp("views") / code
        declared = {"image": fields.Image()}
        lmdbloader.write(samples, path, fields=declared, write_mode="original", jpeg_code=code)
        found[code] = path
    return found


@pytest.fixture(scope="module")
def ds(jpegs: Any) -> LMDBDataset:
    return LMDBDataset(jpegs["fast"])


def images_of(loader: Any) -> list[torch.Tensor]:
    """Return the images of one epoch, (n, C, H, W) of each view."""
    batches = list(loader)
    return [torch.cat([batch.image[k] for batch in batches]) for k in range(len(batches[0].image))]


def alone(pipeline_of: Any, lists: list[Any], k: int) -> list[Any]:
    """Return the outputs of view k next to views of four pixels; of the first one, without any views."""
    if k == 0:
        return list(read(pipeline_of(lists[0], None), [2, 0, 1], [5, 0, 2**40]))
    first = [CenterCrop(2)]
    found = read(pipeline_of((), Views(*k * [first], lists[k], first)), [2, 0, 1], [5, 0, 2**40])
    per_view = len(found) // (k + 2)
    return list(found[k * per_view : (k + 1) * per_view])


def check_views(reader: Reader, names: tuple[str, ...], lists: list[Any], **options: Any) -> None:
    def pipeline_of(transforms: Any, views: Any) -> Pipeline:
        return Pipeline(reader, names, transforms, views=views, seed=3, **options)

    found = read(pipeline_of((), Views(*lists)), [2, 0, 1], [5, 0, 2**40])
    assert len(found) == len(lists) * len(names)
    for k in range(len(lists)):
        for wanted, got in zip(alone(pipeline_of, lists, k), found[k * len(names) :], strict=False):
            assert wanted.dtype == got.dtype
            assert torch.equal(wanted, got), f"view {k}"


@given(st.data())
@settings(max_examples=150)
def test_each_view_is_what_its_list_gives_alone(datasets: Any, data: Any) -> None:
    layout = data.draw(st.sampled_from([name for name in LAYOUTS if name in ("one", "square", "two", "large")]))
    dtype, channels = (
        data.draw(st.sampled_from([np.uint8, np.uint8, np.uint16, np.float16])),
        data.draw(st.sampled_from([1, 3])),
    )
    reader, _ = datasets(layout, channels, dtype, data.draw(st.sampled_from(["raw", "lz4", "tiled"])))
    reader = reader.with_io(data.draw(st.sampled_from(["mmap", "pread"])))
    one = lists_of_transforms(LAYOUTS[layout], channels, dtype)
    lists = data.draw(st.lists(one, min_size=1, max_size=4))
    check_views(reader, tuple(LAYOUTS[layout]), lists, channels_last=data.draw(st.booleans()))


@given(st.data())
@settings(max_examples=100)
def test_each_view_of_a_jpeg_is_what_its_list_gives_alone(jpegs: Any, data: Any) -> None:
    reader = Reader(jpegs[data.draw(st.sampled_from(["fast", "file"]))])
    share = st.sampled_from([(0.001, 0.02), (0.05, 0.4), (0.4, 1.0), (1.0, 1.0)])
    side = st.integers(1, 60) | st.integers(60, 130)
    cut = st.one_of(
        st.builds(
            RandomResizedCrop, st.tuples(side, side), share, interpolation=st.sampled_from(["bilinear", "bicubic"])
        ),
        st.builds(RandomCrop, st.tuples(st.integers(1, HEIGHT), st.integers(1, WIDTH))),
        st.builds(RandomCrop, st.just((40, 30)), st.just(90)),
        st.builds(Resize, st.tuples(side, side)),
    )
    rest = st.sampled_from([[], [RandomHorizontalFlip()], [RandomHorizontalFlip(), *FLOAT[:1], RandomErasing(0.5)]])
    one = st.builds(lambda first, then: [first, *then], cut, rest)
    pipelines = data.draw(st.lists(one, min_size=1, max_size=5))
    check_views(reader, ("image",), pipelines)


def test_batches_threads_and_ranks_do_not_change_a_view(ds: LMDBDataset) -> None:
    views = Views(global_=2 * [LARGE], local=3 * [SMALL])
    wanted = images_of(Loader(ds, 16, transforms=views, seed=4, shuffle=True, num_threads=1))
    assert [tuple(each.shape[1:]) for each in wanted] == 2 * [(3, 48, 48)] + 3 * [(3, 20, 20)]
    assert [each.dtype for each in wanted] == 2 * [torch.float32] + 3 * [torch.uint8]
    assert not torch.equal(wanted[0], wanted[1]) and not torch.equal(wanted[2], wanted[3])
    assert torch.equal(wanted[0], torch.cat([b.image for b in Loader(ds, 5, transforms=LARGE, seed=4, shuffle=True)]))
    for batch_size in (1, 3):
        found = images_of(Loader(ds, batch_size, transforms=[*views], seed=4, shuffle=True, num_threads=2))
        assert all(map(torch.equal, found, wanted))
    labels = next(b.label for b in Loader(ds, 16, transforms=views, seed=4, shuffle=True)).tolist()
    for rank in range(2):
        for batch in Loader(ds, 2, transforms=views, seed=4, shuffle=True, shard=(rank, 2)):
            places = [labels.index(label) for label in batch.label.tolist()]
            assert all(torch.equal(found, each[places]) for found, each in zip(batch.image, wanted, strict=True))
    last = images_of(Loader(ds, 4, transforms=views, seed=4, shuffle=True, memory_format=torch.channels_last))
    assert last[2].is_contiguous(memory_format=torch.channels_last) or len(last[2]) != 4
    assert all(map(torch.equal, last, wanted))


def test_masks_boxes_and_points_follow_each_view(photos: Path, tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(next(iter(photos.glob("*.png")))).convert("RGB"))[:60, :80]
    row = {
        "image": pixels, "mask": pixels[..., 0], "boxes": np.array([[4, 3, 40, 50]], np.float32),
        "points": np.array([[10, 20]], np.float32), "label": 3, "name": "a",
    }  # fmt: skip
    declared = {"mask": fields.Mask(), "boxes": fields.Boxes("image"), "points": fields.Points("image")}
    lmdbloader.write([row] * 6, tmp_path / "d", fields=declared)
    dataset = LMDBDataset(tmp_path / "d")
    lists = [[RandomCrop(32)], [RandomResizedCrop(24), RandomHorizontalFlip()], []]
    batch = next(iter(Loader(dataset, 4, transforms=Views(*lists), seed=1, shuffle=False)))
    single = next(iter(Loader(dataset, 4, transforms=lists[0], seed=1, shuffle=False)))
    assert torch.equal(batch.image[0], single.image) and torch.equal(batch.mask[0], single.mask)
    assert [tuple(mask.shape) for mask in batch.mask] == [(4, 32, 32), (4, 24, 24), (4, 60, 80)]
    assert torch.equal(batch.mask[0], batch.image[0][:, 0]) and torch.equal(batch.mask[2], batch.image[2][:, 0])
    for name in ("boxes", "points"):
        found = getattr(batch, name)
        assert [len(view) for view in found] == [4, 4, 4]
        assert all(map(torch.equal, found[0], getattr(single, name)))
        assert all(torch.equal(each, torch.from_numpy(row[name])) for each in found[2])
    assert batch.label.tolist() == [3] * 4 and batch.name == ["a"] * 4


def test_as_names_views_and_groups(ds: LMDBDataset) -> None:
    views = Views(global_=2 * [LARGE], local=3 * [SMALL], more=[])
    as_ = {
        "x1": "image[0]",
        "x2": "image[1]",
        "crops": "image.local",
        "none": "image.more",
        "all": "image",
        "y": "label",
    }
    batch = next(iter(Loader(ds, 4, transforms=views, seed=0, shuffle=False, as_=as_)))
    plain = next(iter(Loader(ds, 4, transforms=views, seed=0, shuffle=False)))
    assert list(batch) == list(as_)
    assert torch.equal(batch["x2"], plain.image[1]) and len(batch["crops"]) == 3 and batch["none"] == []
    assert torch.equal(batch["crops"][2], plain.image[4]) and len(batch["all"]) == 5
    assert next(iter(Loader(ds, 4, transforms=views, seed=0, shuffle=False, as_="dict"))).keys() == {"image", "label"}
    for wrong in ("image[5]", "image.global", "label[0]", "x1"):
        with pytest.raises(OptionError, match="no field"):
            Loader(ds, 4, transforms=views, as_={"x": wrong})
    after = Loader(ds, 4, transforms=[views, lambda batch: batch], shuffle=False, as_={"x": "image[9]"})
    with pytest.raises(OptionError, match="no field"):
        next(iter(after))


def test_transforms_before_the_views_are_drawn_once(ds: LMDBDataset) -> None:
    common = [RandomCrop(64), GaussianNoise()]
    found = images_of(Loader(ds, 4, transforms=[*common, Views([], [])], seed=0, shuffle=False))
    assert torch.equal(*found)
    assert torch.equal(found[0], torch.cat([b.image for b in Loader(ds, 4, transforms=common, seed=0, shuffle=False)]))
    of_dataset = images_of(
        Loader(ds.transformed(common, seed=0), 4, transforms=Views([], [RandomHorizontalFlip(1.0)]), shuffle=False)
    )
    assert torch.equal(of_dataset[0], found[0]) and torch.equal(of_dataset[1], found[0].flip(-1))


def test_forty_views_and_one(ds: LMDBDataset) -> None:
    many = next(iter(Loader(ds, 2, transforms=Views(*40 * [SMALL]), seed=0, shuffle=False))).image
    assert len(many) == 40 and len({view.numpy().tobytes() for view in many}) == 40
    (one,) = next(iter(Loader(ds, 2, transforms=Views(SMALL), seed=0, shuffle=False))).image
    assert torch.equal(one, many[0])


def test_functions_get_whole_batches_with_lists(ds: LMDBDataset) -> None:
    def masked(batch: Any) -> Any:
        return {**batch._asdict(), "masks": [len(view) for view in batch.image]}

    soft = T.LabelSmoothing(0.1, num_classes=16)
    loader = Loader(ds, 4, transforms=[LARGE, SMALL, soft, masked], seed=0, shuffle=False)
    batch = next(iter(loader))
    assert batch["masks"] == [4, 4] and batch["label"].shape == (4, 16)


def test_windows_of_clips_have_views(photos: Path, tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(next(iter(photos.glob("*.png")))).convert("RGB"))[:40, :40]
    frames = ({"image": pixels, "clip": "a", "frame": k} for k in range(6))
    lmdbloader.write(frames, tmp_path / "d")
    clips = Clips(tmp_path / "d", 3)
    batch = next(iter(Loader(clips, 2, transforms=Views([RandomCrop(16)], [RandomCrop(8)]), seed=0, shuffle=False)))
    assert [tuple(view.shape) for view in batch.image] == [(2, 3, 3, 16, 16), (2, 3, 3, 8, 8)]
    assert torch.equal(batch.image[0][:, :1].expand(-1, 3, -1, -1, -1), batch.image[0])


def test_mixtures_subsets_damage_pickles_and_states(ds: LMDBDataset, jpegs: Any, tmp_path: Path) -> None:
    views = Views(a=[SMALL], b=[SMALL])
    both = mix([ds, LMDBDataset(jpegs["file"])])
    assert len(next(iter(Loader(both, 4, transforms=views, seed=0, shuffle=True))).image) == 2
    subset = torch.utils.data.Subset(ds, [3, 1])
    assert next(iter(Loader(subset, 2, transforms=views, seed=0, shuffle=False))).label.tolist() == [3, 1]
    loader = Loader(ds, 4, transforms=views, seed=0, shuffle=True)
    steps = iter(loader)
    next(steps)
    state = json.loads(json.dumps(loader.state_dict()))
    copy = pickle.loads(pickle.dumps(loader))
    wanted = [batch.image[1] for batch in steps]
    assert all(map(torch.equal, [batch.image[1] for batch in copy], wanted))
    other = Loader(ds, 4, transforms=views, seed=0, shuffle=True)
    other.load_state_dict(state)
    assert all(map(torch.equal, [batch.image[1] for batch in other], wanted))
    with pytest.warns(UserWarning, match="saved with the transforms"):
        Loader(ds, 4, transforms=Views(SMALL, LARGE), seed=0, shuffle=True).load_state_dict(state)


def test_damage_leaves_a_sample_out_of_all_views(photos: Path, tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(next(iter(photos.glob("*.png")))).convert("RGB"))[:40, :40]
    write(tmp_path / "d", [{"image": pixels + np.uint8(k)} for k in range(5)], "raw")
    (file,) = (tmp_path / "d").rglob("data*.mdb")
    data = bytearray(file.read_bytes())
    at = data.find((pixels + np.uint8(2)).transpose(2, 0, 1).tobytes()[:64])
    data[at] ^= 1
    file.write_bytes(data)
    loader = Loader(tmp_path / "d", 5, transforms=Views([CenterCrop(8)], [CenterCrop(4)]), on_corrupt="skip")
    (batch,) = loader
    assert [len(view) for view in batch.image] == [4, 4] and len(loader.corrupt) == 1


def refusals() -> Iterator[tuple[Any, str]]:
    crop = CenterCrop(8)
    yield (lambda ds: Views()), "no views"
    yield (lambda ds: Views(a=[])), "no views"
    yield (lambda ds: Views([crop], a=[[crop]])), "one or the other"
    yield (lambda ds: Views(crop, crop)), "list of them for each view"
    yield (lambda ds: Views(a=[crop])), r"a=\[\[CenterCrop"
    yield (lambda ds: Views([[crop], [crop]])), "list of lists"
    yield (lambda ds: Views([len])), "not a compiled transform"
    yield (lambda ds: Loader(ds, 4, transforms=[Views([crop]), crop])), "end of each list"
    yield (lambda ds: Loader(ds, 4, transforms=[len, Views([crop])])), "come after"
    yield (lambda ds: Loader(ds, 4, transforms=[Views([crop]), Views([crop])])), "several Views"
    yield (lambda ds: Loader(ds, 4, transforms=[[crop], crop, [crop]])), "several Views"
    yield (lambda ds: Loader(ds, 4, transforms=[[crop]])), "list in a list"
    yield (lambda ds: Loader(ds, 4, transforms=[[crop], Views([crop])])), "lists and Views"
    yield (lambda ds: Loader(ds, 4, transforms=[Views([crop]), T.MixUp(0.2, 16)])), "several views"
    yield (lambda ds: Loader(ds, 4, transforms=[Views([crop]), T.SanitizeBoxes("boxes")])), "several views"
    yield (lambda ds: Loader(ds, 4, transforms=Views([crop]), resolution=lmdbloader.ProgressiveResize(9))), "Views"
    yield (lambda ds: Loader(ds, 4, transforms=Views([crop])).set_resolution(4)), "Views"
    yield (lambda ds: ds.transformed(Views([crop]))), "only a Loader"
    yield (lambda ds: ds.transformed([[crop], [crop]])), "only a Loader"
    yield (lambda ds: Loader(LMDBDataset(ds.path, transform=len), 4, transforms=Views([crop]))), "transform of its own"
    yield (lambda ds: Loader(ds, 4, transforms=Views([crop], [RandomCrop(500)]))), "larger than the image"
    yield (lambda ds: Loader(ds, 4, transforms=Views([crop], [Normalize(0, 255), ToDtype(torch.uint8)]))), "Normalize"


@pytest.mark.parametrize("number", range(len(list(refusals()))))
def test_what_does_not_suit_views_is_refused(ds: LMDBDataset, number: int) -> None:
    make, message = next(itertools.islice(refusals(), number, None))
    with pytest.raises(OptionError, match=message):
        make(ds)


def test_a_transform_that_is_set_later_is_refused(jpegs: Any) -> None:
    dataset = LMDBDataset(jpegs["fast"])
    loader = Loader(dataset, 4, transforms=Views(SMALL), shuffle=False)
    dataset.transform = len  # type: ignore[method-assign,assignment]
    with pytest.raises(OptionError, match="transform of its own"):
        next(iter(loader))


def test_images_that_are_left_out_have_no_views(photos: Path, tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(next(iter(photos.glob("*.png")))).convert("RGB"))[:40, :40]
    write(tmp_path / "d", [{"lr": pixels[::2, ::2], "hr": pixels, "more": pixels[:9]}] * 3, "lz4")
    dataset = LMDBDataset(tmp_path / "d", fields=["lr", "hr"])
    batch = next(iter(Loader(dataset, 3, transforms=Views([RandomCrop(16)], [RandomCrop(8)]), seed=0, shuffle=False)))
    assert batch._fields == ("lr", "hr")
    assert [view.shape[-1] for view in batch.hr] == [16, 8] and [view.shape[-1] for view in batch.lr] == [8, 4]
    assert repr(Views(a=[[CenterCrop(8)]], b=[[]])) == "Views(a=[[CenterCrop(size=8)]], b=[[]])"


def test_image_files_have_views(photos: Path, tmp_path: Path) -> None:
    for file in sorted(photos.glob("*.png"))[:3]:
        image = Image.open(file).convert("RGB")
        image.save(tmp_path / f"{file.stem}.jpg", quality=90)
        image.save(tmp_path / f"{file.stem}_.png")
    found = images_of(Loader(tmp_path, 4, transforms=Views(SMALL, LARGE), seed=1, shuffle=False))
    assert torch.equal(
        found[0], torch.cat([b.image for b in Loader(tmp_path, 3, transforms=SMALL, seed=1, shuffle=False)])
    )
    assert found[1].shape == (6, 3, 48, 48)
