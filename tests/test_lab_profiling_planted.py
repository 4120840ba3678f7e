"""A profile names bottlenecks that are planted on purpose in this process, and none if there is none.

`python benchmarks/profiling.py` does it ten times for each, in processes of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = (
    "slow decode",
    "slow Python",
    "slow NumPy",
    "slow sample transform",
    "slow model",
    "healthy",
)


@pytest.fixture(scope="module")
def planted() -> Iterator[ModuleType]:
    """The benchmarks' plants."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import planted

        yield planted
        for path in BENCHMARKS.glob("*.py"):
            sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def datasets(planted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of the plants."""
    folder = tmp_path_factory.mktemp("planted")
    planted.make_datasets(folder)
    return folder


def test_every_plant_is_tried(planted: ModuleType) -> None:
    assert tuple(name for name, plant in planted.PLANTS.items() if not plant.is_alone) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bottleneck_is_named(name: str, planted: ModuleType, datasets: Path) -> None:
    plant = planted.PLANTS[name]
    for _ in range(5):  # a pipeline on a busy machine may really be short of cores
        found = plant.run(datasets).as_json()
        if found["bottleneck"] == plant.expected:
            break
    assert found["bottleneck"] == plant.expected, found
    # The advice names the remedy and its gain.
    assert (found["advice"]["gain_seconds"] > 0) is (plant.expected != "model")
    assert found["advice"]["step_seconds"] <= found["step_seconds"]
