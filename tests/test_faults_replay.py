"""The possible contents of a disk after a power cut are those of a real one."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.replay import Disk, File
from tests.faults.shim import Call


def test_lengths_and_sectors_are_kept_or_lost_independently() -> None:
    file = File(b"a" * 4096, [], [4096])
    file.write(0, b"b" * 8192)
    left = {file.torn(random.Random(seed)) for seed in range(300)}
    assert b"a" * 4096 in left and b"b" * 8192 in left
    assert b"a" * 4096 + bytes(4096) in left  # its length is on the disk, its pages are not
    assert b"b" * 4096 in left
    assert any(b"a" * 64 + b"b" * 64 in content for content in left)
    file.flush()
    assert {file.torn(random.Random(seed)) for seed in range(20)} == {b"b" * 8192}
    file.write(0, b"c" * 64)
    file.write_through(64, b"d" * 64)  # O_DSYNC
    assert {file.torn(random.Random(seed))[:128] for seed in range(50)} == {
        b"b" * 64 + b"d" * 64,
        b"c" * 64 + b"d" * 64,
    }


def test_names_are_kept_or_lost_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    disk = Disk(tmp_path / "before")
    disk.apply(Call("M", "out.partial"))
    disk.apply(Call("C", "out.partial/a"))
    disk.apply(Call("W", "out.partial/a", data=b"content"))
    disk.apply(Call("S", "out.partial/a"))
    disk.apply(Call("S", "out.partial"))
    disk.apply(Call("N", "out.partial", "out"))
    found = set()
    for seed in range(60):
        to = tmp_path / str(seed)
        disk.cut(to, random.Random(seed))
        found.add(tuple(sorted(f"{path.relative_to(to)}" for path in to.rglob("*"))))
    # Neither name of the folder was flushed, but its content was.
    assert found == {(), ("out.partial", "out.partial/a"), ("out", "out/a")}
