"""XXH3, the hash of payloads: of bytes where they lie, and of bytes while they are copied.

Source: Yann Collet, xxHash 0.8 ("XXH3_64bits", seed 0, its default secret). Words are little-endian, as those of all
processors that this package has kernels for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import load_u8, load_u32, load_u64, reversed_u64, store_past_caches, store_u64
from lmdbloader.kernels.runtime.symbols import memcpy

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_BEGIN = (_P32[2], *_P64[:4], _P32[1], _P64[4], _P32[0])
_STRIPE, _IN_BLOCK = 64, 16
BLOCK_NBYTES = _STRIPE * _IN_BLOCK
_LAST_AT, _SCRAMBLE_AT, _MERGE_AT, _MIDDLE_AT, _MIDDLE_LAST_AT = 121, 128, 11, 3, 119

_I64, _I8, _I32 = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_LANES = ir.VectorType(_I64, 8)
_BYTES = ir.VectorType(_I8, _STRIPE)


def _word(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 8], "little")


def _vector(values: Any) -> ir.Constant:
    return ir.Constant(_LANES, [_I64(value) for value in values])


def _key(at: int) -> ir.Constant:
    return _vector(_word(at + 8 * lane) for lane in range(8))


def _everywhere(value: int) -> ir.Constant:
    return _vector([value] * 8)


def _add_stripe(builder: Any, total: Any, data: Any, key: Any) -> Any:
    """Return the eight sums with a stripe of 64 bytes, <64 x i8>, in them."""
    value = builder.bitcast(data, _LANES)
    mixed = builder.xor(value, key)
    low, high = builder.and_(mixed, _everywhere(0xFFFFFFFF)), builder.lshr(mixed, _everywhere(32))
    neighbor = [_I32(lane ^ 1) for lane in range(8)]
    swapped = builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_I32, 8), neighbor))
    return builder.add(builder.add(total, swapped), builder.mul(low, high))


def _scramble(builder: Any, total: Any) -> Any:
    total = builder.xor(total, builder.lshr(total, _everywhere(47)))
    return builder.mul(builder.xor(total, _key(_SCRAMBLE_AT)), _everywhere(_P32[0]))


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _hash_blocks(*, copies: bool, past_caches: bool = False) -> Any:
    @intrinsic
    def run(typing_context, state, source, target, count):
        def generate(context, builder, signature, arguments):
            state, source, target, count = arguments
            room = cgutils.alloca_once(builder, _LANES)
            builder.store(builder.load(_pointer(builder, state, _LANES), align=8), room)
            with cgutils.for_range(builder, count, intp=_I64) as loop:
                at = builder.mul(loop.index, _I64(BLOCK_NBYTES))
                total = builder.load(room)
                for k in range(_IN_BLOCK):
                    here = builder.add(at, _I64(_STRIPE * k))
                    data = builder.load(_pointer(builder, builder.add(source, here), _BYTES), align=1)
                    to = _pointer(builder, builder.add(target, here), _BYTES)
                    if past_caches:
                        store_past_caches(builder, data, to)
                    elif copies:
                        builder.store(data, to, align=1)
                    total = _add_stripe(builder, total, data, _key(8 * k))
                builder.store(_scramble(builder, total), room)
            builder.store(builder.load(room), _pointer(builder, state, _LANES), align=8)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.uint64, types.int64), generate

    return run


_blocks, _blocks_copied = _hash_blocks(copies=False), _hash_blocks(copies=True)
_blocks_streamed = _hash_blocks(copies=True, past_caches=True)


@intrinsic
def _hash_stripe(typing_context, state, source, key):
    """Add a stripe at a uint64 address to a state, with the key at another."""

    def generate(context, builder, signature, arguments):
        state, source, key = arguments
        room = _pointer(builder, state, _LANES)
        data = builder.load(_pointer(builder, source, _BYTES), align=1)
        found = builder.load(_pointer(builder, key, _LANES), align=1)
        builder.store(_add_stripe(builder, builder.load(room, align=8), data, found), room, align=8)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


@intrinsic
def _folded(typing_context, a, b):
    """Return the lower half of the product of two uint64, xor its upper half."""

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(value, wide) for value in arguments))
        return builder.trunc(builder.xor(product, builder.lshr(product, wide(64))), _I64)

    return types.uint64(types.uint64, types.uint64), generate


_KEYS = np.frombuffer(_SECRET, np.uint8)
_U = np.uint64
_P1, _P2, _P3 = (_U(prime) for prime in _P64[:3])


@njit(inline="always")
def _secret(at):
    return load_u64(_U(_KEYS.ctypes.data) + _U(at))


@njit(inline="always")
def _mixed(value):
    value = (value ^ value >> _U(37)) * _U(0x165667919E3779F9)
    return value ^ value >> _U(32)


@njit(inline="always")
def _mixed_as_xxh64(value):
    value = (value ^ value >> _U(33)) * _P2
    value = (value ^ value >> _U(29)) * _P3
    return value ^ value >> _U(32)


@njit(inline="always")
def _rotated(value, bits):
    return value << _U(bits) | value >> _U(64 - bits)


@njit(inline="always")
def _pair(address, key):
    """Return 16 bytes mixed with two words of the secret."""
    return _folded(load_u64(address) ^ _secret(key), load_u64(address + _U(8)) ^ _secret(key + 8))


@kernel
def _xxh3_short(address, nbytes):
    """Return the hash of at most 16 bytes."""
    if nbytes > _U(8):
        low = load_u64(address) ^ _secret(24) ^ _secret(32)
        high = load_u64(address + nbytes - _U(8)) ^ _secret(40) ^ _secret(48)
        return _mixed(nbytes + reversed_u64(low) + high + _folded(low, high))
    if nbytes >= _U(4):
        value = _U(load_u32(address + nbytes - _U(4))) + (_U(load_u32(address)) << _U(32))
        value ^= _secret(8) ^ _secret(16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value *= _U(0x9FB21C651E98DF25)
        value = (value ^ (value >> _U(35)) + nbytes) * _U(0x9FB21C651E98DF25)
        return value ^ value >> _U(28)
    if nbytes:
        first, middle = _U(load_u8(address)), _U(load_u8(address + (nbytes >> _U(1))))
        value = first << _U(16) | middle << _U(24) | _U(load_u8(address + nbytes - _U(1))) | nbytes << _U(8)
        words = _secret(0)
        return _mixed_as_xxh64(value ^ (words ^ words >> _U(32)) & _U(0xFFFFFFFF))
    return _mixed_as_xxh64(_secret(56) ^ _secret(64))


@kernel
def _xxh3_middle(address, nbytes):
    """Return the hash of 17 to 240 bytes."""
    end, total = address + nbytes, nbytes * _P1
    if nbytes <= _U(128):
        for k in range((np.int64(nbytes) - 1) // 32 + 1):
            at = _U(16 * k)
            total += _pair(address + at, 32 * k) + _pair(end - at - _U(16), 32 * k + 16)
        return _mixed(total)
    for k in range(8):
        total += _pair(address + _U(16 * k), 16 * k)
    total = _mixed(total)
    for k in range(8, np.int64(nbytes) // 16):
        total += _pair(address + _U(16 * k), 16 * (k - 8) + _MIDDLE_AT)
    return _mixed(total + _pair(end - _U(16), _MIDDLE_LAST_AT))


@njit(inline="always")
def _begin(state):
    for k in range(8):
        store_u64(state + _U(8 * k), _U(_FIRST[k]))


_FIRST = np.array(_BEGIN, np.uint64)


@njit(inline="always")
def _finished(state, address, nbytes):
    """Return the hash of more than 240 bytes, whose whole blocks but the last are in the state."""
    blocks = (nbytes - _U(1)) // _U(BLOCK_NBYTES)
    keys = _U(_KEYS.ctypes.data)
    at, end = address + blocks * _U(BLOCK_NBYTES), address + nbytes
    for k in range(np.int64(nbytes - _U(1) - blocks * _U(BLOCK_NBYTES)) // _STRIPE):
        _hash_stripe(state, at + _U(_STRIPE * k), keys + _U(8 * k))
    _hash_stripe(state, end - _U(_STRIPE), keys + _U(_LAST_AT))
    total = nbytes * _P1
    for k in range(0, 8, 2):
        low, high = load_u64(state + _U(8 * k)), load_u64(state + _U(8 * k + 8))
        total += _folded(low ^ _secret(_MERGE_AT + 8 * k), high ^ _secret(_MERGE_AT + 8 * k + 8))
    return _mixed(total)


@intrinsic
def _room(typing_context):
    """Return the uint64 address of 64 bytes on the stack."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(cgutils.alloca_once(builder, _LANES), _I64)

    return types.uint64(), generate


