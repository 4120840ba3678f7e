"""merge: the samples, labels and digests of a fresh conversion, from stored bytes; what does not fit is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lmdbloader
from lmdbloader import Clips, LMDBDataset, fields
from lmdbloader.errors import CorruptError, DestinationError, OptionError
from lmdbloader.store import read_manifest
from lmdbloader.transforms import Resize

CLASSES = ("ant", "bee", "cat")


def make_sample(i: int, *, large: bool = False) -> dict[str, Any]:
    """Return the sample of a number, with every kind of field; some images are stored in tiles."""
    rng = np.random.default_rng(i)
    side = 320 if large and i % 4 == 1 else 24 + i % 3
    shades = rng.integers(0, 256, (side, side, 3), np.uint8)
    shades[: side // 2] = i
    return {
        "image": shades,
        "mask": np.full((side, side), i % 3, np.uint8),
        "label": i % 3,
        "boxes": np.array([[0, 0, 1 + j, 2] for j in range(i % 3)], np.float32).reshape(-1, 4),
        "kinds": np.arange(i % 3) % 3,
        "vector": np.full((i % 3, 2), i, np.float32),
        "score": i / 2,
        "caption": "ü" * (i % 5),
        "raw": bytes(i % 7),
        "notes": {"i": i},
    }


TYPES = {"mask": fields.Mask(), "boxes": fields.Boxes(), "kinds": fields.Labels()}


def write(path: Path, numbers: range | list[int], classes: tuple[str, ...] = CLASSES, **options: Any) -> Path:
    """Write samples by their numbers; labels are numbered in the order of `classes`."""
    new = np.array([classes.index(name) if name in classes else -1 for name in CLASSES])

    def samples() -> Any:
        for i in numbers:
            sample = make_sample(i, large=True)
            yield {**sample, "label": int(new[sample["label"]]), "kinds": new[sample["kinds"]]}

    names = {"label": classes, "kinds": classes}
    lmdbloader.write(samples(), path, fields=TYPES, classes=names, codec="lz4", **options)
    return path


def content(path: Path) -> str:
    return read_manifest(path).content_digest


def values_of(path: Path) -> list[Any]:
    ds = LMDBDataset(path)
    return [[v.tolist() if isinstance(v, torch.Tensor) else v for v in ds[i]] for i in range(len(ds))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of ten samples, all of them, and the second half with the classes in another order."""
    place = tmp_path_factory.mktemp("merge")
    write(place / "a.lmdb", range(6))
    write(place / "b.lmdb", range(6, 10))
    write(place / "all.lmdb", range(10))
    write(place / "turned.lmdb", range(6, 10), ("cat", "ant", "bee"))
    return place


def test_the_result_is_that_of_one_conversion(place: Path, tmp_path: Path) -> None:
    done = lmdbloader.merge([place / "a.lmdb", place / "b.lmdb"], tmp_path / "out")
    assert done.num_samples == 10 and done.notes == ()
    assert done.content_digest == content(tmp_path / "out") == content(place / "all.lmdb")
    assert lmdbloader.verify(tmp_path / "out").is_sound
    assert values_of(tmp_path / "out") == values_of(place / "all.lmdb")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"data.mdb", "index.arrow", "manifest.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_labels_are_renumbered_and_it_says_so(place: Path, tmp_path: Path) -> None:
    said: list[str] = []
    done = lmdbloader.merge([place / "a.lmdb", place / "turned.lmdb"], tmp_path / "out", log=said.append)
    assert done.content_digest == content(place / "all.lmdb")
    assert values_of(tmp_path / "out") == values_of(place / "all.lmdb")
    note = "the labels of turned.lmdb are renumbered: cat 0 to 2, ant 1 to 0, bee 2 to 1"
    assert done.notes == (f"label: {note}", f"kinds: {note}")
    assert said[:2] == [f"note: label: {note}.", f"note: kinds: {note}."]


