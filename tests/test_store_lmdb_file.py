"""LMDB data files: checked pages, the places of values, torn transactions; damage is an error, never a crash."""

from __future__ import annotations

import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import lmdb
import pytest

from lmdbloader.store.lmdb_file import list_values, lmdb_file, page_problems


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "a.lmdb"
    with lmdb.open(str(folder), map_size=2**24) as env, env.begin(write=True) as transaction:
        for i in range(300):
            transaction.put(b"%06d" % i, bytes([i % 256]) * (i * 37 % 6000))
    return folder / "data.mdb"


def test_every_value_is_at_its_offset(file: Path) -> None:
    data = file.read_bytes()
    found = list(list_values(file))
    assert [key for key, _, _ in found] == [b"%06d" % i for i in range(300)]
    for i, (_, start, nbytes) in enumerate(found):
        assert data[start : start + nbytes] == bytes([i % 256]) * (i * 37 % 6000)


def make_lmdb(page_nbytes: int) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a data file as a system with pages of another size writes it, and its values by key."""
    small = {b"%04d" % i: bytes([i + 1]) * (page_nbytes // 8) for i in range(5)}
    large = b"\7" * (page_nbytes + 100)
    # Nodes of the leaf on page 2: the large value has pages of its own, from page 3 on.
    nodes = [(0, len(value), key, value) for key, value in small.items()]
    nodes.append((1, len(large), b"0009", struct.pack("<Q", 3)))
    leaf, places = bytearray(page_nbytes), []
    at = page_nbytes
    for flags, nbytes, key, value in nodes:
        node = struct.pack("<HHHH", nbytes & 0xFFFF, nbytes >> 16, flags, len(key)) + key + value
        at -= len(node) + len(node) % 2
        leaf[at : at + len(node)] = node
        places.append(at)
    leaf[: 16 + 2 * len(places)] = struct.pack(
        f"<QHHHH{len(places)}H", 2, 0, 2, 16 + 2 * len(places), at, *places
    )  # fmt: skip
    metas = []
    for number, root in ((0, 2**64 - 1), (1, 2)):
        head = struct.pack("<QHHI", number, 0, 8, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 2**20)
        free = struct.pack("<IHHQQQQQ", page_nbytes, 0, 0, 0, 0, 0, 0, 2**64 - 1)
        main = struct.pack("<IHHQQQQQ", 0, 0, number, 0, number, 2 * number, len(nodes) * number, root)
        metas.append((head + free + main + struct.pack("<QQ", 4, number)).ljust(page_nbytes, b"\0"))
    pages = (struct.pack("<QHHI", 3, 0, 4, 2) + large).ljust(2 * page_nbytes, b"\0")
    return b"".join((*metas, leaf, pages)), {**small, b"0009": large}


@pytest.mark.parametrize("page_nbytes", [4096, 8192, 16384, 32768])
def test_a_file_may_have_larger_pages_than_this_system(page_nbytes: int) -> None:
    data, values = make_lmdb(page_nbytes)
    # Some file systems place large maps at multiples of 2 MiB, and files in memory are not among them.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = Path(folder, "a.mdb")
        path.write_bytes(data)
        others = []
        for _ in range(8):
            found = {key: data[at : at + nbytes] for key, at, nbytes in list_values(path)}
            assert found == values
            others.append(mmap.mmap(-1, mmap.PAGESIZE))  # the next map begins a page further down
        for other in others:
            other.close()


@pytest.mark.parametrize("page_nbytes", [4096, 8192, 16384, 32768])
def test_a_file_that_ends_before_its_last_page_is_found(page_nbytes: int, tmp_path: Path) -> None:
    data, _ = make_lmdb(page_nbytes)
    path = tmp_path / "a.mdb"
    for length in (4 * page_nbytes, len(data) - 1, len(data)):
        path.write_bytes(data[:length])
        assert bool(page_problems(path)) == (length < len(data))


def test_an_lmdb_is_recognized(file: Path, tmp_path: Path) -> None:
    assert lmdb_file(file) == lmdb_file(file.parent) == file
    (tmp_path / "data.mdb").write_bytes(b"x" * 5000)
    assert lmdb_file(tmp_path) is None
    assert lmdb_file(tmp_path / "nowhere") is None


def test_a_file_cut_short_or_damaged_is_an_error_and_never_a_crash(file: Path, tmp_path: Path) -> None:
    """Run in another process, which LMDB could abort."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom lmdbloader.errors import CorruptError\n"
        "from lmdbloader.store.lmdb_file import list_values\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        n = len(list(list_values(Path(path))))\n        print('read', n)\n"
        "    except CorruptError as error:\n        print('refused', error)\n"
    )
    data, rng, paths = file.read_bytes(), random.Random(1), []
    for i in range(24):
        broken = bytearray(data)
        if i % 3 == 0:
            del broken[rng.randrange(8192, len(data)) :]
        else:
            at = rng.randrange(0, len(data) - 64)
            # The first bytes of a page are its header.
            at -= at % 4096 if i % 3 == 1 else 0
            broken[at : at + 64] = rng.randbytes(64)
        paths.append(tmp_path / f"{i}.mdb")
        paths[-1].write_bytes(broken)
    child = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert len(lines) == len(paths)
    assert "0.mdb: its pages are damaged (" in lines[0]
    assert sum(line.startswith("refused") for line in lines) >= 12
