"""Packages whose modules load when they are first used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package of two modules, of which the second does not import."""
    package = tmp_path / "some_lazy_package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "__init__.py").touch()
    (package / "inner" / "good.py").write_text("one, two = 1, 2")
    (package / "bad.py").write_text("import a_module_that_is_missing")
    (package / "__init__.py").write_text(
        "from lmdbloader.base.lazy import lazy\n"
        '__getattr__, __dir__, __all__ = lazy(__name__, {"inner.good": "one two", "bad": "three"})\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return package.name


def test_a_module_loads_with_the_first_of_its_names(lazily: str) -> None:
    package = importlib.import_module(lazily)
    assert f"{lazily}.inner" not in sys.modules
    assert package.two == 2
    assert f"{lazily}.inner.good" in sys.modules and f"{lazily}.bad" not in sys.modules


def test_an_unknown_name_is_the_error_that_python_gives(lazily: str) -> None:
    package = importlib.import_module(lazily)
    with pytest.raises(AttributeError, match=f"module '{lazily}' has no attribute 'four'"):
        _ = package.four
    assert not hasattr(package, "four")
