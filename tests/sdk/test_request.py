"""From what a caller says to a checked request."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard import errors
from switchyard.model.job.job import JobRequest, JobSpec, Limits, OnLost, Resources
from switchyard.sdk.transport.request import build_job_request

WHOLE = JobRequest(
    JobSpec(["a"], env={"A": "1"}, resources=Resources(tasks=4, cores=2), on_lost=OnLost.FAIL, lost_after="5m"),
    name="n",
    labels={"x": "y"},
)


@pytest.mark.parametrize(
    "base",
    [
        WHOLE,
        {
            "command": "a",
            "env": {"A": "1"},
            "tasks": 4,
            "cores": 2,
            "on_lost": "fail",
            "lost_after": "5m",
            "name": "n",
            "labels": {"x": "y"},
        },
        {
            "spec": {
                "command": ["a"],
                "env": {"A": "1"},
                "resources": {"tasks": 4, "cores": 2},
                "on_lost": "fail",
                "lost_after": "5m",
            },
            "name": "n",
            "labels": {"x": "y"},
        },
        {"command": ["a"], "env": {"A": "1"}, "resources": {"tasks": 4}, "cores": 2, "on_lost": "fail"}
        | {"lost_after": "5m", "name": "n", "labels": {"x": "y"}},
    ],
)
def test_flat_and_nested_forms_are_one(base: Any) -> None:
    assert build_job_request(base, {}) == WHOLE


def test_what_is_given_wins_and_maps_merge() -> None:
    given = {
        "command": ["b"],
        "env": {"B": "2"},
        "labels": {"x": "z"},
        "cores": "500m",
        "limits": Limits(memory="4GiB"),
        "name": None,
    }
    made = build_job_request(WHOLE, {**given, "on_lost": OnLost.REQUEUE})
    assert made.spec.command == ["b"]
    assert made.spec.env == {"A": "1", "B": "2"}
    assert made.labels == {"x": "z"}
    assert made.spec.resources == Resources(tasks=4, cores="500m", limits=Limits(memory="4GiB"))
    assert (made.name, made.spec.on_lost) == ("n", OnLost.REQUEUE)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ({}, "no command"),
        ({"command": []}, "no command"),
        ({"command": "a 'b"}, "cannot be split"),
        ({"command": "a", "core": 2}, "no field 'core'"),
        ({"command": "a", "cores": 2, "resources": {"cores": 3}}, "'cores' is given twice"),
        ({"command": "a", "env": {"N": 4}}, "env.N is not a text but 4"),
        ({"command": "a", "labels": {"on": True}}, "labels.on is not a text but True"),
        ({"command": "a", "tasks": "many"}, "`tasks`"),
        ({"command": "a", "nodes": 3}, "cannot exceed tasks"),
        ({"command": "a", "memory": "8 gigs"}, "is not an amount"),
        ({"command": "a", "project": "a\nb"}, "Not a valid name"),
    ],
)
def test_mistakes_are_named_as_they_were_written(base: Any, words: str) -> None:
    with pytest.raises(errors.Malformed) as caught:
        build_job_request(base, {}, where="job.yaml")
    assert words in caught.value.detail
    assert "spec." not in caught.value.detail


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(errors.Malformed) as caught:
        build_job_request({"command": "a", "timelimit": "1h"}, {})
    assert caught.value.next_step == "Did you mean 'time_limit'?"
