"""Records of submitted Jobs: what the agent still knows after a restart."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.agent.backends import Status, marker_of
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED, DELETED
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease

DONE = Status(seen=ObservedState.SUCCEEDED, exit_code=0)


def synced_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced from now on."""
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink())) or real(number)
    )
    return synced


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


def test_pods_that_may_start_are_on_disk_before_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    synced = synced_files(monkeypatch)
    assert store.note_starts(job.name, {0: "a", 1: "b"})
    assert store.note_starts(job.name, {1: "c"})
    assert synced == [f"{tmp_path}/{job.name}.json"] * 2
    for found in (store.get(job.name), SubmissionStore(tmp_path).get(job.name)):
        assert found is not None
        assert found.starts == {0: "a", 1: "c"}
    assert not store.note_starts("yard-other", {0: "a"})


@pytest.mark.parametrize("job", [a_range(), SubmittedJob(a_lease(), namespace="physics")])
def test_a_new_record_is_on_disk_before_the_job_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: SubmittedJob
) -> None:
    synced = synced_files(monkeypatch)
    SubmissionStore(tmp_path).add(job)
    assert synced == [f"{tmp_path}/{job.name}.json.new", str(tmp_path)]


def test_what_the_cluster_cannot_tell_again_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    synced, file = synced_files(monkeypatch), f"{tmp_path}/{job.name}.json"
    store.note_created(job.name, "u")
    assert synced == [file], "without the uid, the agent does not end the Job"
    store.stop(job.name, {7: CANCELLED})
    store.sync(job.name)
    assert synced == [file], "the journal has orders to cancel"
    store.stop(job.name, {8: DELETED})
    assert synced == [file]
    store.sync(job.name)
    assert synced == [file] * 2, "before the Job is deleted"
    store.end(job.name, {9: DONE})
    store.sync(job.name)
    store.sync(job.name)
    assert synced == [file] * 3
    store.forget(job.name, 9)
    store.note_removed(job.name)
    store.sync(job.name)
    assert synced == [file] * 3, "it is settled again under its uid"


def test_every_change_is_found_after_a_restart(tmp_path: Path) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    store.refute(job.name, [7, 8])
    store.note_created(job.name, "u", refuted=[8])
    store.stop(job.name, {8: CANCELLED})
    store.end(job.name, {7: DONE, 8: DONE})
    store.forget(job.name, 7)
    store.note_seen(job.name)
    store.note_removed(job.name)
    store.refute(job.name, [8], is_refuted=False)
    found = SubmissionStore(tmp_path).get(job.name)
    assert found is not None
    assert found == store.get(job.name)
    assert (found.uid, found.refuted, found.forgotten) == ("u", (), (7,))
    assert (found.is_seen, found.is_removed) == (True, True)
    assert (list(found.stops), sorted(found.ends)) == ([8], [7, 8])


@pytest.mark.parametrize("cut", [1, 20])
def test_a_change_that_a_crash_cut_is_skipped_and_the_next_one_counts(tmp_path: Path, cut: int) -> None:
    store, job = SubmissionStore(tmp_path), a_range()
    store.add(job)
    store.end(job.name, {7: DONE})
    store.end(job.name, {8: DONE})
    file = tmp_path / f"{job.name}.json"
    file.write_bytes(file.read_bytes()[:-cut])
    again = SubmissionStore(tmp_path)
    again.end(job.name, {9: DONE})
    found = SubmissionStore(tmp_path).get(job.name)
    assert found is not None
    assert sorted(found.ends) == [7, 9]


def test_a_record_of_an_agent_of_an_older_version_is_read(tmp_path: Path) -> None:
    job = replace(a_range(), uid="u", forgotten=(7,))
    (tmp_path / f"{job.name}.json").write_bytes(msgspec.json.encode(job))
    store = SubmissionStore(tmp_path)
    store.forget(job.name, 8)
    found = SubmissionStore(tmp_path).get(job.name)
    assert found == replace(job, forgotten=(7, 8))


def test_the_end_of_a_task_costs_the_same_in_a_job_of_any_size(tmp_path: Path) -> None:
    """As it is for ten thousand tasks that end one by one: what is written grows with the tasks, not their square."""
    store = SubmissionStore(tmp_path)
    job = SubmittedJob(replace(a_lease(fence=1), lo=0, hi=999), namespace="physics")
    store.add(job)
    file = tmp_path / f"{job.name}.json"
    before, inode = file.stat().st_size, file.stat().st_ino
    sizes = []
    for fence in job.fences():
        store.stop(job.name, {fence: DELETED})
        store.end(job.name, {fence: DONE})
        store.forget(job.name, fence)
        sizes.append(file.stat().st_size - before)
        before = file.stat().st_size
    assert file.stat().st_ino == inode, "it was never written as a whole"
    assert max(sizes) < 2 * min(sizes)
    found = SubmissionStore(tmp_path).get(job.name)
    assert found is not None
    assert (found.is_over, found.is_forgotten) == (True, True)


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
