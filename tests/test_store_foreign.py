"""Values of LMDBs that others have written: a damaged file is an error, and never the end of the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from lmdbloader.errors import CorruptError
from lmdbloader.store.foreign import list_values, lmdb_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "a.lmdb"
    with lmdb.open(str(folder), map_size=2**24) as env, env.begin(write=True) as transaction:
        for i in range(300):
            transaction.put(b"%06d" % i, bytes([i % 256]) * (i * 37 % 6000))
    return folder / "data.mdb"


def test_every_value_lies_where_it_is_said_to(file: Path) -> None:
    data = file.read_bytes()
    found = list(list_values(file))
    assert [key for key, _, _ in found] == [b"%06d" % i for i in range(300)]
    for i, (_, start, nbytes) in enumerate(found):
        assert data[start : start + nbytes] == bytes([i % 256]) * (i * 37 % 6000)


def test_what_is_an_lmdb(file: Path, tmp_path: Path) -> None:
    assert lmdb_file(file) == lmdb_file(file.parent) == file
    (tmp_path / "data.mdb").write_bytes(b"x" * 5000)
    assert lmdb_file(tmp_path) is None
    assert lmdb_file(tmp_path / "nowhere") is None


def test_a_file_cut_short_or_damaged_is_an_error_and_never_a_crash(file: Path, tmp_path: Path) -> None:
    """In a process of its own, as LMDB would abort it."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom lmdbloader.errors import CorruptError\n"
        "from lmdbloader.store.foreign import list_values\n"
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


def test_the_pages_damage_is_told(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.mdb"
    path.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(CorruptError, match=r"cut\.mdb: its pages are damaged \("):
        list(list_values(path))
