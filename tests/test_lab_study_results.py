"""A study survives JSON, and JSON that is not a study is refused with the wrong place."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_example import make_study

from lmdbloader.errors import FormatError
from lmdbloader.lab.study.results import Study, to_plain
from lmdbloader.lab.study.rows import SweepRow

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
}
_JSON = st.recursive(
    st.one_of(*_SCALARS.values()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type that JSON keeps."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{f.name: values_of(hints[f.name]) for f in dataclasses.fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=2).map(tuple)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is UnionType:
        return st.one_of(*map(values_of, inner))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=4), _JSON if inner[1] is Any else values_of(inner[1]), max_size=2)
    return _SCALARS[kind]


@given(values_of(Study))
def test_any_study_survives_json(study: Study) -> None:
    assert Study.from_json(json.loads(json.dumps(study.as_json(), allow_nan=False))) == study


@pytest.mark.parametrize("options", [{}, {"gpu": True}, {"baseline": False}, {"model": None}])
def test_the_example_survives_json(options: dict[str, Any]) -> None:
    study = make_study(**options)
    assert Study.from_json(json.loads(json.dumps(study.as_json(), allow_nan=False))) == study


def changed(**entries: Any) -> dict[str, Any]:
    return {**make_study().as_json(), **entries}


def row(**entries: Any) -> dict[str, Any]:
    rows = make_study().as_json()["sweep"]
    return changed(sweep=[rows[0], {**rows[1], **entries}])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "study: found []; expected the JSON object that `lmdbloader bench --json` writes"),
        ({}, "expected the JSON object"),
        (changed(study_version=2), "study: version 2; this release reads 1"),
        (changed(study_version=True), "study: version True"),
        (changed(cores="four"), "study.cores is 'four'; expected a whole number"),
        (changed(cores=True), "study.cores is True; expected a whole number"),
        (changed(cores=4.0), "study.cores is 4.0; expected a whole number"),
        (changed(seconds=math.nan), "study.seconds is nan; expected a finite number"),
        (changed(seconds=10**400), "study.seconds is 1000"),
        (changed(release=None), "study.release is None; expected text"),
        (changed(notes="none"), "study.notes is 'none'; expected a list"),
        (changed(environment=[]), "study.environment is []; expected an object"),
        (changed(more=1), "study: unknown entry 'more'"),
        (row(source="tape"), "study.sweep[1].source is 'tape'; expected one of 'lmdbloader', 'dataloader', 'folder'"),
        (row(source=[]), "study.sweep[1].source is []; expected one of"),
        (row(is_pinned=1), "study.sweep[1].is_pinned is 1; expected true or false"),
        (row(latency=None), "study.sweep[1].latency is None; expected an object"),
        (row(latency={}), "study.sweep[1].latency: 'p50_seconds' is missing; there are no entries"),
        (row(stages={"read": "0"}), "study.sweep[1].stages.read is '0'; expected a finite number"),
    ],
)
def test_json_that_is_not_a_study_is_refused(value: Any, expected: str) -> None:
    with pytest.raises(FormatError) as caught:
        Study.from_json(value)
    assert expected in str(caught.value)


def test_a_whole_number_will_do_where_a_float_is_expected() -> None:
    study = Study.from_json(row(samples_per_s=7))
    assert study.sweep[1].samples_per_s == 7.0
    assert isinstance(study.sweep[1].samples_per_s, float)


def test_a_missing_entry_is_named() -> None:
    value = make_study().as_json()
    del value["threads"]
    with pytest.raises(FormatError, match="study: 'threads' is missing"):
        Study.from_json(value)


def test_a_figure_that_json_has_not_is_refused_when_written() -> None:
    broken = dataclasses.replace(make_study(), seconds=math.inf)
    with pytest.raises(FormatError, match="JSON has no number for inf"):
        broken.as_json()


def test_stall_is_the_share_of_the_step_that_waits() -> None:
    training = make_study().sweep[0].training
    assert training is not None
    assert training.stall == pytest.approx(training.phases.data / sum(to_plain(training.phases).values()))
    still = dataclasses.replace(training, phases=dataclasses.replace(training.phases, data=0.0))
    assert still.stall == 0.0


def test_every_row_of_the_example_is_plausible() -> None:
    for study in (make_study(), make_study(gpu=True)):
        for entry in study.sweep:
            assert isinstance(entry, SweepRow)
            assert sum(entry.latency.counts) == pytest.approx(400, abs=10)
            assert len(entry.latency.edges) == len(entry.latency.counts) + 1
