"""Kueue: what a Job waits for, and what is said when there is no Kueue or no such queue."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.kubernetes.agent.jobs.kueue import kueue_wait_reason, queue_problem

LABELS = {"kueue.x-k8s.io/queue-name": "team-a"}


def test_a_suspended_job_says_in_which_queue_it_waits() -> None:
    assert kueue_wait_reason(LABELS, is_suspended=True) == "waits in Kueue's queue team-a"
    assert kueue_wait_reason(LABELS, is_suspended=False) == ""
    assert kueue_wait_reason({"a": "b"}, is_suspended=True) == ""


GROUP = {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}
QUEUE_PATH = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/q"


@pytest.mark.parametrize(
    ("objects", "namespace", "problem"),
    [
        (
            {},
            "team",
            "Kueue is not installed in this cluster (no API group kueue.x-k8s.io), and the site file asks for it",
        ),
        ({"/apis/kueue.x-k8s.io": {}}, "team", "the API group kueue.x-k8s.io has no version"),
        ({"/apis/kueue.x-k8s.io": GROUP}, "team", "the namespace team has no LocalQueue q of Kueue"),
        ({"/apis/kueue.x-k8s.io": GROUP}, "", ""),
        ({"/apis/kueue.x-k8s.io": GROUP, QUEUE_PATH: {"kind": "LocalQueue"}}, "team", ""),
    ],
)
def test_what_is_missing(objects: dict[str, Any], namespace: str, problem: str) -> None:
    assert queue_problem(objects.get, queue="q", namespace=namespace) == problem
