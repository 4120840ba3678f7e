"""Packages whose modules load when one of their names is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy(
    package: str, names_by_module: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that loads its modules when they are first used.

    Type checkers do not see these names: the package imports them under TYPE_CHECKING too.

    Args:
        package: The `__name__` of the package.
        names_by_module: For each module of the package, the names in it, separated by spaces.
    """
    module_of = {name: module for module, names in names_by_module.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, list_names, sorted(module_of)
