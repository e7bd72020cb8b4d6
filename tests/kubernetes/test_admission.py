"""Admission webhooks and limits of a namespace on a real cluster: what they say is told, and jobs go on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from switchyard.agent.backends import marker_of
from switchyard.model.lifecycle import ObservedState
from switchyard.model.retry import Cause
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import KubernetesAgent, a_job, begin, end_of, pods_of, runs
from tests.kubernetes.webhook import DENIAL, denying_webhook, registered, webhook_away

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]
AWAY = "failed calling webhook"


def reasons(agent: KubernetesAgent) -> list[str]:
    """Why the job waits, as it was reported."""
    return [queued.timed.report.reason for queued in agent.journal.queued() if not queued.is_final]


def test_a_webhook_that_denies_the_job_fails_it_with_its_words(agent: KubernetesAgent) -> None:
    with denying_webhook(agent.cluster) as port, registered(agent.cluster, agent.namespace, "jobs", port):
        agent.journal.take([a_job(agent.folder)])
        end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER)
    assert DENIAL in end.reason
    assert (runs(agent.folder), agent.jobs(), agent.backend.held()) == (0, [], [])


def test_a_webhook_that_is_away_is_the_reason_why_a_job_waits_to_be_created(agent: KubernetesAgent) -> None:
    with webhook_away() as port, registered(agent.cluster, agent.namespace, "jobs", port):
        agent.journal.take([a_job(agent.folder)])
        agent.until(lambda: any(AWAY in reason for reason in reasons(agent)), "the webhook is named")
        assert not agent.ends()
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


@pytest.mark.parametrize(("webhook", "words"), [(denying_webhook, DENIAL), (lambda _: webhook_away(), AWAY)])
def test_a_webhook_that_denies_the_pod_or_is_away_is_the_reason_why_a_job_waits(
    agent: KubernetesAgent, webhook: Callable[[KubernetesCluster], AbstractContextManager[int]], words: str
) -> None:
    with webhook(agent.cluster) as port, registered(agent.cluster, agent.namespace, "pods", port):
        agent.journal.take([a_job(agent.folder)])
        agent.until(lambda: any(words in reason for reason in reasons(agent)), "the webhook is named")
        assert any(reason.startswith("no pod can be created: ") for reason in reasons(agent))
        assert (len(agent.jobs()), pods_of(agent)) == (1, [])
        assert not agent.ends()
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


def test_a_job_without_a_pod_for_a_webhook_can_be_cancelled(agent: KubernetesAgent) -> None:
    with webhook_away() as port, registered(agent.cluster, agent.namespace, "pods", port):
        lease = a_job(agent.folder)
        agent.journal.take([lease])
        agent.until(lambda: any(AWAY in reason for reason in reasons(agent)), "the webhook is named")
        agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
        assert end_of(agent).seen is ObservedState.CANCELLED
    assert (runs(agent.folder), agent.jobs()) == (0, [])


def test_a_limit_range_that_adds_to_a_pod_holds_for_the_job(agent: KubernetesAgent) -> None:
    """The job names no memory: the namespace gives it some."""
    limit = {"type": "Container", "default": {"memory": "64Mi"}, "defaultRequest": {"memory": "32Mi"}}
    body = {"metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    agent.cluster.request("POST", f"/api/v1/namespaces/{agent.namespace}/limitranges", body)
    # A shell variable of 256 MB, in pieces that busybox takes.
    lease = a_job(agent.folder, "x=0123456789abcdef; while :; do x=$x$x; done")
    begin(agent, lease)
    resources = pods_of(agent)[0]["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == ("32Mi", "64Mi")
    end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.JOB)
    assert "out of memory" in end.reason
    assert (runs(agent.folder), len(agent.jobs())) == (1, 1)
    name = marker_of(lease).lower()
    assert agent.backend.status([name])[name].seen is ObservedState.FAILED
