"""float32 rounded to float16: NumPy's bits from both bodies of the function, for every case that rounds differently."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest

from lmdbloader.kernels.runtime.half import NAME, floats_of_halves, half_bits_body, half_bits_of

# Kernels before the body is chosen: they have a body that is replaced, and a loop that calls it.
KERNELS = f"""
define linkonce_odr i16 @{NAME}(float %value) alwaysinline {{
    ret i16 7
}}
define void @convert(ptr %source, ptr %target, i64 %count) {{
entry:
    br label %loop
loop:
    %i = phi i64 [0, %entry], [%next, %loop]
    %from = getelementptr float, ptr %source, i64 %i
    %to = getelementptr i16, ptr %target, i64 %i
    %value = load float, ptr %from
    %bits = call i16 @{NAME}(float %value)
    store i16 %bits, ptr %to
    %next = add nuw i64 %i, 1
    %done = icmp eq i64 %next, %count
    br i1 %done, label %end, label %loop
end:
    ret void
}}
"""
Convert = Callable[[np.ndarray], np.ndarray]


@numba.njit
def _convert_in_numba(values, out):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        out[i] = half_bits_of(values[i])


def in_numba(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.size, np.uint16)
    _convert_in_numba(values, out)
    return out


def linked(has_instruction: bool) -> Convert:
    """Return the loop with one of the bodies, compiled for this processor as the build of the libraries does it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    module = llvm.parse_assembly(KERNELS)
    module.link_in(llvm.parse_assembly(half_bits_body(has_instruction)))
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    assert f"@{NAME}(" not in str(module.get_function("convert"))  # it is inlined
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, pointer, pointer, size)(engine.get_function_address("convert"))

    def convert(values: np.ndarray, engine: llvm.ExecutionEngine = engine) -> np.ndarray:
        out = np.empty(values.size, np.uint16)
        function(values.ctypes.data, out.ctypes.data, values.size)
        return out

    return convert


@pytest.fixture(scope="module", params=["this processor's", "integers", "in Numba"])
def convert(request: pytest.FixtureRequest) -> Convert:
    return (
        in_numba if request.param == "in Numba" else linked(request.param == "this processor's" and has_instruction())
    )


def has_instruction() -> bool:
    features = llvm.get_host_cpu_features()
    return bool(features.get("f16c", "arm" in llvm.get_process_triple() or "aarch64" in llvm.get_process_triple()))


def numpys(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # aarch64 reports signaling NaNs
        return values.astype(np.float16).view(np.uint16)


def every_half() -> np.ndarray:
    """Return all finite float16 as float32, and 65536."""
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    return np.append(finite, np.float32(65536))


def test_in_the_middle_of_two_and_next_to_it(convert: Convert) -> None:
    halves = every_half()
    middles = (halves[1:] + halves[:-1]) / 2
    assert (middles > halves[:-1]).all() and (middles < halves[1:]).all()
    down, up = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    values = np.concatenate([middles, down, up])
    for signed in (values, -values):
        np.testing.assert_array_equal(convert(signed), numpys(signed))
    # To even, in plain words: an odd one below the middle is left for the even one above.
    number = np.arange(middles.size)
    np.testing.assert_array_equal(convert(middles), number + number % 2)
    np.testing.assert_array_equal(convert(down), number)
    np.testing.assert_array_equal(convert(up), number + 1)


def test_a_million_float32_of_any_bits(convert: Convert) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 20, np.uint32)
    values = bits.view(np.float32)
    found, is_number = convert(values), ~np.isnan(values)
    np.testing.assert_array_equal(found[is_number], numpys(values)[is_number])
    # Processors keep a NaN's sign and upper bits, and make it a quiet one.
    nans = bits[~is_number]
    expected = (nans >> 16 & 0x8000) | 0x7E00 | (nans >> 13 & 0x3FF)
    np.testing.assert_array_equal(found[~is_number], expected)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x7F800000, 0x7C00), (0xFF800000, 0xFC00), (0x7F800001, 0x7E00), (0xFFC00000, 0xFE00), (0x7FFFFFFF, 0x7FFF),
        (0x00000001, 0x0000), (0x80000001, 0x8000), (0x7F7FFFFF, 0x7C00), (0x477FEFFF, 0x7BFF), (0x477FF000, 0x7C00),
        (0x33000000, 0x0000), (0x33000001, 0x0001),
    ],
)  # fmt: skip
def test_infinities_nans_and_the_ends_of_the_range(convert: Convert, bits: int, expected: int) -> None:
    assert convert(np.array([bits], np.uint32).view(np.float32)).tolist() == [expected]


def test_every_float16_becomes_the_float32_of_the_same_value() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    found = np.empty(halves.size, np.float32)
    floats_of_halves(np.uint64(halves.ctypes.data), found)
    with np.errstate(invalid="ignore"):
        expected = halves.view(np.float16).astype(np.float32)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.uint32)[~is_nan], expected.view(np.uint32)[~is_nan])
    assert np.isnan(found[is_nan]).all()
