"""When a job may start in its namespace: once its objects were applied, or after a bounded wait."""

from __future__ import annotations

from switchyard.features.kubernetes.agent.namespaces.namespace_gate import NOT_READ, NOT_RENDERED, NamespaceGate
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec

VISION = ("vision", "development")


def lease(project: str = "vision", domain: str = "development") -> Lease:
    return Lease(
        job="J", attempt=1, fence=1, name="", owner="", project=project, domain=domain, spec=JobSpec(command=["true"])
    )


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def gate(time: Time | None = None) -> NamespaceGate:
    return NamespaceGate(60, clock=time or Time())


def test_a_server_without_templates_holds_nothing() -> None:
    free = gate()
    assert free.hold(lease()) == ""
    assert not free.note_version("")
    assert free.hold(lease()) == ""


def test_a_job_waits_until_its_namespace_is_ready() -> None:
    closed = gate()
    assert closed.note_version("v1")
    assert not closed.note_version("v1")
    assert closed.hold(lease()) == f"waits for its namespace: {NOT_READ}"
    assert not closed.set_reasons({VISION: "ResourceQuota/a is not applied: 403"})
    assert closed.hold(lease()) == "waits for its namespace: ResourceQuota/a is not applied: 403"
    assert closed.hold(lease("other")) == f"waits for its namespace: {NOT_RENDERED}"
    assert closed.waiting_scopes() == {VISION, ("other", "development")}
    assert closed.set_reasons({VISION: ""})  # somebody waited for it
    assert closed.hold(lease()) == ""
    assert not closed.set_reasons({VISION: ""})


def test_the_wait_is_bounded_for_the_namespace_and_not_for_each_job() -> None:
    time = Time()
    closed = gate(time)
    closed.note_version("v1")
    closed.set_reasons({VISION: "the cluster does not answer"})
    assert closed.hold(lease())
    time.now += 59
    assert closed.hold(lease())
    time.now += 1
    assert closed.hold(lease()) == ""
    assert closed.hold(lease()) == ""
    assert closed.hold(lease("other"))  # another namespace has its own time


def test_jobs_that_are_refused_wait_without_a_bound() -> None:
    time = Time()
    closed = gate(time)
    closed.note_version("v1")
    closed.set_reasons({VISION: ""}, {VISION: "the namespace is that of a in b-c"})
    time.now += 10_000
    assert closed.hold(lease()) == "cannot start in its namespace: the namespace is that of a in b-c"
    assert closed.set_reasons({VISION: ""})
    assert closed.hold(lease()) == ""


def test_jobs_go_on_when_the_server_has_no_templates_any_more() -> None:
    closed = gate()
    closed.note_version("v1")
    assert closed.hold(lease())
    assert closed.note_version("")
    assert closed.hold(lease()) == ""