@kernel
def xxh3(address, nbytes):
    """Return XXH3 (uint64) of `nbytes` bytes at an address; all arguments are uint64."""
    if nbytes <= _U(16):
        return _xxh3_short(address, nbytes)
    if nbytes <= _U(240):
        return _xxh3_middle(address, nbytes)
    state = _room()
    _begin(state)
    _blocks(state, address, address, np.int64((nbytes - _U(1)) // _U(BLOCK_NBYTES)))
    return _finished(state, address, nbytes)


@njit(inline="always")
def xxh3_begin():
    """Return the uint64 address of a new state, for more than 240 bytes; it lasts as long as the calling function."""
    state = _room()
    _begin(state)
    return state


@njit(inline="always")
def xxh3_advance(state, address, done, until, nbytes):
    """Hash whole blocks up to byte `until`, and return how many are hashed by now, of which `done` were before.

    Args:
        state: See `xxh3_begin`.
        address, nbytes: uint64 of all bytes.
        done, until: int64.
    """
    last = np.int64((nbytes - _U(1)) // _U(BLOCK_NBYTES))
    reached = max(done, min((until + BLOCK_NBYTES - 1) // BLOCK_NBYTES, last))
    begin = address + _U(done * BLOCK_NBYTES)
    _blocks(state, begin, begin, reached - done)
    return reached


@njit(inline="always")
def xxh3_end(state, address, done, nbytes):
    """Hash the rest, and return XXH3 (uint64); arguments as for `xxh3_advance`."""
    xxh3_advance(state, address, done, np.int64(nbytes), nbytes)
    return _finished(state, address, nbytes)


@kernel
def xxh3_copy(source, target, nbytes, streams):
    """Copy bytes in one pass with their hash; return XXH3 (uint64) of the copy.

    Args:
        source, target, nbytes: uint64.
        streams: Whether to write past the caches, see `settle`, if the target is on a cache line.
    """
    blocks = (nbytes - _U(1)) // _U(BLOCK_NBYTES) if nbytes > _U(240) else _U(0)
    state, done = _room(), blocks * _U(BLOCK_NBYTES)
    if blocks:
        _begin(state)
        if streams and target & _U(_STRIPE - 1) == _U(0):
            _blocks_streamed(state, source, target, np.int64(blocks))
        else:
            _blocks_copied(state, source, target, np.int64(blocks))
    memcpy(target + done, source + done, nbytes - done)
    if blocks:
        return _finished(state, target, nbytes)
    return xxh3(target, nbytes)
