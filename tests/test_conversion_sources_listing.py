"""Which files of a folder make the samples, in which order and under which names; nothing here is decoded."""

from __future__ import annotations

import io
import os
import re
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.conversion.selection import find_splits
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.errors import OptionError, SourceError


def touch(folder: Path, *names: str | bytes) -> Path:
    """Make files of a few bytes; every one has another size."""
    for number, name in enumerate(names, 1):
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * number)
    return folder


def names(folder: Path, **options: object) -> list[str]:
    return [s.name for s in list_sources(folder, **options).sources]  # type: ignore[arg-type]


@given(st.sets(st.text("-./0a", min_size=1, max_size=6), max_size=8))
def test_folders_are_listed_in_the_byte_order_of_whole_paths(
    tmp_path_factory: pytest.TempPathFactory, stems: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("deep")
    files = {os.path.normpath(f"./{stem}x.png".replace("..", "a")) for stem in stems} | {"x.png"}
    touch(folder, *files)
    assert names(folder, layout="images") == sorted(name for name in files if not re.search(r"(^|/)\.[^/]*/", name))


@pytest.mark.parametrize("pairs", [False, True])
def test_a_listing_takes_little_more_than_its_names(tmp_path: Path, pairs: bool) -> None:
    folders = [tmp_path / name for name in ("hr", "lr")[: 1 + pairs]]
    for folder in folders:
        folder.mkdir()
        for i in range(1000):
            (folder / f"a name of forty bytes all in all {i:04}.png").touch()
    list_sources(tmp_path)
    tracemalloc.start()
    try:
        listing = list_sources(tmp_path)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing.sources) == 1000
    assert held / 1000 < 75 * len(folders)
    assert most / 1000 < 250 * len(folders)


def test_suffixes_count_whatever_their_case_and_other_files_do_not(tmp_path: Path) -> None:
    touch(tmp_path, "a.PNG", "b.Jpg", "c.tIFf", "d.txt", "e", "png", ".png", "f.png.part")
    assert names(tmp_path) == ["a.PNG", "b.Jpg", "c.tIFf"]


