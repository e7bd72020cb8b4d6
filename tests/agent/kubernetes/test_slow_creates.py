"""Creates that the API does not answer: the caller goes on, and no Job is created or looked up beside its create."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.errors import PolicyRefused, Unavailable
from switchyard.features.kubernetes.agent.api import background_calls
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.jobs import job_submitter
from switchyard.model.cluster.poll import Lease
from tests.agent.builders import a_lease
from tests.agent.kubernetes.job_api import JobApi
from tests.processes import PATIENCE_S, until

WAIT_S = 0.3
UNDER_WAY = "is being created; the API has not answered yet"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobApi]:
    monkeypatch.setattr(background_calls, "CALL_WAIT_S", WAIT_S)
    with closing(JobApi(tmp_path)) as api:
        api.timeout_s = PATIENCE_S
        yield api


@pytest.fixture
def backend(api: JobApi) -> Iterator[KubernetesBackend]:
    with closing(api.backend()) as backend:
        yield backend


def hang(api: JobApi, backend: KubernetesBackend) -> Lease:
    """A lease whose create is under way."""
    lease = a_lease()
    api.hung.add(name_of(lease))
    begun_s = time.monotonic()
    with pytest.raises(Unavailable, match=UNDER_WAY):
        backend.submit(lease)
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    until(lambda: api.creates, PATIENCE_S, "the API has the request")
    return lease


def name_of(lease: Lease) -> str:
    return marker_of(lease).lower()


def submit(backend: KubernetesBackend, lease: Lease) -> str:
    """As the agent submits: again after each transient error."""
    submitted: list[str] = []

    def is_submitted() -> bool:
        with suppress(Unavailable):
            submitted.append(backend.submit(lease))
        return bool(submitted)

    until(is_submitted, PATIENCE_S, "it is submitted")
    return submitted[0]


def test_a_create_that_hangs_holds_up_no_other_and_is_sent_once(api: JobApi, backend: KubernetesBackend) -> None:
    lease, other = hang(api, backend), a_lease()
    assert submit(backend, other) == name_of(other)
    with pytest.raises(Unavailable, match=UNDER_WAY):
        backend.submit(lease)
    assert [held.fence for held in backend.held()] == [lease.fence, other.fence]
    api.go.set()
    assert submit(backend, lease) == name_of(lease)
    assert sorted(create["metadata"]["name"] for create in api.creates) == sorted([name_of(lease), name_of(other)])


def test_a_job_is_not_looked_up_while_its_create_is_under_way(api: JobApi, backend: KubernetesBackend) -> None:
    """A look-up would find nothing, and the Job would run after it was reported as cancelled."""
    lease = hang(api, backend)
    with pytest.raises(Unavailable, match=UNDER_WAY):
        backend.find(marker_of(lease))
    assert api.reads == []
    api.go.set()
    until(lambda: api.jobs, PATIENCE_S, "it is created")
    found: list[str | None] = []

    def is_found() -> bool:
        with suppress(Unavailable):
            found.append(backend.find(marker_of(lease)))
        return bool(found)

    until(is_found, PATIENCE_S, "it is found")
    assert found == [name_of(lease)]


def test_a_create_that_is_refused_late_fails_the_job(api: JobApi, backend: KubernetesBackend) -> None:
    api.faults = ["denied by a webhook"]
    lease = hang(api, backend)
    api.go.set()
    with pytest.raises(PolicyRefused, match="denied by a webhook"):
        submit(backend, lease)
    assert backend.held() == []
    assert len(api.creates) == 1


def test_a_cancelled_job_whose_create_is_refused_late_was_not_created(api: JobApi, backend: KubernetesBackend) -> None:
    api.faults = ["denied by a webhook"]
    lease = hang(api, backend)
    api.go.set()
    found: list[str | None] = []

    def is_known() -> bool:
        with suppress(Unavailable):
            found.append(backend.find(marker_of(lease)))
        return bool(found)

    until(is_known, PATIENCE_S, "it is known that it was not created")
    assert found == [None]
    assert backend.held() == []


def test_a_create_without_an_answer_is_read_back(api: JobApi) -> None:
    api.timeout_s = 1.0
    with closing(api.backend()) as backend:
        lease = hang(api, backend)
        errors: list[str] = []

        def is_given_up() -> bool:
            with pytest.raises(Unavailable) as raised:
                backend.submit(lease)
            errors.append(raised.value.detail)
            return "no answer in time" in errors[-1]

        until(is_given_up, PATIENCE_S, "the create is given up")
        api.land(api.creates[0])
        assert submit(backend, lease) == name_of(lease)
        assert len(api.creates) == 1


def test_a_create_that_hangs_is_a_doubt_after_a_restart(api: JobApi) -> None:
    with closing(api.backend()) as backend:
        lease = hang(api, backend)
    api.land(api.creates[0])
    with closing(api.backend()) as backend:
        assert backend.submit(lease) == name_of(lease)
    assert len(api.creates) == 1


def hang_many(api: JobApi, backend: KubernetesBackend, count: int, *, project: str = "physics") -> list[Lease]:
    """Leases of one namespace whose creates are under way."""
    leases = [a_lease_of(project) for _ in range(count)]
    api.hung.update(map(name_of, leases))
    for lease in leases:
        with pytest.raises(Unavailable, match=UNDER_WAY):
            backend.submit(lease)
    return leases


def a_lease_of(project: str) -> Lease:
    return replace(a_lease(), project=project)


@pytest.mark.parametrize("namespaces", [1, job_submitter.CREATES_AT_ONCE // job_submitter.CREATES_PER_NAMESPACE])
def test_creates_under_way_have_a_bound(api: JobApi, namespaces: int) -> None:
    """A bound for each namespace, and one for all."""
    api.namespace = "{{ project }}"
    with closing(api.backend()) as backend:
        leases: list[Lease] = []
        for number in range(namespaces):
            leases += hang_many(api, backend, job_submitter.CREATES_PER_NAMESPACE, project=f"project-{number}")
        late = a_lease_of("project-0" if namespaces == 1 else "another")
        with pytest.raises(Unavailable, match="Other Jobs are being created"):
            backend.submit(late)
        assert late.job not in [held.job for held in backend.held()], "it needs no record"
        api.go.set()
        for lease in [*leases, late]:
            submit(backend, lease)
        assert len(api.creates) == len(leases) + 1


def test_creates_that_hang_in_one_namespace_leave_room_for_others(api: JobApi) -> None:
    api.namespace = "{{ project }}"
    with closing(api.backend()) as backend:
        hung = hang_many(api, backend, job_submitter.CREATES_PER_NAMESPACE)
        more = [a_lease_of("physics") for _ in range(job_submitter.CREATES_AT_ONCE)]
        for lease in more:
            with pytest.raises(Unavailable, match="8 in the namespace physics"):
                backend.submit(lease)
        other = a_lease_of("biology")
        assert submit(backend, other) == name_of(other)
        assert len(api.creates) == len(hung) + 1
