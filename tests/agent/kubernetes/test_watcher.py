"""What is kept of Jobs and pods: the last state of what was deleted, and doubts that only a direct read ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.namespaces.objects import (
    EventObject,
    EventTarget,
    JobObject,
    JobObjectStatus,
    ObjectCondition,
    ObjectMeta,
    PodObject,
)
from tests.agent.kubernetes.api_peer import ApiPeer, says

NAME = "yard-01abc-1-1"


@pytest.fixture
def watcher(tmp_path: Path) -> KubernetesWatcher:
    """One that is not started: the tests tell it what watches would."""
    peer = ApiPeer(tmp_path, says(200))
    peer.close()
    return KubernetesWatcher(peer.api(), selector="a=b")


def a_job(uid: str = "1", name: str = NAME) -> JobObject:
    return JobObject(metadata=ObjectMeta(name=name, uid=uid))


def an_ended_job() -> JobObject:
    status = JobObjectStatus(conditions=[ObjectCondition("Complete", status="True")])
    return JobObject(metadata=ObjectMeta(name=NAME, uid="1"), status=status)


def a_pod(uid: str = "p", index: int | None = None, **meta: object) -> PodObject:
    labels = {"batch.kubernetes.io/job-name": NAME}
    name = f"{NAME}-x5k2p" if index is None else f"{NAME}-{index}-x5k2p"
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    return PodObject(metadata=ObjectMeta(name=name, uid=uid, labels=labels, **meta))  # type: ignore[arg-type]


def test_what_was_deleted_is_kept_as_it_was_last(watcher: KubernetesWatcher) -> None:
    watcher.put_job(a_job(), is_deleted=False)
    watcher.put_pod(a_pod(), is_deleted=False)
    watcher.put_pod(a_pod(), is_deleted=True)
    watcher.put_job(a_job(), is_deleted=True)
    view = watcher.view(NAME)
    assert (view.is_deleted, view.pods, view.gone_pods) == (True, (), (a_pod(),))
    assert not watcher.is_sure(NAME), "only a direct read makes it sure"
    watcher.note_absent(NAME)
    assert watcher.is_sure(NAME)
    assert watcher.take_changed() == {NAME: None}
    assert watcher.take_changed() == {}


def test_a_job_that_is_not_in_a_new_list_is_doubtful(watcher: KubernetesWatcher) -> None:
    watcher.note_job(a_job())
    watcher.put_jobs([])
    assert not watcher.view(NAME).is_deleted, "it may have been created after the list was asked for"
    assert not watcher.is_sure(NAME)
    watcher.note_job(a_job())
    assert watcher.is_sure(NAME)


def test_a_job_that_only_direct_reads_show_is_there_until_one_does_not(watcher: KubernetesWatcher) -> None:
    """Somebody took its labels off: for the watch it was deleted."""
    watcher.put_job(a_job(), is_deleted=True)
    watcher.note_job(an_ended_job())
    assert (watcher.view(NAME).is_deleted, watcher.is_unwatched(NAME), watcher.is_sure(NAME)) == (False, True, False)
    watcher.note_job(a_job())
    assert watcher.view(NAME).job == a_job(), "each read counts, since no watch tells more"
    watcher.note_absent(NAME)
    assert (watcher.view(NAME).is_deleted, watcher.is_unwatched(NAME), watcher.is_sure(NAME)) == (True, False, True)
    watcher.put_job(a_job("2"), is_deleted=False)
    assert not watcher.is_unwatched(NAME)


def test_pods_that_are_not_in_a_new_list_are_gone(watcher: KubernetesWatcher) -> None:
    watcher.put_pods([a_pod("p"), a_pod("q")])
    watcher.put_pods([a_pod("q")])
    assert [pod.metadata.uid for pod in watcher.view(NAME).pods] == ["q"]
    assert [pod.metadata.uid for pod in watcher.view(NAME).gone_pods] == ["p"]


def test_pods_of_a_direct_read_are_added_and_never_come_back_from_the_dead(watcher: KubernetesWatcher) -> None:
    watcher.put_pod(a_pod("p"), is_deleted=True)
    watcher.note_pods(an_ended_job(), [a_pod("p"), a_pod("q")])
    assert [pod.metadata.uid for pod in watcher.view(NAME).pods] == ["q"]
    assert not watcher.is_podless(NAME)
    watcher.note_pods(an_ended_job(), [])
    assert watcher.is_podless(NAME)


def test_a_pod_that_only_direct_reads_show_is_there_until_one_does_not(watcher: KubernetesWatcher) -> None:
    """It was deleted between the read and the list of the watch, which never tells of it."""
    watcher.put_pods([])
    watcher.note_pods(a_job(), [a_pod("p"), a_pod("q")])
    assert watcher.is_unwatched(NAME)
    watcher.put_pod(a_pod("q"), is_deleted=False)
    watcher.note_pods(a_job(), [])
    assert [pod.metadata.uid for pod in watcher.view(NAME).pods] == ["q"], "the watch shows it"
    assert [pod.metadata.uid for pod in watcher.view(NAME).gone_pods] == ["p"]
    assert not watcher.is_unwatched(NAME)


def test_one_index_is_podless_while_another_has_its_pod(watcher: KubernetesWatcher) -> None:
    job = JobObject(metadata=ObjectMeta(name=NAME, uid="1"), status=JobObjectStatus(failed_indexes="0-1"))
    assert not watcher.is_podless(NAME, 0)
    watcher.note_pods(job, [a_pod("q", index=1)])
    assert [watcher.is_podless(NAME, index) for index in (0, 1, 2)] == [True, False, False], "2 has not ended"
    assert not watcher.is_podless(NAME)


def test_a_read_from_before_the_end_says_nothing_about_the_pod(watcher: KubernetesWatcher) -> None:
    watcher.note_pods(a_job(), [])
    watcher.put_job(an_ended_job(), is_deleted=False)
    assert not watcher.is_podless(NAME)


def test_a_late_end_of_an_older_job_of_the_name_changes_nothing(watcher: KubernetesWatcher) -> None:
    watcher.put_job(a_job("2"), is_deleted=False)
    watcher.put_job(a_job("1"), is_deleted=True)
    assert not watcher.view(NAME).is_deleted


def test_a_warning_may_come_before_its_pod(watcher: KubernetesWatcher) -> None:
    event = EventObject(involved_object=EventTarget(kind="Pod", name=f"{NAME}-x5k2p", uid="p"), reason="FailedMount")
    assert not watcher.put_event(event), "nobody asks about it yet"
    assert watcher.view(NAME).events == ()
    assert not watcher.take_changed()
    watcher.put_pod(a_pod(), is_deleted=False)
    assert watcher.view(NAME).events == (event,)
    assert watcher.put_event(event)
    assert NAME in watcher.take_changed()


def test_a_change_of_one_task_is_told_with_its_index(watcher: KubernetesWatcher) -> None:
    def an_array(completed: str, **status: object) -> JobObject:
        return JobObject(
            metadata=ObjectMeta(name=NAME, uid="1", resource_version=completed),
            status=JobObjectStatus(completed_indexes=completed, **status),  # type: ignore[arg-type]
        )

    watcher.put_job(an_array("0-2"), is_deleted=False)
    assert watcher.take_changed() == {NAME: None}
    watcher.put_job(an_array("0-3,7", active=3, succeeded=5), is_deleted=False)
    assert watcher.take_changed() == {NAME: {3, 7}}
    watcher.put_pod(a_pod("p", index=4), is_deleted=False)
    watcher.put_event(EventObject(involved_object=EventTarget(name=f"{NAME}-5-abcde", uid="e"), reason="BackOff"))
    assert watcher.take_changed() == {NAME: {4, 5}}
    watcher.put_pod(a_pod("p", index=4), is_deleted=True)
    watcher.put_job(an_array("0-3,7", conditions=[ObjectCondition("FailureTarget", status="True")]), is_deleted=False)
    assert watcher.take_changed() == {NAME: None}, "it concerns all"
    watcher.put_event(EventObject(involved_object=EventTarget(name=NAME, uid="1"), reason="FailedCreate"))
    assert watcher.take_changed() == {NAME: None}


def test_a_view_of_one_index_has_only_its_pods_and_warnings(watcher: KubernetesWatcher) -> None:
    watcher.put_job(a_job("j"), is_deleted=False)
    for index in range(3):
        watcher.put_pod(a_pod(f"live-{index}", index=index), is_deleted=False)
        watcher.put_pod(a_pod(f"gone-{index}", index=index), is_deleted=True)
    uids = ("j", "live-0", "live-1", "gone-1", "gone-2")
    for uid in uids:
        watcher.put_event(EventObject(involved_object=EventTarget(name=NAME, uid=uid), reason="BackOff"))
    view = watcher.view(NAME, 1)
    assert [pod.metadata.uid for pod in (*view.pods, *view.gone_pods)] == ["live-1", "gone-1"]
    assert [event.involved_object.uid for event in view.events] == ["j", "live-1", "gone-1"]
    assert len(watcher.view(NAME).pods) == 3
    assert sorted(event.involved_object.uid for event in watcher.view(NAME).events) == sorted(uids)


@pytest.mark.parametrize("name", ["web-7d9f-abcde", "yard-of-others-abcde"])
def test_warnings_about_other_pods_change_nothing(watcher: KubernetesWatcher, name: str) -> None:
    watcher.put_pod(a_pod(), is_deleted=False)
    watcher.take_changed()
    target = EventTarget(kind="Pod", name=name, uid="other")
    assert not watcher.put_event(EventObject(involved_object=target, message='"yard-x"', reason="BackOff"))
    assert not watcher.take_changed()


def test_the_first_order_to_end_a_pod_counts(watcher: KubernetesWatcher) -> None:
    """The kubelet deletes a pod once more when its containers have ended, which replaces the time of the first."""
    from datetime import UTC, datetime

    first, last = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    watcher.put_pod(a_pod(deletion_timestamp=first, deletion_grace_period_seconds=1), is_deleted=False)
    watcher.put_pod(a_pod(deletion_timestamp=last, deletion_grace_period_seconds=0), is_deleted=False)
    meta = watcher.view(NAME).pods[0].metadata
    assert (meta.deletion_timestamp, meta.deletion_grace_period_seconds) == (first, 1)


def test_dropped_and_pruned_jobs_are_forgotten(watcher: KubernetesWatcher) -> None:
    watcher.put_job(a_job(), is_deleted=False)
    watcher.drop(NAME)
    assert watcher.view(NAME).job is None
    watcher.put_job(a_job(), is_deleted=True)
    watcher.prune(lambda _: True)
    assert watcher.view(NAME).job is not None
    watcher.prune(lambda _: False)
    assert watcher.view(NAME).job is None