def test_other_classes_are_refused_or_added_behind(place: Path, tmp_path: Path) -> None:
    samples = [{"image": np.full((8, 8), i, np.uint8), "label": i % 2} for i in range(4)]
    lmdbloader.write(samples, tmp_path / "a", classes={"label": ["cat", "dog"]})
    lmdbloader.write(samples, tmp_path / "b", classes={"label": ["bird", "cat"]})
    with pytest.raises(OptionError, match=r"b .*'label'.*\(bird\).*add_classes=True"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    done = lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", add_classes=True)
    ds = LMDBDataset(tmp_path / "out")
    assert ds.classes == ("cat", "dog", "bird")
    assert ds.targets == (0, 1, 0, 1, 2, 0, 2, 0)
    assert "label: 1 class of b added: bird" in done.notes
    assert read_manifest(tmp_path / "out").made_by["choices"] == {"add_classes": True}


def test_labels_get_the_numbers_of_their_classes_and_negative_ones_stay(tmp_path: Path) -> None:
    names = {"label": ["ant", "bee"]}
    lmdbloader.write([{"n": 0, "label": 1}], tmp_path / "a", classes=names)
    lmdbloader.write([{"n": 0, "label": -1}, {"n": 1, "label": 0}], tmp_path / "b", classes={"label": ["bee", "ant"]})
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert LMDBDataset(tmp_path / "out").table["label"].to_pylist() == [1, -1, 1]


def test_labels_without_names_do_not_join_labels_with_names(tmp_path: Path) -> None:
    samples = [{"n": 0, "label": 1}]
    lmdbloader.write(samples, tmp_path / "a", classes={"label": ["ant", "bee"]})
    lmdbloader.write(samples, tmp_path / "b")
    with pytest.raises(OptionError, match="b has numbers only for the classes of 'label'"):
        lmdbloader.merge([tmp_path / "b", tmp_path / "a"], tmp_path / "out")
    lmdbloader.merge([tmp_path / "b", tmp_path / "a"], tmp_path / "out", fields=["n"])


def test_other_fields_are_refused_with_the_line_to_write(tmp_path: Path) -> None:
    lmdbloader.write([{"n": 0, "x": 1, "y": 2}], tmp_path / "a")
    lmdbloader.write([{"n": 0, "x": 1}], tmp_path / "b")
    lmdbloader.write([{"n": "text", "x": 1}], tmp_path / "c")
    lmdbloader.write([{"z": 1}], tmp_path / "d")
    with pytest.raises(OptionError, match=r"b has the fields n, x; a has n, x, y\. .*: fields=\['n', 'x'\]"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(OptionError, match=r"keeps its fields; `lmdbloader merge` with fields=\['n', 'x'\] makes a new"):
        lmdbloader.append(tmp_path / "a", [tmp_path / "b"])
    with pytest.raises(OptionError, match="field 'n' is of kind int in b and is of kind text in c"):
        lmdbloader.merge([tmp_path / "b", tmp_path / "c"], tmp_path / "out")
    with pytest.raises(OptionError, match="no field in common"):
        lmdbloader.merge([tmp_path / "b", tmp_path / "d"], tmp_path / "out")
    with pytest.raises(OptionError, match="b: no field 'y'; it has n, x"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", fields=["y"])
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", fields=["x", "n"])
    assert LMDBDataset(tmp_path / "out")[1] == (1, 0)


def test_masks_of_another_kind_are_refused(tmp_path: Path) -> None:
    mask = np.zeros((8, 8), np.uint8)
    lmdbloader.write([{"mask": mask}], tmp_path / "a", fields={"mask": fields.Mask()})
    lmdbloader.write([{"mask": mask}], tmp_path / "b", fields={"mask": fields.Mask(ignore_index=0)})
    with pytest.raises(OptionError, match="ignore_index 255 in a and has the ignore_index 0 in b"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    lmdbloader.write([{"mask": mask.astype(np.uint16)}], tmp_path / "c", fields={"mask": fields.Mask()})
    with pytest.raises(OptionError, match="field 'mask' has masks of 8 bits in a and has masks of 16 bits in c"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "out")


def folders(photos: Path, place: Path) -> list[Path]:
    """Divide photographs into two folders, in one."""
    files = sorted(photos.iterdir())
    for name, some in (("one", files[:5]), ("two", files[4:])):  # one photograph is in both
        (place / "both" / name).mkdir(parents=True)
        for file in some:
            shutil.copy(file, place / "both" / name)
    return [place / "both" / "one", place / "both" / "two"]


def test_sources_with_prefixes_are_those_of_the_parent_folder(photos: Path, tmp_path: Path) -> None:
    for folder in folders(photos, tmp_path):
        lmdbloader.convert(folder, tmp_path / f"{folder.name}.lmdb", patch_size=96, codec="raw", workers=1)
    lmdbloader.convert(tmp_path / "both", tmp_path / "fresh", layout="images", patch_size=96, codec="raw", workers=1)
    inputs = [tmp_path / "one.lmdb", tmp_path / "two.lmdb"]
    plain = lmdbloader.merge(inputs, tmp_path / "plain")
    assert plain.notes == ()
    with pytest.raises(DestinationError, match="two samples have this file name"):
        lmdbloader.extract(tmp_path / "plain", tmp_path / "files")
    done = lmdbloader.merge(inputs, tmp_path / "out", prefix_sources=True)
    assert done.content_digest == content(tmp_path / "fresh")
    assert lmdbloader.extract(tmp_path / "out", tmp_path / "files").num_samples == done.num_samples
    assert lmdbloader.info(tmp_path / "out").num_sources == 9
    with pytest.raises(OptionError, match="both have the name 'one'"):
        shutil.copytree(tmp_path / "one.lmdb", tmp_path / "both" / "one.lmdb")
        lmdbloader.merge([inputs[0], tmp_path / "both" / "one.lmdb"], tmp_path / "more", prefix_sources=True)


def test_sources_of_some_datasets_only_are_refused_or_dropped(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "a", write_mode="raw", workers=1)
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8)}], tmp_path / "b")
    with pytest.raises(OptionError, match=r"a has the name of each sample's source, b has none .*drop_sources=True"):
        lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", drop_sources=True)
    assert not read_manifest(tmp_path / "out").with_source
    assert lmdbloader.verify(tmp_path / "out").is_sound


