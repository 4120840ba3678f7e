"""LMDB data files: checked pages, the places of values, torn transactions; damage is an error, never a crash."""

from __future__ import annotations

import itertools
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

from lmdbloader.errors import CorruptError
from lmdbloader.store.lmdb_file import last_transactions, list_values, lmdb_file, page_problems, take_back_torn


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
def test_a_value_that_ends_behind_the_file_is_found(page_nbytes: int, tmp_path: Path) -> None:
    data, values = make_lmdb(page_nbytes)
    end = 3 * page_nbytes + 16 + len(values[b"0009"])
    path = tmp_path / "a.mdb"
    for length in (4 * page_nbytes, end - 1, end):
        path.write_bytes(data[:length])
        is_cut = f"the value of key b'0009' ends at byte {end}, the file at byte {length}: it was cut or copied in part"
        assert page_problems(path) == ([is_cut] if length < end else [])


def test_an_lmdb_is_recognised(file: Path, tmp_path: Path) -> None:
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
    assert sum(line.startswith("refused") for line in lines) >= 12


def test_damaged_pages_are_reported(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.mdb"
    path.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(CorruptError, match=r"cut\.mdb: its pages are damaged \("):
        list(list_values(path))


PAGE = 4096
# The parts of a page that a commit writes, in sectors of 64 bytes.
SECTORS = ((0, 64), (64, 128), (128, 192))


def commit(path: Path, number: int) -> None:
    with lmdb.open(str(path), subdir=False, lock=False, map_size=2**24) as env, env.begin(write=True) as transaction:
        for row in range(6):
            transaction.put(f"{number:04}{row}".encode(), bytes([number]) * 9000)
        for row in range(3):
            transaction.delete(f"{number - 1:04}{row}".encode())


def keys(path: Path) -> list[bytes]:
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env, env.begin() as transaction:
        return [bytes(key) for key, _ in transaction.cursor()]


def transactions(path: Path) -> tuple[int, int]:
    with open(path, "rb") as file:
        return last_transactions(file.fileno())


def test_the_meta_pages_have_the_numbers_of_the_last_transactions(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.touch()
    assert transactions(path) == (0, 0)
    lmdb.open(str(path), subdir=False, lock=False).close()
    assert transactions(path) == (0, 0)
    for number, expected in ((1, (0, 1)), (2, (2, 1)), (3, (2, 3))):
        commit(path, number)
        assert transactions(path) == expected
    data = path.read_bytes()
    path.write_bytes(bytes(PAGE) + data[PAGE:])
    assert transactions(path) == (0, 3)
    path.write_bytes(bytes(len(data)))
    assert transactions(path) == (0, 0)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_transaction_with_a_torn_page_is_undone_or_whole(number: int, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    for earlier in range(1, number):
        commit(path, earlier)
    lmdb.open(str(path), subdir=False, lock=False).close()
    before, kept = path.read_bytes(), keys(path)
    commit(path, number)
    after, committed = path.read_bytes(), keys(path)
    at = number % 2 * PAGE
    torn = 0
    for landed in itertools.product((False, True), repeat=len(SECTORS)):
        page = bytearray(before[at : at + PAGE])
        for (first, last), is_there in zip(SECTORS, landed, strict=True):
            if is_there:
                page[first:last] = after[at + first : at + last]
        path.write_bytes(after[:at] + page + after[at + PAGE :])
        if page_problems(path):
            assert take_back_torn(path), landed
            torn += 1
        assert page_problems(path) == []
        # The last sector holds the number. A first one that is as it was before may make no difference.
        assert keys(path) in ((committed,) if all(landed) else (kept, committed) if landed[2] else (kept,))
        commit(path, number)  # again, as a conversion that goes on does
        assert page_problems(path) == [] and keys(path) == committed
    assert torn > 0


def test_damage_elsewhere_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    for number in (1, 2, 3):
        commit(path, number)
    data = bytearray(path.read_bytes())
    for at in range(2 * PAGE, len(data), PAGE):  # every page that a tree has
        if data[at + 10] in (1, 2):
            data[at + 12] ^= 0xFF
    path.write_bytes(data)
    assert page_problems(path)
    assert not take_back_torn(path)
    assert path.read_bytes() == data