def test_arrays_count_as_images_where_nothing_else_does(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.npy", "a/2.EXR", "b/3.dcm", "b/4.txt")
    assert names(tmp_path) == ["a/1.npy", "a/2.EXR", "b/3.dcm"]
    assert list_sources(tmp_path).classes == ("a", "b")
    touch(tmp_path, "b/5.png")
    assert names(tmp_path) == ["b/5.png"]
    found = dict(list_sources(tmp_path).ignored)
    line = 'lmdbloader.write(({"array": numpy.load(path)} for path in paths), OUT)'
    assert found["*.npy"] == f"1 not read: a/1.npy; as arrays: {line}" and found["*.exr"] == "1 not read: a/2.EXR"


def test_arrays_next_to_tars_and_splits_change_nothing(tmp_path: Path) -> None:
    touch(tmp_path / "shards", "0.npy")
    with tarfile.open(tmp_path / "shards" / "0.tar", "w") as tar:
        member = tarfile.TarInfo("1.png")
        tar.addfile(member, io.BytesIO())
    assert list_sources(tmp_path / "shards").layout == "tar"
    touch(tmp_path / "all", "train/1.png", "features/1.npy")
    assert [split.name for split in find_splits(tmp_path / "all")] == ["train"]
    touch(tmp_path / "arrays", "train/1.npy", "more/1.npy")
    assert [split.name for split in find_splits(tmp_path / "arrays")] == ["more", "train"]


@given(st.sets(st.binary(min_size=1, max_size=8).map(lambda b: b.translate(None, b"/\0")), max_size=6))
def test_every_file_is_listed_once_in_byte_order(tmp_path_factory: pytest.TempPathFactory, stems: set[bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = {stem + b"x.png" for stem in stems} | {b"one.png"}
    touch(folder, *files)
    expected = sorted(name for name in files if not name.startswith(b"._"))  # which macOS makes
    assert [os.path.basename(s.file) for s in list_sources(folder).sources] == expected


def test_classes_have_the_order_of_image_folder(tmp_path: Path) -> None:
    """By class, though "cat-2/" and "cat 3/" come before "cat/" in bytes; in a class by folder, then by file."""
    found = "cat/0/b.png", "cat/z.png", "cat/A.png", "cat/0-1/a.png", "cat-2/a.png", "cat 3/a.png", "Dog/0.png"
    listing = list_sources(touch(tmp_path, *found))
    assert listing.classes == ("Dog", "cat", "cat 3", "cat-2")
    expected = ["Dog/0.png", "cat/A.png", "cat/z.png", "cat/0/b.png", "cat/0-1/a.png", "cat 3/a.png", "cat-2/a.png"]
    assert [source.name for source in listing.sources] == expected
    assert [source.label for source in listing.sources] == [0, 1, 1, 1, 1, 2, 3]
    assert [Path(os.fsdecode(source.file)).relative_to(tmp_path).as_posix() for source in listing.sources] == expected
    assert [source.name for source in list_sources(tmp_path, layout="images").sources] == sorted(found)


def test_classes_are_images_when_asked_or_when_patches_are_wanted(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/2.png")
    assert list_sources(tmp_path, layout="images").layout == "images"
    assert list_sources(tmp_path, prefer_images=True).layout == "images"
    assert list_sources(tmp_path, prefer_images=True, layout="classes").layout == "classes"


def test_an_image_next_to_the_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/2.png", "loose.png")
    assert list_sources(tmp_path).layout == "images"
    with pytest.raises(SourceError, match=r"loose\.png is in no class folder.*layout='images'"):
        list_sources(tmp_path, layout="classes")


def test_links_to_folders_are_followed_as_image_folder_does(tmp_path: Path) -> None:
    touch(tmp_path, "disk/1.png", "disk/deep/2.png", "in/a/3.png")
    (tmp_path / "in" / "b").symlink_to(tmp_path / "disk")
    (tmp_path / "in" / "a" / "4.png").symlink_to("3.png")
    listing = list_sources(tmp_path / "in")
    assert [(s.name, s.label) for s in listing.sources] == [
        ("a/3.png", 0),
        ("a/4.png", 0),
        ("b/1.png", 1),
        ("b/deep/2.png", 1),
    ]
    assert listing.classes == ("a", "b") and listing.ignored == ()
    (tmp_path / "links").mkdir()
    for name in "ab":
        (tmp_path / "links" / name).symlink_to(tmp_path / "in" / name)
    assert names(tmp_path / "links") == names(tmp_path / "in")


def test_links_in_circles_are_named_and_end(tmp_path: Path) -> None:
    touch(tmp_path, "in/a/1.png", "in/b/2.png")
    links = {"self": ".", "above": "..", "a/to_b": "../b", "b/to_a": "../a", "a/x.png": "../b", "nowhere": "nowhere"}
    for name, target in links.items():
        (tmp_path / "in" / name).symlink_to(target, target_is_directory=True)
    listing = list_sources(tmp_path / "in")
    assert [s.name for s in listing.sources] == ["a/1.png", "a/to_b/2.png", "b/2.png", "b/to_a/1.png"]
    circle, image = "a link to a folder that it is in", "a link to a folder that is named like an image"
    assert dict(listing.ignored) == {
        "self": circle,
        "above": circle,
        "a/to_b/to_a": circle,
        "b/to_a/to_b": circle,
        "a/x.png": image,
        "b/to_a/x.png": image,
        "files without a suffix": "1 not read: nowhere",
    }


def test_what_nas_servers_and_systems_leave_gives_no_classes_and_moves_no_labels(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "cat/1.jpg",
        "dog/1.jpg",
        "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
        "cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
    )
    touch(
        tmp_path, "$Recycle.Bin/S-1/$R1.jpg", "System Volume Information/a.png", "lost+found/#1.jpg", "#recycle/a.jpg"
    )
    touch(
        tmp_path,
        "@Recycle/a.jpg",
        "cat/.@__thumb/1.jpg",
        ".Trash-1000/files/a.jpg",
        ".Trashes/501/a.jpg",
        ".snapshot/a/1.jpg",
        ".git/1.png",
        "cat/.stversions/1.jpg",
        "dog/@__thumb/1.jpg",
        "FOUND.000/1.jpg",
        "Network Trash Folder/1.jpg",
        "RECYCLER/1.jpg",
        "__pycache__/1.jpg",
    )
    listing = list_sources(tmp_path)
    assert listing.classes == ("cat", "dog")
    assert [(s.name, s.label) for s in listing.sources] == [("cat/1.jpg", 0), ("dog/1.jpg", 1)]
    assert dict(listing.ignored)["@eaDir"] == "2 hidden or left by a program: @eaDir ..."
    assert {name for name, _ in listing.ignored} == {
        "#recycle", "$Recycle.Bin", ".@__thumb", ".Trash-1000", ".Trashes", ".snapshot", "@Recycle", "@eaDir",
        "System Volume Information", "lost+found", ".git", ".stversions", "@__thumb", "FOUND.000",
        "Network Trash Folder", "RECYCLER", "__pycache__",
    }  # fmt: skip


def test_other_files_are_counted_by_suffix_and_one_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.png", "b/1.json", "a/2.png", "a/2.JSON", "c/0.json", "labels.csv", "README", ".DS_Store")
    assert list_sources(tmp_path).ignored == (
        ("*.csv", "1 not read: labels.csv"),
        ("*.json", "3 not read: a/2.JSON ..."),
        ("files without a suffix", "1 not read: README"),
        ("c/", "a class folder without images"),
    )


def test_other_things_than_regular_files_are_named_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    listing = list_sources(tmp_path)
    assert [s.name for s in listing.sources] == ["a.png"]
    ignored = dict(listing.ignored)
    assert ignored.keys() == {"broken.png", "loop.png", "pipe.png", "*.txt"}
    assert ignored["broken.png"] == "a broken link"
    assert ignored["pipe.png"] == "not a regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists every folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "shut/b.png")
    (tmp_path / "shut").chmod(0)
    try:
        with pytest.raises(SourceError, match=r"shut: cannot be listed"):
            list_sources(tmp_path)
    finally:
        (tmp_path / "shut").chmod(0o700)


def test_missing_empty_and_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere: there is no such folder"):
        list_sources(tmp_path / "nowhere")
    touch(tmp_path, "file.png")
    with pytest.raises(SourceError, match=r"file\.png: is not a folder"):
        list_sources(tmp_path / "file.png")
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(SourceError, match=r"empty: no images in it \(looked for .*\.png"):
        list_sources(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"empty: no images"):
        list_sources(None, hr=tmp_path, lr=tmp_path / "empty")


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    touch(tmp_path, "hr/a.png", "lr/a.png")
    hr, lr = tmp_path / "hr", tmp_path / "lr"
    with pytest.raises(OptionError, match="hr and lr go together"):
        list_sources(None, hr=hr)
    with pytest.raises(OptionError, match="nothing to convert"):
        list_sources(None)
    with pytest.raises(OptionError, match="layout='classes' with hr and lr"):
        list_sources(None, hr=hr, lr=lr, layout="classes")
    with pytest.raises(OptionError, match="together with hr and lr"):
        list_sources(tmp_path, hr=hr, lr=lr)
    layouts = "images, pairs, classes, clips, lmdb, tar, masks, coco, yolo"
    with pytest.raises(OptionError, match=f"layout='nonsense': expected auto, {layouts}"):
        list_sources(tmp_path, layout="nonsense")  # type: ignore[arg-type]


def pairs(folder: Path, **options: object) -> list[tuple[str, str]]:
    listing = list_sources(folder, **options)  # type: ignore[arg-type]
    assert listing.layout == "pairs"
    return [(s.name, os.path.relpath(os.fsdecode(s.lr_files[0]), folder)) for s in listing.sources]


def test_div2k_is_found_as_it_unpacks(tmp_path: Path) -> None:
    high = [f"DIV2K_train_HR/000{i}.png" for i in (2, 1, 3)]
    low = [f"DIV2K_train_LR_bicubic/X2/000{i}x2.png" for i in (3, 2, 1)]
    touch(tmp_path, *high, *low)
    assert pairs(tmp_path) == [(f"000{i}.png", f"DIV2K_train_LR_bicubic/X2/000{i}x2.png") for i in (1, 2, 3)]
    sizes = [s.nbytes for s in list_sources(tmp_path).sources]
    assert sizes == [2 + 6, 1 + 5, 3 + 4]


def test_pairs_match_by_stem_across_suffixes_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "HR/s/a.png", "HR/b.TIFF", "LR/s/ax3.jpg", "LR/b.png")
    assert pairs(tmp_path) == [("b.TIFF", "LR/b.png"), ("s/a.png", "LR/s/ax3.jpg")]


def test_given_halves_need_no_particular_names(tmp_path: Path) -> None:
    touch(tmp_path, "big/a.png", "small/a.png")
    listing = list_sources(None, hr=tmp_path / "big", lr=tmp_path / "small")
    assert [(s.name, s.lr_files) for s in listing.sources] == [("a.png", [os.fsencode(tmp_path / "small" / "a.png")])]
    assert list_sources(tmp_path, prefer_images=True).layout == "images"


def test_halves_whose_names_say_which_they_are(tmp_path: Path) -> None:
    touch(tmp_path, "gt/norain-1.png", "gt/norain-2.png", "in/rain-2.png", "in/rain-1.png")
    listing = list_sources(None, hr=tmp_path / "gt", lr=tmp_path / "in")
    pairs = [(s.name, os.path.basename(s.lr_files[0])) for s in listing.sources]
    assert pairs == [("norain-1.png", b"rain-1.png"), ("norain-2.png", b"rain-2.png")]
    with pytest.raises(SourceError, match=r"in: no partner in .*gt for rain-3\.png"):
        list_sources(None, hr=tmp_path / "gt", lr=touch(tmp_path, "in/rain-3.png") / "in")
    with pytest.raises(SourceError, match="gt: has no halves of pairs"):
        list_sources(tmp_path / "gt", layout="pairs")


def test_several_scales_are_not_guessed_from(tmp_path: Path) -> None:
    touch(tmp_path, "x_HR/1.png", "x_LR/X2/1x2.png", "x_LR/X4/1x4.png")
    with pytest.raises(SourceError, match=r"x_LR: holds X2, X4\. Name one with hr and lr"):
        list_sources(tmp_path)
    assert list_sources(tmp_path, layout="images").layout == "images"


def test_images_without_a_partner_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "hr/a.png", "hr/b.png", "lr/ax2.png", "lr/b.png", "lr/c.png")
    with pytest.raises(SourceError, match=r"lr: no partner in .*hr for c\.png\. Pairs are matched by name"):
        list_sources(tmp_path)
    touch(tmp_path, *[f"hr/{i}.png" for i in range(8)])
    with pytest.raises(SourceError, match=r"hr: no partner in .*lr for 0\.png, 1\.png, .*4\.png and 3 more"):
        list_sources(tmp_path)


def test_two_images_of_one_stem_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "hr/a.png", "hr/a.jpg", "lr/a.png")
    with pytest.raises(SourceError, match=r"hr: a\.jpg and a\.png have the same stem"):
        list_sources(tmp_path)
    (tmp_path / "hr" / "a.jpg").unlink()
    touch(tmp_path, "lr/ax2.png")
    with pytest.raises(SourceError, match=r"lr: a\.png and ax2\.png have the same stem"):
        list_sources(tmp_path)
    # As single images they are two.
    assert len(names(tmp_path, layout="images")) == 3


def test_a_folder_of_several_scales_says_what_to_name(tmp_path: Path) -> None:
    for folder in ("hr", "lr/X2", "lr/X3", "lr/X4"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0001.png").write_bytes(b"x")
    lr = tmp_path / "lr"
    with pytest.raises(SourceError) as caught:
        lmdbloader.convert(None, tmp_path / "out", hr=tmp_path / "hr", lr=lr)
    message = str(caught.value)
    command = f"lmdbloader convert --hr {tmp_path / 'hr'} --lr {lr}/X2"
    assert f"{command} OUT" in message
    assert f"{command} --lr {lr}/X3 --lr {lr}/X4 OUT" in message
