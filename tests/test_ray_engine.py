"""The engine on Ray, with a stand-in for Ray: messages and errors when tasks end, or when the cluster is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmdbloader.conversion import part_writers
from lmdbloader.conversion.parts import ConvertedPart
from lmdbloader.errors import SourceError
from lmdbloader.ray import converting as engine


class _Remote:
    """A function with the call that Ray adds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


class _FakeRay:
    """Ray as far as the engine needs it: tasks run when they are started."""

    exceptions = SimpleNamespace(**{
        name: type(name, (Exception,), {})
        for name in ("RayError", "RayTaskError", "RuntimeEnvSetupError", "TaskUnschedulableError")
    })  # fmt: skip

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1}

    def remote(self, **options: Any) -> Any:
        results = itertools.count()

        def decorate(function: Any) -> Any:
            def run(*arguments: Any) -> str:
                reference = f"result {next(results)}"
                self.results[reference] = function(*arguments)
                return reference

            return _Remote(run)

        return decorate

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def wait(self, references: list[str], **options: Any) -> tuple[list[str], list[str]]:
        return references[:1], references[1:]

    def get(self, reference: Any, **options: Any) -> Any:
        return self.results[reference]


def test_the_error_of_a_part_is_raised_though_the_cluster_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(_FakeRay):
        def cancel(self, reference: str, **options: Any) -> None:
            raise self.exceptions.RayError("the cluster is gone")

    def convert_part(target: str, number: int, **options: Any) -> ConvertedPart:
        raise SourceError(f"part {number} cannot be made")

    monkeypatch.setattr(part_writers, "convert_part", convert_part)
    made = engine.make_parts(
        Lost(), tmp_path, range(3), {}, lambda *counts: None, lambda line: None, at_once=2, is_local=True
    )
    with pytest.raises(SourceError, match="part 0 cannot be made"):
        next(made)
