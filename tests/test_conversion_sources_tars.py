"""Tar shards as sources: the members of a sample, the places of their bytes, and refusals."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import save_tar, tar_bytes

from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.sources.reading import read
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import SourceError


def contents(source: Source) -> dict[str, bytes | None]:
    found = {"image": read(source.file)}
    return found | {name: None if file is None else read(file) for name, file in source.attached}


def test_members_of_one_key_make_a_sample(tmp_path: Path) -> None:
    path = save_tar(
        tmp_path / "a.tar",
        ("./one.jpg", b"image 1"),
        ("./one.cls", b"3"),
        ("deep/two.json", b"{}"),
        ("deep/two.PNG", b"second image"),
        ("deep/two.txt", b"words"),
    )
    listing = list_sources(path)
    assert listing.layout == "tar"
    assert listing.fields == (("label", "int"), ("json", "json"), ("text", "text"))
    assert [s.name for s in listing.sources] == ["one.jpg", "deep/two.PNG"]
    assert [contents(s) for s in listing.sources] == [
        {"image": b"image 1", "label": b"3", "json": None, "text": None},
        {"image": b"second image", "label": None, "json": b"{}", "text": b"words"},
    ]
    assert [s.nbytes for s in listing.sources] == [8, 12 + 2 + 5]


def test_the_extension_starts_at_the_first_dot_of_the_base_name(tmp_path: Path) -> None:
    path = save_tar(
        tmp_path / "a.tar",
        ("v1.0/a.seg.png", b"mask"),
        ("v1.0/a.jpg", b"image"),
        ("v1.0/.hidden.jpg", b"no key"),
        ("README", b"no extension"),
    )
    listing = list_sources(path)
    assert [contents(s) for s in listing.sources] == [{"image": b"image"}]
    assert dict(listing.ignored) == {
        "v1.0/.hidden.jpg": "no key and extension in its name",
        "README": "no key and extension in its name",
        "*.seg.png": "1 members with an unsupported extension",
    }


def shards(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        save_tar(folder / name, (f"{number}.png", b"x" * (number + 1)))
    return folder


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a-0.tar/1.png", "a-1.tar/2.png", "b.tar/0.png"]),
        ("*.tar", ["a-0.tar/1.png", "a-1.tar/2.png", "b.tar/0.png"]),
        ("a-{1..1}.tar", ["2.png"]),
        ("{b,a-0}.tar", ["b.tar/0.png", "a-0.tar/1.png"]),
        ("a-{0..1}.tar", ["a-0.tar/1.png", "a-1.tar/2.png"]),
        ("b.tar", ["0.png"]),
    ],
)
def test_folders_and_patterns_stand_for_several_shards(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    shards(tmp_path, "b.tar", "a-0.tar", "a-1.tar")
    assert [s.name for s in list_sources(tmp_path / pattern).sources] == expected


@given(
    st.dictionaries(
        st.text("ab/é-", min_size=1, max_size=130).map(lambda s: "k" + s.replace("/", "/k")),
        st.binary(max_size=600),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_every_member_is_found_where_tar_put_it(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, bytes], form: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tar"
    try:
        save_tar(path, *[(f"{key}.png", data) for key, data in samples.items()], format=form)
    except ValueError:  # a name that ustar cannot hold
        return
    found = {s.name: read(s.file) for s in list_sources(path).sources}
    assert found == {f"{key}.png": data for key, data in samples.items()}


@given(st.integers(1, 4 * 512 + 2 * 512))
def test_a_tar_that_was_cut_short_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = tar_bytes([("a.png", b"x" * 512), ("b.png", b"y" * 100)])[: 6 * 512]
    path = tmp_path_factory.mktemp("cut") / "a.tar"
    path.write_bytes(whole[:-cut])
    if cut > 512:  # one of the two blocks at the end is enough
        with pytest.raises(SourceError, match=r"a\.tar: .*(cut short|no images)"):
            list_sources(path)
    else:
        assert len(list_sources(path).sources) == 2


def test_a_damaged_header_loses_nothing_silently(tmp_path: Path) -> None:
    data = bytearray(tar_bytes([("a.png", b"x"), ("b.png", b"y")]))
    data[1024 + 3] ^= 1
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.tar: is damaged at byte 1024"):
        list_sources(path)


def test_two_tars_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", b"x")]) + tar_bytes([("b.png", b"x")]))
    with pytest.raises(SourceError, match=r"a\.tar: is damaged at byte 1024, or two tars were joined"):
        list_sources(path)


@pytest.mark.parametrize("name", ["../../x.png", "/etc/x.png", "a/../../x.png"])
def test_names_that_lead_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    path = save_tar(tmp_path / "a.tar", ("ok.png", b"x"), (name, b"x"))
    with pytest.raises(SourceError, match=r"a\.tar: its member '.*x\.png' is outside of the archive"):
        list_sources(path)


def test_samples_must_be_whole_and_clear(tmp_path: Path) -> None:
    apart = save_tar(tmp_path / "apart.tar", ("a.png", b"x"), ("b.png", b"x"), ("a.cls", b"1"))
    with pytest.raises(SourceError, match=r"a\.cls: the members of a are not next to each other.*--sort=name"):
        list_sources(apart)
    twice = save_tar(tmp_path / "twice.tar", ("a.png", b"x"), ("a.png", b"y"))
    with pytest.raises(SourceError, match=r"holds a\.png twice"):
        list_sources(twice)
    both = save_tar(tmp_path / "both.tar", ("a.png", b"x"), ("a.jpg", b"y"))
    with pytest.raises(SourceError, match=r"a\.png: its sample has 2 images \(png, jpg\)"):
        list_sources(both)


def tar_of(*members: tuple[str, bytes, str], **options: Any) -> bytes:
    """Return a tar of members (name, type, content of a file or target of a link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
            else:
                info.linkname = content
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


FILE, LINK, HARD_LINK = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize("kind", [LINK, HARD_LINK, tarfile.GNUTYPE_SPARSE])
def test_a_value_that_is_a_link_or_sparse_loses_nothing_silently(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(("a.png", FILE, "x"), ("b.png", kind, "a.png" * (kind != b"S"))))
    with pytest.raises(SourceError, match=r"a\.tar: b\.png: is packed as a link or a sparse file"):
        list_sources(tmp_path / "a.tar")


def test_the_times_in_incremental_tars_are_no_names(tmp_path: Path) -> None:
    data = bytearray(tar_bytes([("a.png", b"x"), ("a.cls", b"1")], format=tarfile.GNU_FORMAT))
    for number, at in enumerate((0, 1024)):
        data[at + 345 : at + 357] = b"1453766100%d\0" % number
        data[at + 148 : at + 156] = b"%06o\0 " % (sum(data[at : at + 148]) + 256 + sum(data[at + 156 : at + 512]))
    (tmp_path / "a.tar").write_bytes(data)
    (source,) = list_sources(tmp_path / "a.tar").sources
    assert source.name == "a.png" and contents(source)["label"] == b"1"
    name = "14537661000/a.png"
    save_tar(tmp_path / "b.tar", (name, b"x"), format=tarfile.GNU_FORMAT)
    assert [source.name for source in list_sources(tmp_path / "b.tar").sources] == [name]


def test_folders_and_fifos_in_a_tar_give_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        tar_of(("d", tarfile.DIRTYPE, ""), ("d/a.png", FILE, ""), ("b.png", b"6", ""), ("latest", LINK, "d"))
    )
    listing = list_sources(tmp_path / "a.tar")
    assert [s.name for s in listing.sources] == ["d/a.png"]
    assert dict(listing.ignored) == {"b.png": "not a regular file", "latest": "not a regular file"}


