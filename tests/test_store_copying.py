"""Copies in stored form: any damaged byte of any payload is found, in whatever order the samples are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from hypothesis import example, given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.errors import CorruptError
from lmdbloader.store import Reader
from lmdbloader.store.copying import copied_samples

COUNT = 9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose payloads are raw, lz4, tiles of both, and empty."""
    rng = np.random.default_rng(0)

    def samples() -> Any:
        for i in range(COUNT):
            image = rng.integers(0, 256, (330 if i == 4 else 20, 300 if i == 4 else 20 + i, 3), np.uint8)
            image[: len(image) // 2] = i
            yield {"image": image, "blob": bytes(100 * (i % 3)), "text": f"ü{i}", "number": i}

    path = tmp_path_factory.mktemp("copying") / "d"
    lmdbloader.write(samples(), path, codec="lz4")
    return path


@given(rows=st.lists(st.integers(0, COUNT - 1), max_size=20))
def test_payloads_are_those_of_the_samples(path: Path, rows: list[int]) -> None:
    reader = Reader(path)
    at = 0
    for chunk in copied_samples(reader, np.array(rows, np.int64)):
        here = rows[at : at + chunk.num_samples]
        at += chunk.num_samples
        assert chunk.columns["text"] == [f"ü{row}" for row in here]
        assert chunk.columns["number"].tolist() == here
        for name, payloads in chunk.payloads.items():
            ends = np.cumsum(payloads.stored_nbytes).tolist()
            found = [payloads.data[a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False)]
            assert found == [reader.stored_bytes(name, row) for row in here]
    assert at == len(rows)


@given(row=st.integers(0, COUNT - 1), name=st.sampled_from(["image", "blob"]), share=st.floats(0, 1, exclude_max=True))
@example(row=4, name="image", share=0.0)
@example(row=4, name="image", share=0.001)
@example(row=4, name="image", share=0.9999)
def test_a_changed_byte_is_found(path: Path, row: int, name: str, share: float) -> None:
    reader = Reader(path)
    nbytes = int(reader.index.arrays[f"{name}.stored_nbytes"][row])
    if not nbytes:
        return
    at = int(reader.index.arrays[f"{name}.offset"][row]) + int(share * nbytes)
    flip(path, at)
    try:
        with pytest.raises(CorruptError, match=f"field '{name}' of sample {row}"):
            list(copied_samples(reader, np.arange(COUNT)))
        others = np.delete(np.arange(COUNT), row)
        assert sum(chunk.num_samples for chunk in copied_samples(reader, others)) == COUNT - 1
    finally:
        flip(path, at)


def test_chunks_are_bounded_by_their_pixels_if_these_are_decoded(tmp_path: Path) -> None:
    flat = ({"image": np.full((512, 512, 3), i, np.uint8)} for i in range(60))
    lmdbloader.write(flat, tmp_path / "d", codec="delta")
    reader = Reader(tmp_path / "d")
    assert [chunk.num_samples for chunk in copied_samples(reader, range(60))] == [60]
    sizes = [chunk.num_samples for chunk in copied_samples(reader, range(60), counts_pixels=True)]
    assert sum(sizes) == 60
    assert max(sizes) <= 22  # 16 MiB
