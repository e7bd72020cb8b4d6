"""Admission webhooks and limits of a namespace on a real cluster: what they say is told, and jobs go on afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.features.kubernetes.agent.jobs.job_submitter import CREATES_AT_ONCE, CREATES_PER_NAMESPACE
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import END_S, KubernetesAgent, MakeAgent, a_job, begin, end_of, pods_of, runs
from tests.kubernetes.webhook import DENIAL, denying_webhook, registered, webhook_away

pytestmark = pytest.mark.kubernetes
WEBHOOK_TIMEOUT_S_MAX = 30  # the longest that Kubernetes allows
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


def test_a_webhook_that_hangs_for_one_namespace_holds_up_no_job_of_another(
    make_agent: MakeAgent, cluster: KubernetesCluster, namespace: str
) -> None:
    """More jobs than all creates that may be under way wait for the webhook."""
    slow = cluster.create_namespace(f"{namespace}-slow")
    agent = make_agent(kubernetes={"namespace": "{{ project }}", "timeout_s": END_S})
    may_answer = threading.Event()
    hung = [replace(a_job(agent.folder), project=slow) for _ in range(CREATES_AT_ONCE + 1)]
    other = replace(a_job(agent.folder), project=namespace)
    with (
        denying_webhook(cluster, may_answer) as port,
        registered(cluster, slow, "jobs", port, timeout_s=WEBHOOK_TIMEOUT_S_MAX),
    ):
        may_answer.clear()
        agent.journal.take(hung)
        agent.until(lambda: any(f"in the namespace {slow}" in why for why in reasons(agent)), "no more may be created")
        assert creates_under_way() <= CREATES_PER_NAMESPACE
        agent.journal.take([other])
        agent.until(agent.ends, "a job of the other namespace ends")
        assert [(end.job, end.seen) for end in agent.ends()] == [(other.job, ObservedState.SUCCEEDED)]
        may_answer.set()
        agent.until(lambda: len(agent.ends()) == len(hung) + 1, "the webhook denies the jobs that waited for it")
    assert all(DENIAL in end.reason for end in agent.ends() if end.job != other.job)
    assert runs(agent.folder) == 1
    cluster.kubectl("delete", "namespace", slow, "--wait=false")


def creates_under_way() -> int:
    return sum(thread.name.startswith("create-") for thread in threading.enumerate())


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