def test_an_image_whose_key_has_a_dot_is_not_lost_silently(tmp_path: Path) -> None:
    save_tar(tmp_path / "a.tar", ("0.5.jpg", b"x"), ("0.5.cls", b"1"), ("2.jpg", b"x"), ("2.cls", b"2"))
    with pytest.raises(SourceError, match=r"the image 0\.5\.jpg belongs to no sample: a key ends at the first dot"):
        list_sources(tmp_path / "a.tar")


def test_everything_in_a_folder_of_tars_is_read_or_named(tmp_path: Path) -> None:
    shards(tmp_path, "a.tar", "deep/b.tar")
    for name in ("c.zip", "labels.csv", "d.tar.part"):
        (tmp_path / name).touch()
    listing = list_sources(tmp_path)
    assert listing.ignored == (
        ("deep/", "a folder, which is not searched for tars"),
        ("*.csv", "1 not read: labels.csv"),
        ("*.part", "1 not read: d.tar.part"),
        ("*.zip", "1 not read: c.zip"),
    )


def test_what_systems_leave_in_a_tar_gives_no_samples(tmp_path: Path) -> None:
    names = (
        "1.jpg",
        "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
        "@eaDir/2.jpg/SYNOPHOTO_THUMB_M.jpg",
        "__MACOSX/._1.jpg",
        "._1.jpg",
        "./.cache/1.jpg",
    )
    save_tar(tmp_path / "a.tar", *[(name, b"x") for name in names])
    (tmp_path / "._a.tar").write_bytes(b"of macOS")
    listing = list_sources(tmp_path)
    assert [s.name for s in listing.sources] == ["1.jpg"]
    assert {name for name, _ in listing.ignored} == {"@eaDir", "__MACOSX", "._*", ".cache"}


