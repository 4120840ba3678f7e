"""float16 in kernels: as float32, and the bits of a float32 rounded to it.

The latter is a function of its own in LLVM's terms, so that a build for another processor can give it the other
body: with the processor's instruction or without. The two give the same bits.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import bits_of, float_of_bits, u16_at

NAME = "lmdbloader_half_bits"
_I16, _I32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
# Bits of float32: infinity; the least number that float16 has no exponent for; the least one that is normal there. The
# difference of the exponent biases, plus the number that rounds the 13 dropped bits; an odd rest adds one more.
_INFINITY, _TOO_LARGE, _NORMAL = 0x7F800000, (127 + 16) << 23, (127 - 14) << 23
_REBIASED = ((15 - 127) << 23) + 0xFFF & 0xFFFFFFFF
# The difference of the biases; the least normal number.
_BIAS, _SMALL = (127 - 15) << 23, 113 << 23
# One half: its last digit has the value of the smallest float16.
_HALF = 126 << 23


@intrinsic
def half_bits_of(typing_context, value):
    """Return the bits of a float32 rounded to float16 (to even) as a uint16."""

    def generate(context, builder, signature, arguments):
        module = builder.module
        function = module.globals.get(NAME) or _define(module, _host_has_instruction())
        function.linkage = "linkonce_odr"
        return builder.call(function, arguments)

    return types.uint16(types.float32), generate


def half_bits_body(has_instruction: bool) -> str:
    """Return LLVM's text of the function that kernels convert with.

    Linked into a module of kernels, it replaces the one in that module.

    Args:
        has_instruction: Whether the processor converts float32 to float16 (on x86-64 the feature "f16c", on aarch64
            always); if not, integers do.
    """
    module = ir.Module()
    _define(module, has_instruction)
    return str(module)


def _host_has_instruction() -> bool:
    return platform.machine() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("f16c"))


def _define(module: ir.Module, has_instruction: bool) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(_I16, [_FLOAT]), NAME)
    function.attributes.add("alwaysinline")
    builder = ir.IRBuilder(function.append_basic_block())
    (value,) = function.args
    if has_instruction:
        builder.ret(builder.bitcast(builder.fptrunc(value, ir.HalfType()), _I16))
    else:
        builder.ret(_converted(builder, value))
    return function


def _converted(builder: ir.IRBuilder, value: Any) -> Any:
    """Convert with integers and one addition, without a branch."""
    bits = builder.bitcast(value, _I32)
    sign = builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000))
    size = builder.and_(bits, _I32(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _I32(13)), _I32(1))
    normal = builder.lshr(builder.add(builder.add(size, _I32(_REBIASED)), odd), _I32(13))
    # The addition rounds to the digits of a float16 below the normal ones.
    half = builder.bitcast(_I32(_HALF), _FLOAT)
    small = builder.sub(builder.bitcast(builder.fadd(builder.bitcast(size, _FLOAT), half), _I32), _I32(_HALF))
    # A NaN keeps its upper bits and becomes a quiet one.
    nan = builder.or_(builder.and_(builder.lshr(size, _I32(13)), _I32(0x3FF)), _I32(0x7E00))
    found = builder.select(builder.icmp_unsigned("<", size, _I32(_NORMAL)), small, normal)
    found = builder.select(builder.icmp_unsigned("<", size, _I32(_TOO_LARGE)), found, _I32(0x7C00))
    found = builder.select(builder.icmp_unsigned(">", size, _I32(_INFINITY)), nan, found)
    return builder.trunc(builder.or_(found, sign), _I16)


@kernel
def floats_of_halves(address, out):
    """Write float16 at a uint64 address as float32 (n,); every one has the same value there."""
    halves, words = u16_at(address, out.shape[0]), out.view(np.uint32)
    for i in range(out.shape[0]):
        bits = np.uint32(halves[i])
        size = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
        # Those below the normal ones get an exponent to subtract again.
        small = bits_of(float_of_bits(np.uint32(size + np.uint32(_SMALL))) - float_of_bits(np.uint32(_SMALL)))
        found = np.uint32(size + np.uint32(_BIAS))
        if size >= np.uint32(0x7C00 << 13):  # infinity and NaN
            found = np.uint32(found + np.uint32(_BIAS))
        if size < np.uint32(1 << 23):
            found = small
        words[i] = found | np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