def test_a_dataset_given_twice_is_stored_twice_and_never_split_apart(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "a", patch_size=96, workers=1)
    done = lmdbloader.merge([tmp_path / "a"] * 2, tmp_path / "out")
    assert done.num_samples == 2 * 48
    # Both copies of a photograph's patches have one source, so they stay in one part of a split.
    assert lmdbloader.info(tmp_path / "out").num_sources == 8
    train, val = LMDBDataset(tmp_path / "out").split([0.5, 0.5])
    assert {*train.table["source"].to_pylist()} & {*val.table["source"].to_pylist()} == set()
    before = (tmp_path / "out" / "index.arrow").read_bytes()
    (tmp_path / "out" / "index.arrow").unlink()
    lmdbloader.repair(tmp_path / "out")
    assert (tmp_path / "out" / "index.arrow").read_bytes() == before


def test_views_and_torchs_datasets_are_merged(place: Path, tmp_path: Path) -> None:
    a, b = LMDBDataset(place / "a.lmdb"), LMDBDataset(place / "b.lmdb")
    joined = torch.utils.data.ConcatDataset([torch.utils.data.Subset(b, [3, 0]), a[1:3]])
    done = lmdbloader.merge(joined, tmp_path / "out")
    write(tmp_path / "fresh", [9, 6, 1, 2])
    assert done.content_digest == content(tmp_path / "fresh")
    moved = LMDBDataset(place / "a.lmdb", ["image"]).transformed([Resize((8, 8))])
    for view in (LMDBDataset(place / "a.lmdb", transform=str), moved):
        with pytest.raises(OptionError, match="it is a view with transforms"):
            lmdbloader.merge([view, b], tmp_path / "more")


