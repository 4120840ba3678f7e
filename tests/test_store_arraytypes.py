"""Types of arrays, many at once: as one by one, whatever is among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmdbloader.errors import FormatError
from lmdbloader.format.layout import ARRAY_DTYPES, array_type, parse_array_type
from lmdbloader.store import arraytypes
from lmdbloader.store.arraytypes import array_nbytes

sizes = st.lists(st.sampled_from([0, 1, 2, 7, 10, 999, 10**6, 10**12 - 1]), max_size=8)
sound = st.builds(array_type, st.sampled_from(sorted(ARRAY_DTYPES)), sizes)
odd = st.sampled_from(
    ["", "[", "]", "[]", "float32", "float32[", "float32]", "float32[3", "float32[,]", "float32[3,]", "float32[,3]",
     "float32[3][3]", "float32[3]x", "xfloat32[3]", "float32 [3]", "float32[ 3]", "float32[-3]", "float32[1_0]",
     "float32[3;4]", "object[3]", "Float32[3]", "float32\0[3]", "float32[\0]", "float32[٣]", "float32[1000000000000]",
     "float32[03]", "complex128x[3]", "f" * 40 + "[3]",
     f"bool[{','.join(['1'] * 33)}]", f"bool[{','.join(['1'] * 32)}]"]
) | st.text("float32[],0 ", max_size=14) | st.text(max_size=6)  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 3, 4096])
@example(texts=["float32[3]"], other="float32\0[3]", skipped=0)
@given(texts=st.lists(sound, max_size=8), other=st.none() | odd, skipped=st.integers(0, 2))
def test_lengths_are_those_of_each_type(texts: list[str], other: str | None, skipped: int, at_once: int) -> None:
    texts = texts if other is None else [*texts, other, *texts]
    column = pa.array(["bool[]"] * skipped + texts, pa.string())[skipped:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arraytypes, "_AT_ONCE", at_once)
        try:
            wanted = [parse_array_type(text) for text in texts]
        except FormatError:
            with pytest.raises(FormatError, match="expected something like"):
                array_nbytes(column)
            return
        found = array_nbytes(column).tolist()
    for (dtype, shape), nbytes in zip(wanted, found, strict=True):
        itemsize = np.dtype(dtype).itemsize
        product, spread = (
            float(np.prod([itemsize, *part], dtype=np.float64)) for part in (shape, np.maximum(shape, 1))
        )
        assert nbytes == (product if spread <= 2.0**62 else np.inf)


def test_an_array_of_the_largest_sizes_can_be_made() -> None:
    nbytes = array_nbytes(pa.array(["uint8[0,999999999999]", "uint8[0,999999999999,999999999999]"], pa.string()))
    assert nbytes.tolist() == [0, np.inf]
    assert np.empty(0, np.uint8).reshape(0, 10**12 - 1).nbytes == 0
    with pytest.raises(ValueError, match="too big"):
        np.empty(0, np.uint8).reshape(0, 10**12 - 1, 10**12 - 1)
