"""Follows all Jobs and pods of this agent, and warnings about them, by one watch each. Nothing is polled.

Everything is kept by the name of the Job, and pods by their index there: the status of one task of an array must not
cost a look at all others. What was deleted is kept, as it was last, until the Job is dropped: the last
state of a pod has its exit code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.reflector import Reflector
from switchyard.features.kubernetes.agent.jobs.job_status import JobView
from switchyard.features.kubernetes.agent.namespaces.objects import EventObject, JobObject, PodObject, indexes_of
from switchyard.features.kubernetes.agent.pods.pod_facts import is_held

EVENT_OBJECTS_MAX = 5000  # Jobs and pods of which warnings are kept, the newest of each reason
OWN_NAMES = "yard-"  # how names of Jobs and pods begin
QUOTED_PREFIX = f'"{OWN_NAMES}'.encode()

T = TypeVar("T")
PodsByIndex = dict[int | None, dict[str, PodObject]]  # then by uid


class _Entry:
    def __init__(self) -> None:
        self.job: JobObject | None = None
        self.is_deleted = False
        self.is_doubtful = False  # the Job was not in a list: a direct read decides
        self.is_confirmed = False  # a direct read showed that neither the Job nor a pod of it is there
        self.is_unwatched = False  # a direct read shows the Job, and the watch does not: somebody took its labels off
        self.read_job: JobObject | None = None  # as a direct read showed it, before its pods were read
        self.read_indexes: frozenset[int | None] = frozenset()  # of the pods which that read showed
        self.pods: PodsByIndex = {}
        self.deleted_pods: PodsByIndex = {}
        self.unplaced_uids: set[str] = set()  # of pods that had no node when they were deleted
        self.read_uids: set[str] = set()  # of live pods that direct reads showed and the watch did not yet

    def live(self, index: int | None) -> list[PodObject]:
        """The pods of one index; None: all."""
        return _pods_of(self.pods, index)

    def deleted(self, index: int | None) -> list[PodObject]:
        return _pods_of(self.deleted_pods, index)

    def uids(self, index: int | None = None) -> list[str]:
        """Of the Job and its pods, or those of one index."""
        own = [self.job.metadata.uid] if self.job is not None else []
        return [*own, *(pod.metadata.uid for pod in (*self.live(index), *self.deleted(index)))]

    def take(self, pod: PodObject) -> PodObject | None:
        """Remove a live pod and return it as it was last."""
        self.read_uids.discard(pod.metadata.uid)
        same = self.pods.get(pod.index, {})
        before = same.pop(pod.metadata.uid, None)
        if not same:
            self.pods.pop(pod.index, None)
        return before

    def bury(self, pod: PodObject) -> None:
        """Keep a pod that is gone."""
        self.deleted_pods.setdefault(pod.index, {})[pod.metadata.uid] = pod


class KubernetesWatcher:
    """Used by several threads."""

    def __init__(
        self, api: KubernetesApi, *, selector: str, namespace: str = "", on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`namespace`: watch only this one, where the agent may not see the whole cluster."""
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._changed: dict[str, set[int] | None] = {}  # names of Jobs → indexes that changed; None: all
        # Warnings by the uid of their object, then by reason: they may come before the object.
        self._events_by_uid: dict[str, dict[str, EventObject]] = {}
        self.on_held: Callable[[str], None] = lambda _: None  # called with a Job that has a pod with the agent's gate
        part = f"/namespaces/{namespace}" if namespace else ""
        labels = {"labelSelector": selector}
        self._jobs = Reflector(
            api, "jobs", f"/apis/batch/v1{part}/jobs", _Jobs(self), query=labels, on_change=on_change
        )
        self._pods = Reflector(api, "pods", f"/api/v1{part}/pods", _Pods(self), query=labels, on_change=on_change)
        self._events = Reflector(
            api,
            "events",
            f"/api/v1{part}/events",
            _Events(self),
            query={"fieldSelector": "type=Warning"},
            on_change=on_change,
        )

    def start(self) -> None:
        for reflector in (self._jobs, self._pods, self._events):
            reflector.start()

    def stop(self) -> None:
        for reflector in (self._jobs, self._pods, self._events):
            reflector.stop()

    def wait_listed(self, timeout_s: float) -> bool:
        """Whether the first lists of Jobs and pods are complete within this time."""
        until = time.monotonic() + timeout_s
        return all(reflector.listed.wait(max(0.0, until - time.monotonic())) for reflector in (self._jobs, self._pods))

    @property
    def trouble(self) -> str:
        """Why Jobs and pods may be out of date; empty: they are not. Without events, jobs are followed all the same."""
        return self._jobs.trouble or self._pods.trouble

    def view(self, name: str, index: int | None = None) -> JobView:
        """What is known of a Job, or of one index of it."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return JobView(job=None, index=index)
            return JobView(
                job=entry.job,
                index=index,
                is_deleted=entry.is_deleted,
                pods=tuple(entry.live(index)),
                gone_pods=tuple(entry.deleted(index)),
                events=tuple(event for uid in entry.uids(index) for event in self._events_by_uid.get(uid, {}).values()),
            )

    def is_sure(self, name: str) -> bool:
        """Whether the Job is known, and its absence, if it is absent, was confirmed by a direct read."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.is_doubtful or entry.is_unwatched:
                return False
            return entry.is_confirmed or not entry.is_deleted

    def is_unwatched(self, name: str) -> bool:
        """Whether only direct reads show this Job or a pod of it: only another read tells that it was deleted."""
        with self._lock:
            entry = self._entries.get(name)
            return entry is not None and (entry.is_unwatched or bool(entry.read_uids))

    def take_changed(self) -> dict[str, set[int] | None]:
        """The names of Jobs that changed since the last call, each with the indexes that did; None: all of it."""
        with self._lock:
            changed, self._changed = self._changed, {}
            return changed

    def _mark(self, name: str, indexes: Iterable[int] | None = None) -> None:
        """Note a change, of all indexes if none are named. Called with the lock held."""
        known = self._changed.setdefault(name, set())
        if indexes is None:
            self._changed[name] = None
        elif known is not None:
            known.update(indexes)

    def note_job(self, job: JobObject) -> None:
        """Add what a create or a read of one Job returned, unless a watch knows more already."""
        with self._lock:
            entry = self._entries.setdefault(job.metadata.name, _Entry())
            is_known = entry.job is not None and entry.job.metadata.uid == job.metadata.uid
            is_hidden = is_known and entry.is_deleted and not entry.is_confirmed
            if entry.is_doubtful or not is_known or is_hidden or entry.is_unwatched:
                entry.job, entry.is_deleted, entry.is_doubtful, entry.is_confirmed = job, False, False, False
                entry.is_unwatched = is_hidden or (is_known and entry.is_unwatched)
                self._mark(job.metadata.name)

    def note_pods(self, job: JobObject, pods: list[PodObject]) -> None:
        """Add the pods that a direct read showed, unless a watch knows them already. `job`: as it was before that."""
        name = job.metadata.name
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            present = {pod.metadata.uid for pod in pods}
            for pod in entry.live(None):
                if pod.metadata.uid in entry.read_uids - present:
                    entry.take(pod)
                    entry.bury(pod)
            for pod in pods:
                uid, same = pod.metadata.uid, entry.pods.get(pod.index, {})
                is_new = uid not in same and uid not in entry.deleted_pods.get(pod.index, {})
                if is_new or uid in entry.read_uids:
                    entry.pods.setdefault(pod.index, {})[uid] = pod
                    entry.read_uids.add(uid)
            entry.read_job, entry.read_indexes = job, frozenset(pod.index for pod in pods)
            self._mark(name)
        if any(map(is_held, pods)):
            self.on_held(name)

    def is_podless(self, name: str, index: int | None = None) -> bool:
        """Whether a direct read showed that a Job, or one index of it, had ended and has no pod.

        A read from before the end says nothing: the pod may have been created after it.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.read_job is None or not entry.read_job.has_ended(index):
                return False
            return not entry.read_indexes if index is None else index not in entry.read_indexes

    def note_absent(self, name: str) -> None:
        """A direct read showed that neither the Job nor a pod of it is there."""
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            entry.is_deleted, entry.is_doubtful, entry.is_confirmed, entry.is_unwatched = True, False, True, False
            for pod in entry.live(None):
                entry.bury(pod)
            entry.pods.clear()
            entry.read_uids.clear()
            self._mark(name)

    def drop(self, name: str) -> None:
        with self._lock:
            entry = self._entries.pop(name, None)
            for uid in entry.uids() if entry is not None else ():
                self._events_by_uid.pop(uid, None)

    def prune(self, is_kept: Callable[[str], bool]) -> None:
        """Drop Jobs that are deleted and that nobody asks about: their last events may come late."""
        with self._lock:
            gone = [name for name, entry in self._entries.items() if entry.is_deleted or entry.job is None]
        for name in gone:
            if not is_kept(name):
                self.drop(name)

    def put_job(self, job: JobObject, *, is_deleted: bool) -> None:
        with self._lock:
            entry = self._entries.setdefault(job.metadata.name, _Entry())
            if is_deleted and entry.job is not None and entry.job.metadata.uid != job.metadata.uid:
                return  # the deleted Job is an older one of this name
            is_same = not entry.is_doubtful and entry.is_deleted == is_deleted
            self._mark(job.metadata.name, _changed_indexes(entry.job, job) if is_same else None)
            entry.job, entry.is_deleted, entry.is_doubtful, entry.is_unwatched = job, is_deleted, False, False

    def put_jobs(self, jobs: list[JobObject]) -> None:
        """The whole list. Jobs that are not in it were deleted, or created after it was asked for."""
        present = {job.metadata.name for job in jobs}
        with self._lock:
            for name, entry in self._entries.items():
                if name not in present and entry.job is not None and not entry.is_deleted:
                    entry.is_doubtful = True
                    self._mark(name)
        for job in jobs:
            self.put_job(job, is_deleted=False)

    def put_pod(self, pod: PodObject, *, is_deleted: bool) -> None:
        with self._lock:
            entry = self._entries.setdefault(pod.job_name, _Entry())
            pod = _with_first_deletion(pod, entry.take(pod))
            if is_deleted:
                entry.bury(pod)
                if not pod.spec.node_name:
                    entry.unplaced_uids.add(pod.metadata.uid)
            else:
                entry.pods.setdefault(pod.index, {})[pod.metadata.uid] = pod
            self._mark(pod.job_name, None if pod.index is None else (pod.index,))
            has_held = any(map(is_held, entry.live(pod.index)))
        if has_held:
            self.on_held(pod.job_name)

    def put_patched(self, pod: PodObject) -> None:
        """Add a pod as a patch returned it after its gate was lifted, unless the watch knows more already."""
        with self._lock:
            entry = self._entries.get(pod.job_name, _Entry())
            same = entry.pods.get(pod.index, {})
            if (known := same.get(pod.metadata.uid)) is not None and is_held(known):
                same[pod.metadata.uid] = pod
                self._mark(pod.job_name, None if pod.index is None else (pod.index,))

    def unplaced_uids(self, name: str) -> set[str]:
        """The uids of pods of a Job that had no node when the watch told of their deletion."""
        with self._lock:
            entry = self._entries.get(name)
            return set(entry.unplaced_uids) if entry is not None else set()

    def put_pods(self, pods: list[PodObject]) -> None:
        present = {pod.metadata.uid for pod in pods}
        with self._lock:
            for name, entry in self._entries.items():
                for pod in entry.live(None):
                    if pod.metadata.uid not in present:
                        entry.take(pod)
                        entry.bury(pod)
                        self._mark(name, None if pod.index is None else (pod.index,))
        for pod in pods:
            self.put_pod(pod, is_deleted=False)

    def put_event(self, event: EventObject) -> bool:
        """Keep a warning. Returns whether it is about a Job or a pod that is known by now."""
        target = event.involved_object
        if not target.name.startswith(OWN_NAMES):
            return False
        with self._lock:
            events = self._events_by_uid.pop(target.uid, {})
            self._events_by_uid[target.uid] = {**events, event.reason: event}
            if len(self._events_by_uid) > EVENT_OBJECTS_MAX:
                del self._events_by_uid[next(iter(self._events_by_uid))]
            # A pod is called by its Job, an index perhaps, and five characters.
            name, index = [*target.name.rsplit("-", 2), ""][:2]
            if name in self._entries and index.isdecimal():
                self._mark(name, (int(index),))
                return True
            names = {target.name, target.name.rsplit("-", 1)[0]} & self._entries.keys()
            for name in names:
                self._mark(name)
            return bool(names)


class _Jobs:
    """Receives Jobs for a watcher."""

    def __init__(self, watcher: KubernetesWatcher) -> None:
        self._watcher = watcher

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        self._watcher.put_jobs(_decode_all(objects, JobObject))

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        for job in _decode_all([raw], JobObject):
            self._watcher.put_job(job, is_deleted=kind == "DELETED")
        return True


class _Pods:
    """Receives pods for a watcher."""

    def __init__(self, watcher: KubernetesWatcher) -> None:
        self._watcher = watcher

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        self._watcher.put_pods(_decode_all(objects, PodObject))

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        for pod in _decode_all([raw], PodObject):
            self._watcher.put_pod(pod, is_deleted=kind == "DELETED")
        return True


class _Events:
    """Receives warnings for a watcher. Those about other objects than ours are not even decoded."""

    def __init__(self, watcher: KubernetesWatcher) -> None:
        self._watcher = watcher

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        for raw in objects:
            self.change("ADDED", raw)

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        if kind == "DELETED" or QUOTED_PREFIX not in bytes(raw):
            return False
        return any(self._watcher.put_event(event) for event in _decode_all([raw], EventObject))


def _pods_of(pods: PodsByIndex, index: int | None) -> list[PodObject]:
    rows = pods.values() if index is None else (pods.get(index, {}),)
    return [pod for row in rows for pod in row.values()]


def _changed_indexes(before: JobObject | None, job: JobObject) -> frozenset[int] | None:
    """The indexes whose tasks a change of their Job concerns; None: all. Counts of pods concern none."""
    if before is None or _common_part(before) != _common_part(job):
        return None
    old, new = before.status, job.status
    completed = indexes_of(old.completed_indexes) ^ indexes_of(new.completed_indexes)
    return completed | (indexes_of(old.failed_indexes) ^ indexes_of(new.failed_indexes))


def _common_part(job: JobObject) -> tuple[object, ...]:
    return replace(job.metadata, resource_version=""), job.spec, job.status.conditions, job.status.completion_time


def _with_first_deletion(pod: PodObject, before: PodObject | None) -> PodObject:
    """Keep the time at which a pod was first asked to end: the kubelet's own delete, after the end, replaces it."""
    if before is None or before.metadata.deletion_timestamp is None:
        return pod
    first = before.metadata
    metadata = replace(
        pod.metadata,
        deletion_timestamp=first.deletion_timestamp,
        deletion_grace_period_seconds=first.deletion_grace_period_seconds,
    )
    return replace(pod, metadata=metadata)


def _decode_all(objects: Iterable[msgspec.Raw], type_: type[T]) -> list[T]:
    """Objects that can be decoded. One broken object must not end a watch."""
    decoded = []
    for raw in objects:
        try:
            decoded.append(msgspec.json.decode(raw, type=type_))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return decoded