@settings(max_examples=25)
@given(data=st.data())
def test_any_views_in_any_order_give_their_samples(place: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("any")
    rows = st.lists(st.integers(0, 3), min_size=1, max_size=6)
    names = st.sampled_from(["a.lmdb", "b.lmdb", "turned.lmdb"])
    chosen = data.draw(st.lists(st.tuples(names, rows), min_size=1, max_size=4))
    chosen = [("a.lmdb", [0]), *chosen]  # whose order of classes is taken
    done = lmdbloader.merge([LMDBDataset(place / name).select(some) for name, some in chosen], folder / "out")
    expected = [row + (0 if name == "a.lmdb" else 6) for name, some in chosen for row in some]
    found = LMDBDataset(folder / "out", fields=["notes", "label", "kinds"])
    assert [found[i].notes["i"] for i in range(len(found))] == expected
    assert [found[i].label for i in range(len(found))] == [i % 3 for i in expected]
    assert [found[i].kinds.tolist() for i in range(len(found))] == [list(range(i % 3)) for i in expected]
    assert done.num_samples == len(expected)
    shutil.rmtree(folder)


@pytest.mark.parametrize("number", [1, 3])
def test_a_damaged_sample_is_named_and_nothing_is_put_in_place(place: Path, tmp_path: Path, number: int) -> None:
    shutil.copytree(place / "a.lmdb", tmp_path / "a")
    reader = LMDBDataset(tmp_path / "a").reader
    at = int(reader.index.arrays["image.offset"][number]) + int(reader.index.arrays["image.stored_nbytes"][number]) - 9
    flip(tmp_path / "a", at, "data.mdb")
    with pytest.raises(CorruptError, match=rf"sample {number}.*lmdbloader repair .*/a OUT"):
        lmdbloader.merge([place / "b.lmdb", tmp_path / "a"], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    lmdbloader.repair(tmp_path / "a", tmp_path / "sound")
    lmdbloader.merge([place / "b.lmdb", tmp_path / "sound"], tmp_path / "out")
    fresh = write(tmp_path / "fresh", [*range(6, 10), *(i for i in range(6) if i != number)])
    assert content(tmp_path / "out") == content(fresh)


def test_destinations_that_are_taken_are_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "a.lmdb", tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for out in (tmp_path / "a", tmp_path / "link", tmp_path / "a" / ".." / "a"):
        with pytest.raises(DestinationError, match="is one of the inputs, which are never changed"):
            lmdbloader.merge([tmp_path / "a", place / "b.lmdb"], out, overwrite=True)
    with pytest.raises(DestinationError, match="inside"):
        lmdbloader.merge([tmp_path / "a"], tmp_path / "a" / "out")
    shutil.copytree(place / "b.lmdb", tmp_path / "out")
    with pytest.raises(DestinationError, match=r"a dataset is there already.*overwrite=True"):
        lmdbloader.merge([tmp_path / "a"], tmp_path / "out")
    lmdbloader.merge([tmp_path / "a"], tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == content(tmp_path / "a")
    again = lmdbloader.merge([tmp_path / "a"], tmp_path / "out")
    assert again.was_finished and again.content_digest == content(tmp_path / "a")


def test_jpeg_files_are_copied_unchanged(photos: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(photos.iterdir())):
        folder = tmp_path / "all" / ("one" if number < 3 else "two")
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(file).save(folder / f"{file.stem}.jpg", quality=80 + number)
    for name in ("one", "two"):
        lmdbloader.convert(tmp_path / "all" / name, tmp_path / f"{name}.lmdb", workers=1)
    lmdbloader.convert(tmp_path / "all", tmp_path / "fresh", layout="images", workers=1)
    done = lmdbloader.merge([tmp_path / "one.lmdb", tmp_path / "two.lmdb"], tmp_path / "out", prefix_sources=True)
    assert done.content_digest == content(tmp_path / "fresh") and done.notes == ()
    lmdbloader.extract(tmp_path / "out", tmp_path / "files")
    for file in (tmp_path / "all").rglob("*.jpg"):
        assert (tmp_path / "files" / file.relative_to(tmp_path / "all")).read_bytes() == file.read_bytes()


def write_clips(path: Path, clips: str, numbers: range = range(4)) -> Path:
    frames = ({"image": np.full((8, 8), i, np.uint8), "clip": clip, "frame": i} for clip in clips for i in numbers)
    lmdbloader.write(frames, path)
    return path


def clips_in(path: Path) -> list[str]:
    return list(dict.fromkeys(LMDBDataset(path).table["clip"].to_pylist()))


def test_clips_of_the_same_name_are_refused_or_prefixed(tmp_path: Path) -> None:
    one, two = write_clips(tmp_path / "one.lmdb", "ab"), write_clips(tmp_path / "two.lmdb", "bc", range(3, 7))
    before = content(one)
    for call in (lambda: lmdbloader.merge([one, two], tmp_path / "both"), lambda: lmdbloader.append(one, [two])):
        with pytest.raises(
            OptionError, match=r"two.lmdb: frame 3 of clip 'b' is also in one.lmdb.*prefix_sources=True"
        ):
            call()
    assert content(one) == before and sorted(path.name for path in tmp_path.iterdir()) == ["one.lmdb", "two.lmdb"]
    # Other clips, and frames without clips, are not concerned.
    lmdbloader.merge([one, LMDBDataset(two).where("clip == 'c'")], tmp_path / "some")
    lmdbloader.merge([one, two], tmp_path / "frames", fields=["image"])
    lmdbloader.merge([one, two], tmp_path / "both", prefix_sources=True, drop_sources=True)
    assert clips_in(tmp_path / "some") == ["a", "b", "c"]
    assert clips_in(tmp_path / "both") == ["one/a", "one/b", "two/b", "two/c"]
    assert len(Clips(tmp_path / "both", 4)) == 4
    lmdbloader.append(one, [two], prefix_sources=True)
    assert clips_in(one) == ["a", "b", "two/b", "two/c"] and len(Clips(one, 4)) == 4
    with pytest.raises(OptionError, match=r"clip 'two/b' is also in one.lmdb.*two.lmdb \"clip != 'b'\" -o OUT"):
        lmdbloader.append(one, [two], prefix_sources=True)


def test_a_clip_goes_on_in_another_dataset_with_a_note(tmp_path: Path) -> None:
    one, two = write_clips(tmp_path / "one.lmdb", "ab"), write_clips(tmp_path / "two.lmdb", "bc", range(4, 8))
    (note,) = lmdbloader.append(one, [two]).notes
    assert note.startswith("clips with frames of several datasets: b. If they are different videos")
    assert len(Clips(one, 8)) == 1


def test_a_text_called_clip_is_no_clip_without_frames(tmp_path: Path) -> None:
    for name in "ab":
        lmdbloader.write([{"clip": "a cat", "n": 1, "source": "x"}], tmp_path / name)
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", prefix_sources=True)
    assert clips_in(tmp_path / "out") == ["a cat"]
    assert LMDBDataset(tmp_path / "out").table["source"].to_pylist() == ["a/x", "b/x"]
