"""Records of submitted Jobs: what the agent still knows after a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import Status, marker_of
from switchyard.agent.backends.kubernetes.job_status import CANCELLED
from switchyard.agent.backends.kubernetes.submissions import SubmissionStore, SubmittedJob
from switchyard.model.lifecycle import ObservedState
from tests.agent.builders import a_lease


def a_range(first_fence: int = 7) -> SubmittedJob:
    return SubmittedJob(replace(a_lease(fence=first_fence), lo=3, hi=5), namespace="physics")


def test_a_record_is_found_by_marker_and_native_id_also_after_a_restart(tmp_path: Path) -> None:
    lease = a_lease()
    SubmissionStore(tmp_path).add(SubmittedJob(lease, namespace="physics"))
    for store in (SubmissionStore(tmp_path), SubmissionStore(tmp_path)):
        found = store.of_marker(marker_of(lease))
        assert found is not None
        job, fence = found
        assert (job.lease, job.namespace, fence) == (lease, "physics", lease.fence)
        assert job.name == marker_of(lease).lower()
        assert store.of_native(job.native_id(fence)) == (job, fence)


def test_tasks_of_a_range_have_a_marker_and_a_native_id_each(tmp_path: Path) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    for number, lease in enumerate(job.leases()):
        assert store.of_marker(marker_of(lease)) == (job, 7 + number)
        assert store.of_native(f"{job.name}/{number}") == (job, 7 + number)
    assert store.of_native(f"{job.name}/3") is None
    assert store.of_native(f"{job.name}/x") is None
    assert store.of_native("yard-other") is None


@pytest.mark.parametrize("job", [a_range(), SubmittedJob(a_lease(), namespace="physics")])
def test_a_new_record_is_on_disk_before_the_job_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: SubmittedJob
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink())) or real(number)
    )
    SubmissionStore(tmp_path).add(job)
    assert synced == [f"{tmp_path}/{job.name}.json.new", str(tmp_path)]


def test_the_first_end_of_a_task_stays_and_grows_older(tmp_path: Path) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    store.end(job.name, {8: Status(seen=ObservedState.FAILED, exit_code=3, ago_us=5, began_ago_us=9)})
    store.end(job.name, {8: Status(seen=ObservedState.SUCCEEDED, exit_code=0)})
    found = SubmissionStore(tmp_path).get(job.name)
    assert found is not None
    status = found.ends[8].status()
    assert (status.seen, status.exit_code) == (ObservedState.FAILED, 3)
    assert status.began_ago_us is not None
    assert status.began_ago_us - status.ago_us == 4
    assert not found.is_over


def test_a_job_is_unwanted_when_all_that_has_not_ended_is_to_be_stopped(tmp_path: Path) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    assert store.stop(job.name, {7: CANCELLED})
    assert not store.stop(job.name, {7: CANCELLED})
    store.end(job.name, {8: Status(seen=ObservedState.SUCCEEDED, exit_code=0)})
    assert not store.stop(job.name, {8: CANCELLED}), "it has ended"
    found = store.get(job.name)
    assert found is not None
    assert not found.is_unwanted
    store.stop(job.name, {9: CANCELLED})
    again = SubmissionStore(tmp_path).get(job.name)
    assert again is not None
    assert again.is_unwanted
    assert again.stops[9].order == CANCELLED


def test_a_damaged_record_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "yard-x.json").write_bytes(b'{"lease": ')
    store, lease = SubmissionStore(tmp_path), a_lease()
    store.add(SubmittedJob(lease, namespace="physics"))
    assert len(SubmissionStore(tmp_path).all()) == 1


def test_removed_is_gone(tmp_path: Path) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    store.remove(job.name)
    assert store.of_marker(marker_of(job.lease)) is None
    assert SubmissionStore(tmp_path).all() == []
