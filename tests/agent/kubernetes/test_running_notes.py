"""Notes of running attempts: a node that does not answer, a finalizer that holds a delete, the grace period."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from switchyard.features.kubernetes.agent.jobs.attempt_status import running_note
from switchyard.features.kubernetes.agent.jobs.job_status import JobView, NodeState
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from tests.agent.kubernetes.objects import a_job, a_pod, ago, running, terminated

AWAY_NOTE = "its node n1 does not answer: it may still run there"
RUNS, ENDING = a_pod("Running", running()), a_pod("Running", running(), deleted=5)


def held(pod: PodObject, *finalizers: str) -> PodObject:
    return replace(pod, metadata=replace(pod.metadata, finalizers=list(finalizers)))


ENDED = held(a_pod("Failed", terminated(143), deleted=5), "batch.kubernetes.io/job-tracking", "example.com/held")
DELETED_JOB = a_job(deletionTimestamp=ago(5), finalizers=["foregroundDeletion", "example.com/job"])


@pytest.mark.parametrize(
    ("view", "node", "note"),
    [
        (JobView(job=a_job(), pods=[RUNS]), NodeState.READY, ""),
        (JobView(job=a_job(), pods=[held(RUNS, "example.com/held")]), NodeState.READY, ""),
        (JobView(job=a_job(), pods=[RUNS]), NodeState.UNSEEN, ""),
        (JobView(job=a_job(), pods=[RUNS]), NodeState.AWAY, AWAY_NOTE),
        (JobView(job=a_job(), is_deleted=True, gone_pods=[ENDING]), NodeState.AWAY, AWAY_NOTE),
        (JobView(job=a_job(), pods=[ENDED]), NodeState.AWAY, "it is being deleted, held by example.com/held"),
        (JobView(job=a_job(), pods=[ENDING]), NodeState.READY, "its pod is being ended: it has 30 s after SIGTERM"),
        (JobView(job=DELETED_JOB, pods=[ENDING]), NodeState.READY, "its pod is being ended: it has 30 s after SIGTERM"),
        (
            JobView(job=DELETED_JOB, pods=[ENDED]),
            NodeState.READY,
            "it is being deleted, held by example.com/held, example.com/job",
        ),
        (JobView(job=a_job(), index=1, pods=[a_pod("Running", running(), index=0, deleted=5)]), NodeState.READY, ""),
    ],
)
def test_note(view: JobView, node: NodeState, note: str) -> None:
    assert running_note(view, lambda _: node) == note
