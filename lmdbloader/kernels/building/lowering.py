"""Lowers kernels to LLVM IR that fits every target: Numba infers types and lowers, without wrappers or optimization.

Numba's compiler is used as it is, with a context of its own. Each kernel becomes one module (a `Unit`), which names the
kernels that it calls by stable names. Units are kept on disk by the sources of their modules and of all that these
import, so that after an edit only the kernels that may have changed are lowered again.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, compiler, cpu, dispatcher, errors, funcdesc, registry, typing
from numba.core.runtime import rtsys

from lmdbloader.kernels.calls.signatures import NUM_RESULTS, Array, Group, Number, Signature
from lmdbloader.kernels.runtime import half

PREFIX = "lmdbloader_"
_WORD = ir.IntType(64)
_TYPES = {
    "i64": types.int64, "u64": types.uint64, "i32": types.int32, "u32": types.uint32, "u16": types.uint16,
    "u8": types.uint8, "i8": types.int8, "f32": types.float32, "f64": types.float64, "bool": types.boolean,
}  # fmt: skip
# Their callers own all memory, so nothing counts references. A copy of known length becomes instructions.
_PRELUDE = """
define void @NRT_incref(ptr %p) alwaysinline { ret void }
define void @NRT_decref(ptr %p) alwaysinline { ret void }
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @lmdbloader_memcpy(i64 %to, i64 %from, i64 %nbytes) alwaysinline {
  %target = inttoptr i64 %to to ptr
  %source = inttoptr i64 %from to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %nbytes, i1 false)
  ret i64 %to
}
"""
_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(rf"^\s*(?:from|import)\s+({_PACKAGE.name}[\w.]*)(?:\s+import\s+(\([^)]*\)|.*))?", re.MULTILINE)


class BuildError(Exception):
    """The kernels cannot be built; the message says which one and why."""


class _Library(codegen.AOTCodeLibrary):
    """Keeps Numba's code as it is: optimizing it and linking it into each caller takes most of a compiler's time."""

    def add_llvm_module(self, module: Any) -> None:
        self._final_module.link_in(module)

    def add_linking_library(self, library: Any) -> None:
        pass

    def finalize(self) -> None:
        self._finalized = True


class _Codegen(codegen.AOTCPUCodegen):
    _library_class = _Library

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.libraries: list[_Library] = []

    def create_library(self, name: str, **options: Any) -> Any:
        self.libraries.append(super().create_library(name, **options))
        return self.libraries[-1]


class _Context(cpu.CPUContext):
    """Lowers for no particular processor."""

    allow_dynamic_globals, aot_mode, is32bit = False, True, False

    def init(self) -> None:
        self._internal_codegen = _Codegen("kernels")

    def post_lowering(self, module: Any, library: Any) -> None:
        pass

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        return [].append  # nothing is run; this only has to be a new key for each kernel

    def add_dynamic_addr(self, builder: Any, intaddr: int, info: str) -> Any:
        if info != "CPUDispatcher":
            raise BuildError(f"the address of a {info} would get into the code")
        return ir.Constant(cgutils.voidptr_t, None)  # a kernel is called by its name: nothing reads its address


# A kernel for one combination of types: its module, the function in it, and the types of its arguments.
Key = tuple[str, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Unit:
    """One kernel, lowered for one combination of types.

    Attributes:
        code: Its LLVM module, bitcode, in which it has its stable name.
        result: The type of its result.
        calls: The kernels that it calls.
    """

    code: bytes
    result: Any
    calls: tuple[Key, ...]


class Lowering:
    """Lowers kernels; one for a process in which nothing else uses Numba."""

    def __init__(self, folder: Path | None = None) -> None:
        """Prepare Numba, and import no kernel yet; `folder` keeps units from one build to the next."""
        self.num_lowered = self.num_kept = 0
        self._folder = folder
        self._units: dict[Key, Unit] = {}
        self._keys: dict[str, Key] = {}  # by Numba's name of a kernel, and by its stable name
        rtsys.initialize = lambda context: None
        self._context = _Context(registry.cpu_target.typing_context, "cpu")
        registry.cpu_target.__dict__["_toplevel_target_context"] = self._context
        dispatcher.Dispatcher.enable_caching = lambda self: None
        module = importlib.import_module(f"{_PACKAGE.name}.kernels.runtime.compile")
        module.kernel = self._kernel

    def lower(self, signatures: Sequence[tuple[str, Signature]]) -> str:
        """Return the text of one LLVM module with an entry point for each (symbol, signature), not optimized."""
        entries, called = [], []
        for symbol, signature in signatures:
            module = importlib.import_module(f"{_PACKAGE.name}.kernels.{signature.module}")
            kernel = getattr(module, signature.name)
            argtypes = tuple(_numba_type(kind) for _, kind in signature.arguments)
            try:
                kernel.compile(argtypes)
            except errors.NumbaError as error:
                said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
                raise BuildError(f"{signature.module}.{signature.name}: {said}") from error
            made = kernel.overloads[argtypes]
            _check_results(signature, made.signature.return_type)
            called.append(_key(kernel, argtypes))
            entries.append(str(self._entry(symbol, _name(called[-1]), made.fndesc, signature)))
        whole = llvm.parse_assembly(str(self._context.create_module("kernels")))
        for text in (_PRELUDE, *entries):
            whole.link_in(llvm.parse_assembly(text))
        for key in sorted(self._needed(called), key=_name):
            whole.link_in(llvm.parse_bitcode(self._units[key].code))
        exported = {half.NAME, *(PREFIX + symbol for symbol, _ in signatures)}
        for value in [*whole.functions, *whole.global_variables]:
            if not value.is_declaration and value.name not in exported:
                value.linkage = "internal"
        return str(whole)

    def _kernel(self, function: Any) -> Any:
        """Stand for the decorator of kernels."""
        made = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        made._cache = _Kept(self, made)
        return made

    def _needed(self, waiting: list[Key]) -> set[Key]:
        """Return kernels and all that they call."""
        found: set[Key] = set()
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting += self._units[key].calls
        return found

    def _entry(self, symbol: str, called: str, described: Any, signature: Signature) -> Any:
        """Return the module of `void symbol(int64_t *block)`."""
        context = self._context
        module = context.create_module(symbol)
        kind = context.call_conv.get_function_type(described.restype, described.argtypes)
        callee = ir.Function(module, kind, called)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()]), PREFIX + symbol)
        builder = ir.IRBuilder(function.append_basic_block())
        number = iter(range(NUM_RESULTS, 1 << 16))

        def word() -> Any:
            return builder.load(builder.gep(function.args[0], [_WORD(next(number))]))

        values = [self._load(builder, t, word) for t in described.argtypes]
        status, result = context.call_conv.call_function(builder, callee, described.restype, described.argtypes, values)
        # Always zero. Without a use of it the optimizer could silently remove an exception that a kernel raises;
        # `linking` looks for remaining ones.
        raised = builder.select(status.is_error, builder.ptrtoint(status.excinfoptr, _WORD), _WORD(0))
        builder.store(raised, builder.gep(function.args[0], [_WORD(NUM_RESULTS - 1)]))
        many = isinstance(described.restype, types.BaseTuple)
        results = cgutils.unpack_tuple(builder, result) if many else [result] * (described.restype != types.none)
        for k, (value, code) in enumerate(zip(results, signature.results, strict=True)):
            if value.type != _WORD:
                value = (builder.sext if code.startswith("i") else builder.zext)(value, _WORD)
            builder.store(value, builder.gep(function.args[0], [_WORD(k)]))
        builder.ret_void()
        return module

    def _load(self, builder: Any, numba_type: Any, word: Any) -> Any:
        """Return one argument from the block; `word` loads its words one after the other."""
        context = self._context
        if isinstance(numba_type, types.BaseTuple):
            return context.make_tuple(builder, numba_type, [self._load(builder, t, word) for t in numba_type])
        if isinstance(numba_type, types.Array):
            itemsize = context.get_abi_sizeof(context.get_data_type(numba_type.dtype))
            address, shape = word(), [word() for _ in range(numba_type.ndim)]
            strides = [_WORD(itemsize)]
            for extent in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], extent))
            array = context.make_array(numba_type)(context, builder)
            data = builder.inttoptr(address, array.data.type)
            context.populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
            return array._getvalue()
        kind, value = context.get_value_type(numba_type), word()
        if isinstance(kind, ir.IntType):
            return builder.trunc(value, kind) if kind.width < _WORD.width else value
        return builder.bitcast(value, kind)  # float64

    def find(self, kernel: Any, argtypes: tuple[Any, ...]) -> Unit | None:
        """Return a kernel of an earlier build, and make those ready that it calls; None if it has to be lowered."""
        key = _key(kernel, argtypes)
        if self._folder is None or not self._path(key).exists():
            return None
        described, _, code = self._path(key).read_bytes().partition(b"\n")
        result, calls = json.loads(described)
        called = [(module, function, tuple(map(_decode, argtypes))) for module, function, argtypes in calls]
        unit = Unit(code, _decode(result), tuple(called))
        for module, function, its_argtypes in unit.calls:
            getattr(importlib.import_module(module), function).compile(its_argtypes)
        self._units[key], self._keys[_name(key)] = unit, key
        self.num_kept += 1
        return unit

    def keep(self, kernel: Any, made: Any) -> None:
        """Keep a kernel that was just lowered."""
        self.num_lowered += 1
        key = _key(kernel, tuple(made.signature.args))
        self._keys[made.fndesc.mangled_name] = self._keys[_name(key)] = key
        module, calls = self._self_contained(_name(key), made)
        self._units[key] = Unit(module.as_bitcode(), made.signature.return_type, calls)
        if self._folder is not None:
            partial = self._folder / f"partial-{os.getpid()}"
            called = [(module, function, list(map(_encode, argtypes))) for module, function, argtypes in calls]
            described = json.dumps([_encode(made.signature.return_type), called])
            partial.write_bytes(described.encode() + b"\n" + self._units[key].code)
            os.replace(partial, self._path(key))

    def _path(self, key: Key) -> Path:
        assert self._folder is not None
        text = repr([_name(key), _versions(), _sources_digest(key[0])])
        return self._folder / hashlib.sha256(text.encode()).hexdigest()[:32]

    def prune(self) -> None:
        """Remove the kept units that were not used."""
        if self._folder is not None:
            used = {self._path(key) for key in self._units}
            for path in self._folder.iterdir():
                if path not in used:
                    path.unlink()

    def _self_contained(self, name: str, made: Any) -> tuple[Any, tuple[Key, ...]]:
        """Return a kernel's module with Numba's helpers in it, and the kernels that it calls."""
        homes = {
            function.name: library
            for library in self._context.codegen().libraries
            for function in library._final_module.functions
            if not function.is_declaration
        }
        module = llvm.parse_bitcode(made.library._final_module.as_bitcode())
        missing = before = _undefined(module)
        while missing:
            found = [homes[symbol] for symbol in missing if symbol in homes and symbol not in self._keys]
            for library in {id(library): library for library in found}.values():
                module.link_in(llvm.parse_bitcode(library._final_module.as_bitcode()))
            missing = _undefined(module) - before
            before = before | missing
        calls = {}
        for function in module.functions:
            key = self._keys.get(function.name)
            stable = function.name if key is None else _name(key)
            if function.is_declaration and key is not None:
                calls[stable] = key
            elif not function.is_declaration and stable not in (name, half.NAME):
                function.linkage = "internal"
            if stable != function.name:
                function.name = stable
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        return module, tuple(calls[stable] for stable in sorted(calls))


class _Kept:
    """Stands in for Numba's cache of one kernel."""

    def __init__(self, lowering: Lowering, kernel: Any) -> None:
        self._lowering, self._kernel = lowering, kernel

    def load_overload(self, argtypes: Any, target: Any) -> Any:
        """Return a kernel of an earlier build, None if it has to be lowered."""
        unit = self._lowering.find(self._kernel, tuple(argtypes))
        return unit and _described(self._kernel, tuple(argtypes), unit)

    def save_overload(self, argtypes: Any, made: Any) -> None:
        """Keep a kernel."""
        self._lowering.keep(self._kernel, made)


