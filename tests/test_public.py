"""The public names: few, each where the documentation says, and a moved name says where it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import lmdbloader

NAMES = {
    *("LMDBDataset", "Loader", "dataloader", "QuasiRandom", "ProgressiveResize"),
    *("convert", "write", "estimate", "stage", "find_splits"),
    *("verify", "repair", "info", "preview", "extract"),
    *("errors", "fields", "transforms", "superres", "lab"),
}


def test_there_are_few_public_names() -> None:
    assert {*lmdbloader.__all__} == NAMES | {"__version__"}
    assert {*dir(lmdbloader)} >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(lmdbloader, name)
    assert inspect.getdoc(found)
    assert found is getattr(importlib.import_module("lmdbloader"), name)


def test_no_subpackage_has_the_name_of_a_function() -> None:
    functions = {name for name in NAMES if not inspect.ismodule(getattr(lmdbloader, name))}
    assert functions.isdisjoint(module.name for module in pkgutil.iter_modules(lmdbloader.__path__))


@pytest.mark.parametrize("name", sorted(lmdbloader._MOVED))
def test_a_name_that_moved_says_where_it_is(name: str) -> None:
    place = lmdbloader._MOVED[name]
    with pytest.raises(AttributeError) as raised:
        getattr(lmdbloader, name)
    assert str(raised.value) == f"lmdbloader.{name} is {place}"
    with pytest.raises(ImportError) as refused:
        exec(f"from lmdbloader import {name}")
    assert str(refused.value) == str(raised.value)
    if place.startswith("lmdbloader.") and "(" not in place:
        module, _, attribute = place.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'lmdbloader' has no attribute 'loadr'$"):
        lmdbloader.loadr  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'loadr' from 'lmdbloader'"):
        exec("from lmdbloader import loadr")
    assert not hasattr(lmdbloader, "tune")


@pytest.mark.parametrize("name", sorted(importlib.import_module("lmdbloader.lab").__all__))
def test_what_measures_is_in_the_lab(name: str) -> None:
    assert inspect.getdoc(getattr(lmdbloader.lab, name))
    assert name in dir(lmdbloader.lab)