def test_a_tar_that_is_there_is_meant_by_its_name(tmp_path: Path) -> None:
    for name, content in {
        "t[1].tar": b"brackets",
        "t1.tar": b"one",
        "x{1}.tar": b"braces",
        "[2]-0.tar": b"zero",
    }.items():
        save_tar(tmp_path / name, ("a.png", content))
    from fsspec.implementations.memory import MemoryFileSystem

    for path in tmp_path.iterdir():
        MemoryFileSystem().pipe(f"/named/{path.name}", path.read_bytes())
    for place in (str(tmp_path), "memory://named"):
        for pattern, expected in {
            "t[1].tar": [b"brackets"], "x{1}.tar": [b"braces"], "[2]-{0..0}.tar": [b"zero"], "t[0-9].tar": [b"one"]
        }.items():  # fmt: skip
            found = list_sources(locate(f"{place}/{pattern}"))
            assert [read(source.file) for source in found.sources] == expected, (place, pattern)


def test_compressed_tars_are_refused_with_advice(tmp_path: Path) -> None:
    data = gzip.compress(tar_bytes([("a.png", b"x")]))
    for name in ("a.tar.gz", "b.tar"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=r"is compressed"):
            list_sources(tmp_path / name)
    shards(tmp_path, "b.tar")
    assert list_sources(tmp_path).ignored == (("a.tar.gz", "a compressed tar: decompress it first"),)
    (tmp_path / "b.tar").unlink()
    with pytest.raises(SourceError, match="no tars in it: they are compressed"):
        list_sources(tmp_path, layout="tar")


@pytest.mark.parametrize(
    "records", [b"9" * 60_000, b"36 GNU.sparse.realsize=%d\n" % 10**12, b"43 GNU.sparse.realsize=%d\n" % 10**19]
)
def test_a_forged_description_is_refused(tmp_path: Path, records: bytes) -> None:
    head = tarfile.TarInfo("pax")
    head.type, head.size = tarfile.XHDTYPE, len(records)
    forged = head.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % tarfile.BLOCKSIZE)
    (tmp_path / "a.tar").write_bytes(forged + tar_bytes([("a.png", b"x")]))
    with pytest.raises(SourceError, match=r"a\.tar: is not a tar, or is compressed, damaged"):
        list_sources(tmp_path / "a.tar")