def _described(kernel: Any, argtypes: tuple[Any, ...], unit: Unit) -> Any:
    """Return the information that Numba needs to lower calls of a kernel."""
    function, result, name = kernel.py_func, unit.result, _name(_key(kernel, argtypes))
    described = funcdesc.PythonFunctionDescriptor(
        True, function.__module__, function.__qualname__, name, "", None, result, None,
        list(inspect.signature(function).parameters), (), mangler=lambda *_, **__: name, argtypes=argtypes,
    )  # fmt: skip
    return compiler.compile_result(
        typing_context=kernel.typingctx, target_context=kernel.targetctx, entry_point=[].append,
        signature=typing.signature(result, *argtypes), objectmode=False, fndesc=described, reload_init=(),
        referenced_envs=(),
    )  # fmt: skip


def _key(kernel: Any, argtypes: tuple[Any, ...]) -> Key:
    return kernel.py_func.__module__, kernel.py_func.__qualname__, argtypes


def _name(key: Key) -> str:
    """Return the stable name of a kernel."""
    module, function, argtypes = key
    return f"{module}.{function}{argtypes}"


def _encode(kind: Any) -> Any:
    """Return a type as JSON."""
    if isinstance(kind, types.BaseTuple):
        return ["tuple", *map(_encode, kind)]
    if isinstance(kind, types.Array):
        return ["array", _encode(kind.dtype), kind.ndim, kind.layout, kind.mutable]
    if isinstance(kind, types.Literal):
        return ["literal", kind.literal_value]
    if getattr(types, str(kind), None) != kind:
        raise BuildError(f"a kernel takes or returns {kind}; expected numbers, arrays and tuples of them")
    return str(kind)


