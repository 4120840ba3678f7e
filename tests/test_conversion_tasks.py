"""The conversion of sources: parts of bounded size, patch positions, scales of pairs, file hashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.conversion.options import ConvertOptions
from lmdbloader.conversion.sources.listing import Source
from lmdbloader.conversion.tasks import PART_NBYTES, Recipe, convert_sources, hash_files, patch_positions
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import make_field

RECIPE = Recipe((make_field("image", "image", "raw"),))


def save(path: Path, height: int, width: int, value: int = 0) -> Source:
    """A gray PGM of one value."""
    path.write_bytes(b"P5 %d %d 255\n" % (width, height) + bytes([value]) * (height * width))
    return Source(path.name, bytes(path), path.stat().st_size)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_patch_positions_are_all_that_fit_in_order(height: int, width: int, size: int, stride: int) -> None:
    tops, lefts = patch_positions(height, width, size, stride)
    expected = [
        (top, left)
        for top in range(0, height, stride)
        for left in range(0, width, stride)
        if top + size <= height and left + size <= width
    ]
    assert list(zip(tops.tolist(), lefts.tolist(), strict=True)) == expected


def test_parts_stay_small_and_together_hold_everything(tmp_path: Path) -> None:
    # Overlapping patches: 4 MB of pixels become 81 MB, those of the second image 2 MB.
    sources = [save(tmp_path / "0.pgm", 2000, 2000), save(tmp_path / "1.pgm", 250, 2000)]
    recipe = RECIPE.changed(patch_size=250, stride=50)
    sizes, samples, hashes, done = [], 0, [], 0
    for part in convert_sources(recipe, sources):
        assert part.chunk is not None
        sizes.append(int(part.chunk.payloads["image"].stored_nbytes.sum()))
        samples += part.chunk.num_samples
        hashes += part.notes.hashes
        done += part.num_sources
        assert sum(block.num_samples for block in part.blocks) == part.chunk.num_samples
    assert samples == 36 * 36 + 36 and done == 2
    assert hashes == [*hash_files(sources)]
    assert len(sizes) == 3 and max(sizes) <= 2 * PART_NBYTES


def test_file_hashes_tell_every_file_and_both_halves_apart(tmp_path: Path) -> None:
    a, b = (save(tmp_path / f"{v}.pgm", 2, 2, v) for v in (1, 2))
    pairs = [replace(one, attached=(("lr", other.file),)) for one, other in ((a, b), (b, a), (a, a))]
    assert len(set(hash_files([a, b, *pairs]))) == 5
    content = Path(tmp_path / "1.pgm").read_bytes()
    assert [*hash_files([a])] == [checksum(bytes(8) + checksum(content).to_bytes(8, "little"))]
    assert [*hash_files([Source("gone", bytes(tmp_path / "gone"), 0)])] == [0]


def test_encoding_is_the_same_whatever_the_memory_order(tmp_path: Path) -> None:
    # A cropped image is a view with gaps between its rows; its tiles and patches must not contain them.
    rng = np.random.default_rng(0)
    pixels: Any = rng.integers(0, 256, (301, 605, 3)).astype(np.uint8)
    (tmp_path / "a.ppm").write_bytes(b"P6 605 301 255\n" + pixels.tobytes())
    (tmp_path / "b.ppm").write_bytes(b"P6 603 300 255\n" + np.ascontiguousarray(pixels[:300, :603]).tobytes())
    recipe = Recipe((make_field("lr", "image", "lz4"), make_field("hr", "image", "lz4")), ConvertOptions(scale=3))
    for size in (None, 300):
        whole, cropped = (
            next(
                convert_sources(recipe.changed(patch_size=size, stride=300), [Source(n, bytes(tmp_path / n), 1)])
            ).chunk
            for n in ("a.ppm", "b.ppm")
        )
        assert whole is not None and cropped is not None
        for name in ("lr", "hr"):
            np.testing.assert_array_equal(whole.payloads[name].data, cropped.payloads[name].data)
            np.testing.assert_array_equal(whole.payloads[name].checksum, cropped.payloads[name].checksum)
