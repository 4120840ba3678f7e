"""Raw memory in kernels: arrays over addresses, loads and stores, and the bits of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_COPIED = 32
LINE_NBYTES = 64


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def _array_of(kind: Any) -> Any:
    @njit(inline="always")
    def at(address, count):
        return carray(_pointer(np.uint64(address)), (count,), kind)

    return at


# ..._at(address, count) -> the array of so many values at an address.
u8_at, u16_at, u32_at, u64_at = (_array_of(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))
i32_at, i64_at, f32_at, f64_at = (_array_of(kind) for kind in (np.int32, np.int64, np.float32, np.float64))


@njit(inline="always")
def array_at(address, count, like):
    """Return `count` values at an address as an array of another's type."""
    return carray(_pointer(np.uint64(address)), (count,), like.dtype)


@njit(inline="always")
def cube_at(address, count, like):
    """Return `count` values at an address as an array (1, 1, count) of another's type."""
    return carray(_pointer(np.uint64(address)), (1, 1, count), like.dtype)


@njit(inline="always")
def part(array, at, count):
    """Return array[at : at + count] as its own array, without a copy.

    A loop over it from 0 on becomes vector instructions; one over array[at + i] does not, as at + i might be negative
    and then counts from the end.
    """
    return array_at(array.ctypes.data + np.uint64(at * array.itemsize), count, array)


def _load_of(kind: ir.Type, found: types.Type) -> Any:
    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)

        return found(types.uint64), generate

    return load


def _store_of(kind: ir.Type, given: types.Type) -> Any:
    @intrinsic
    def store(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, given), generate

    return store


def store_past_caches(builder: Any, value: Any, pointer: Any) -> None:
    """Emit a store of a whole cache line to its 64-byte boundary that brings nothing into the processor's caches."""
    builder.store(value, pointer, align=LINE_NBYTES).set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))


def _copy_of(nbytes: int, *, past_caches: bool = False) -> Any:
    @intrinsic
    def copy(typing_context, source, target):
        def generate(context, builder, signature, arguments):
            pointer = ir.VectorType(_I8, nbytes).as_pointer()
            block = builder.load(builder.inttoptr(arguments[0], pointer), align=1)
            target = builder.inttoptr(arguments[1], pointer)
            if past_caches:
                store_past_caches(builder, block, target)
            else:
                builder.store(block, target, align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), generate

    return copy


# load_...(uint64 address) -> value, store_...(uint64 address, value): in the processor's byte order, not aligned.
load_u8, load_u16, load_u32, load_u64 = (
    _load_of(ir.IntType(kind.bitwidth), kind) for kind in (types.uint8, types.uint16, types.uint32, types.uint64)
)
load_i32 = _load_of(_I32, types.int32)
store_u8, store_u16, store_u32, store_u64 = (
    _store_of(ir.IntType(kind.bitwidth), kind) for kind in (types.uint8, types.uint16, types.uint32, types.uint64)
)
# copy_N(uint64 address of the source, of the target): N bytes, all read before the first is written.
copy_8, copy_16, copy_32 = (_copy_of(nbytes) for nbytes in (8, 16, _COPIED))
_stream_line = _copy_of(LINE_NBYTES, past_caches=True)


@intrinsic
def load_bits(typing_context, address):
    """Return eight bytes at a uint64 address as a big-endian uint64."""

    def generate(context, builder, signature, arguments):
        word = builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()), align=1)
        return builder.bswap(word)

    return types.uint64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """Return the number of zeros below the lowest bit of a uint64 that is one."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def leading_zeros(typing_context, word):
    """Return the number of zeros above the highest bit of a uint64 that is one; 64 of zero."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def reversed_u64(typing_context, word):
    """Return a uint64 with its bytes in the other order."""

    def generate(context, builder, signature, arguments):
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def settle(typing_context):
    """Make what was stored past the caches visible to other threads before anything that is stored later."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit(inline="always")
def stream(source, target, nbytes):
    """Copy bytes from one uint64 address to another, whole cache lines past the caches."""
    head = min(np.int64(np.uint64(0) - target & np.uint64(LINE_NBYTES - 1)), nbytes)
    read, write = u8_at(source, nbytes), u8_at(target, nbytes)
    for k in range(head):
        write[k] = read[k]
    done = head + (nbytes - head) // LINE_NBYTES * LINE_NBYTES
    for k in range(head, done, LINE_NBYTES):
        _stream_line(source + np.uint64(k), target + np.uint64(k))
    for k in range(done, nbytes):
        write[k] = read[k]


@intrinsic
def likely(typing_context, condition):
    """Return a condition; the compiler treats true as the usual case."""

    def generate(context, builder, signature, arguments):
        bit = ir.IntType(1)
        expect = cgutils.get_or_insert_function(builder.module, ir.FunctionType(bit, (bit, bit)), "llvm.expect.i1")
        return builder.call(expect, (arguments[0], bit(1)))

    return types.boolean(types.boolean), generate


@intrinsic
def prefetch(typing_context, address):
    """Ask the processor for the cache line at a uint64 address; it goes on at once, and no address is an error."""

    def generate(context, builder, signature, arguments):
        kinds = (cgutils.voidptr_t, _I32, _I32, _I32)
        name = "llvm.prefetch.p0"
        call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), kinds), name)
        # To be read, kept in all caches, data.
        builder.call(call, (builder.inttoptr(arguments[0], cgutils.voidptr_t), _I32(0), _I32(3), _I32(1)))
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@njit(inline="always")
def copy_line(source, target, nbytes):
    """Copy some dozens of bytes from one uint64 address to another; calling the library costs as much as the copy."""
    if nbytes < _COPIED:
        read, write = u8_at(source, nbytes), u8_at(target, nbytes)
        for k in range(nbytes):
            write[k] = read[k]
        return
    for k in range(0, nbytes - _COPIED + 1, _COPIED):
        copy_32(source + np.uint64(k), target + np.uint64(k))
    # The last block overlaps the one before.
    copy_32(source + np.uint64(nbytes - _COPIED), target + np.uint64(nbytes - _COPIED))


def _bits_as(kind: ir.Type, given: types.Type, found: types.Type) -> Any:
    @intrinsic
    def cast(typing_context, value):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], kind)

        return found(given), generate

    return cast


# The bits of a float32 as a uint32, of a float64 as a uint64, and the floats that have such bits.
bits_of = _bits_as(_I32, types.float32, types.uint32)
float_of_bits = _bits_as(ir.FloatType(), types.uint32, types.float32)
bits_of_double = _bits_as(_I64, types.float64, types.uint64)
double_of_bits = _bits_as(ir.DoubleType(), types.uint64, types.float64)