def _decode(value: Any) -> Any:
    """Return the type that `_encode` made JSON of."""
    if isinstance(value, str):
        return getattr(types, value)
    if value[0] == "tuple":
        return types.Tuple([_decode(item) for item in value[1:]])
    if value[0] == "literal":
        return types.literal(value[1])
    return types.Array(_decode(value[1]), value[2], value[3], readonly=not value[4])


@cache
def _versions() -> list[str]:
    here = Path(__file__)
    return [numba.__version__, llvmlite.__version__, sys.version, hashlib.sha256(here.read_bytes()).hexdigest()]


@cache
def _sources_digest(module: str) -> str:
    """Return a digest of the sources of a module and of everything that it imports from this package."""
    sources: dict[str, bytes] = {}
    waiting = {module}
    while waiting:
        name = waiting.pop()
        source, imports = _source(name)
        if source:
            sources[name] = source
            waiting |= imports - sources.keys()
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


@cache
def _source(module: str) -> tuple[bytes, frozenset[str]]:
    """Return a module's source and the names it may import; nothing for a package or a name in a module."""
    try:
        source = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_bytes()
    except OSError:
        return b"", frozenset()
    found = _IMPORT.findall(source.decode("utf-8", "replace"))
    inside = {f"{name}.{word}" for name, words in found for word in re.findall(r"\w+", words)}
    return source, frozenset({name for name, _ in found} | inside)


def _undefined(module: Any) -> set[str]:
    return {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}


def _numba_type(kind: Number | Array | Group) -> Any:
    if isinstance(kind, Group):
        return types.Tuple([_numba_type(item) for item in kind.items])
    return types.Array(_TYPES[kind.code], kind.ndim, "C") if isinstance(kind, Array) else _TYPES[kind.code]


def _check_results(signature: Signature, found: Any) -> None:
    results = list(found) if isinstance(found, types.BaseTuple) else [found] * (found != types.none)
    codes = [
        code for result in results for code, kind in _TYPES.items() if kind == getattr(result, "literal_type", result)
    ]
    if tuple(codes) != signature.results:
        raise BuildError(f"{signature.module}.{signature.name} returns {found}; its entry says {signature.results}")
