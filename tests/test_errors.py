"""Errors: each is also a builtin one, and keeps its attributes when it is pickled or copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from lmdbloader import errors
from lmdbloader.errors import CorruptError, ImageError, LmdbloaderError


def test_every_error_has_our_base_and_a_builtin_one() -> None:
    for name in errors.__all__:
        found = getattr(errors, name)
        assert issubclass(found, LmdbloaderError)
        if found is not LmdbloaderError:
            assert issubclass(found, OSError | ValueError | RuntimeError | ImportError | AttributeError)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("given", [{}, {"sample": 3, "field": "hr", "source": "a/ü.png", "path": "/d"}, {"sample": 0}])
def test_the_place_of_damage_survives_pickling_and_copying(
    again: Callable[[CorruptError], CorruptError], given: dict[str, object]
) -> None:
    error = again(CorruptError("its checksum does not match", **given))  # type: ignore[arg-type]
    assert isinstance(error, OSError)
    assert (str(error), error.args) == ("its checksum does not match", ("its checksum does not match",))
    expected = {"sample": None, "field": None, "source": None, "path": None, **given}
    assert {name: getattr(error, name) for name in expected} == expected


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_messages_escape_control_characters(kind: type[LmdbloaderError]) -> None:
    name = "a\x1b[2J\x9b\r\nlmdbloader: all is well \u202egnp.\udcff漢\u3000字"
    error = kind(name, "is cut\x07 short") if kind is ImageError else kind(f"{name}: is cut short")
    shown = str(error).replace("\n", "", 1 if kind is errors.WorkerError else 0)
    assert shown.replace("\u3000", "").isprintable()
    assert r"a\x1b[2J\x9b\r" in shown and r"\u202egnp.\udcff漢" in shown
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.args) == (str(error), error.args)
