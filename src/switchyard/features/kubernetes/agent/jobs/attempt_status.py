"""The status of attempts, computed when their Jobs change. An end counts once the output was taken, and is recorded.

An attempt that Kubernetes would keep for ever, or would run a second time, is ended by a stop order. It is carried out
in three steps: the backend records it, deletes the Job (or the pod of one index) in the foreground, and when nothing is
left `status_of` reports the order's end. So nothing is retried before it is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from switchyard.agent.backends import TERMINAL_STATES, Status
from switchyard.agent.backends.shared.returns import ATTEMPTS_MAX
from switchyard.agent.log import line
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.job_remover import JobRemover
from switchyard.features.kubernetes.agent.jobs.job_status import JobView, NodeState, StopOrder, restart_note, status_of
from switchyard.features.kubernetes.agent.jobs.start_choice import double_start_note, start_index
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import RecordedStop, SubmittedJob
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.objects import ObjectMeta, PodObject
from switchyard.features.kubernetes.agent.nodes.cluster import KubernetesCluster
from switchyard.features.kubernetes.agent.pods.labels import TRACKING_FINALIZER
from switchyard.features.kubernetes.agent.pods.pod_facts import PodFacts, is_held, seconds
from switchyard.features.kubernetes.agent.pods.pod_output import PodOutput
from switchyard.features.kubernetes.agent.pods.pod_status import (
    FAILED,
    NOT_STARTED,
    RETURNED,
    WAITS,
    PodReading,
    WaitKind,
)
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

LOOK_AGAIN_S = 5.0  # some rules depend on time
UNSURE_S = 0.5
UNKNOWN = Status(seen=ObservedState.LOST, reason="this agent has no record of this Job")
LOST_START_S = 30.0  # within this time a second pod starts if it is certain that the first one never ran


log = logging.getLogger(__name__)


class AttemptStatuses:
    """Used by one thread, except for `invalidate`."""

    def __init__(
        self,
        store: SubmissionStore,
        watcher: KubernetesWatcher,
        output: PodOutput,
        remover: JobRemover,
        cluster: KubernetesCluster,
        *,
        site: KubernetesSite,
        now_s: Callable[[], float] = time.time,
        start_problem: Callable[[str], str] = lambda _: "",
        usage_of: Callable[[Iterable[PodObject]], Usage | None] = lambda _: None,
    ) -> None:
        """`now_s`: the cluster's clock. `start_problem`: why the pods of a Job cannot be let start; empty: they can.
        `usage_of`: what the cluster gave to these pods."""
        self._usage_of = usage_of
        self._store, self._watcher, self._output = store, watcher, output
        self._remover, self._cluster, self._site = remover, cluster, site
        self._now_s, self._start_problem = now_s, start_problem
        cluster.add_trouble(lambda: watcher.trouble)
        # Job → fence → when to compute the status again, and the status
        self._known: dict[str, dict[int, tuple[float, Status]]] = {}
        self._invalid: set[tuple[str, int | None]] = set()  # names of Jobs, and an index or all

    def invalidate(self, name: str, index: int | None = None) -> None:
        """Compute the status of this Job's attempts again, or of one task of it."""
        self._invalid.add((name, index))

    def of(self, native_ids: Iterable[str]) -> dict[str, Status]:
        for name, indexes in self._watcher.take_changed().items():
            self._discard(name, indexes)
        while self._invalid:
            name, index = self._invalid.pop()
            self._discard(name, None if index is None else (index,))
        statuses: dict[str, Status] = {}
        ends: dict[str, dict[int, Status]] = {}
        for native_id in native_ids:
            found = self._store.of_native(native_id)
            if found is None:
                statuses[native_id] = UNKNOWN
                continue
            job, fence = found
            if (end := job.ends.get(fence)) is not None:
                statuses[native_id] = end.status()
                continue
            statuses[native_id] = status = self._status(job, fence)
            if status.seen in TERMINAL_STATES:
                ends.setdefault(job.name, {})[fence] = status
        for name, several in ends.items():
            self._store.end(name, several)
            for fence in several:
                self._known[name].pop(fence, None)
            if not self._known[name]:
                del self._known[name]
        return statuses

    def _discard(self, name: str, indexes: Iterable[int] | None) -> None:
        """Compute the status of these tasks again; None: of all. Most changes of an array are of one task."""
        job = self._store.get(name)
        if indexes is None or job is None or job.size == 1:
            self._known.pop(name, None)
            return
        known = self._known.get(name, {})
        for index in indexes:
            known.pop(job.lease.fence + index, None)

    def _status(self, job: SubmittedJob, fence: int) -> Status:
        now = time.monotonic()
        due, status = self._known.get(job.name, {}).get(fence, (0.0, UNKNOWN))
        if now < due:
            return status
        status, again_s = self._compute(job, fence)
        self._known.setdefault(job.name, {})[fence] = (now + again_s, status)
        return status

    def _compute(self, job: SubmittedJob, fence: int) -> tuple[Status, float]:
        """The status, and for how long it holds if nothing changes."""
        view = self._watcher.view(job.name, fence - job.lease.fence if job.size > 1 else None)
        status, again_s = self._read(job, fence, view)
        if self._watcher.is_unwatched(job.name):
            self._remover.doubt(job.name)
            again_s = min(again_s, UNSURE_S)
        if status.seen is ObservedState.RUNNING:
            note = "; ".join(filter(None, (status.reason, running_note(view, self._cluster.node_state))))
            status = replace(status, note=note)
        return status, again_s

    def _read(self, job: SubmittedJob, fence: int, view: JobView) -> tuple[Status, float]:
        if not self._watcher.wait_listed(0.0):  # a Job without its pods would look as if they were gone
            return Status(seen=ObservedState.SUBMITTED, text="the cluster has not answered yet"), UNSURE_S
        now_s = self._now_s()
        stop = job.stops.get(fence)
        own = [pod for pod in view.pods if view.index is None or pod.index == view.index]
        gone = [pod for pod in view.gone_pods if view.index is None or pod.index == view.index]
        order = stop_order_of(view, now_s=now_s, site=self._site, starts=job.starts) if stop is None else None
        if order is not None:
            if order.seen is not ObservedState.RETURNED:
                self._output.collect(job, fence, own, gone, is_urgent=True)  # it goes with its pods
            log.warning(line("kubernetes-given-up", name=job.name, fence=fence, why=order.reason))
            self._store.stop(job.name, {fence: order})
            return Status(seen=ObservedState.SUBMITTED, text="given up", reason=order.reason), 0.0
        status = status_of(
            view,
            now_s=now_s,
            stop=stop.order if stop is not None else None,
            nodes=self._cluster.node_state,
            gone_wait_s=self._site.gone_wait_s,
        )
        if status.seen not in TERMINAL_STATES:
            self._output.collect(job, fence, own, gone)
            held = self._start_problem(job.name) if any(map(is_held, own)) else ""
            return self._with_usage(_with_notes(status, restart_note(view), held), own), LOOK_AGAIN_S
        if view.is_gone and not own and not self._watcher.is_sure(job.name):
            self._remover.doubt(job.name)
            return _not_yet(status, "it is being confirmed that nothing of it is left"), UNSURE_S
        if stop is not None and status.reason == stop.reason and _is_left(job, view, own, stop):
            return _not_yet(status, "its Job and its pods are being deleted"), UNSURE_S
        if not view.is_gone and not own and not gone and not self._watcher.is_podless(job.name, view.index):
            # The watch of Jobs may be ahead of the watch of pods, which have the exit code and the output.
            self._remover.doubt(job.name)
            return _not_yet(status, "its pod is being looked for"), UNSURE_S
        problem = self._output.finish(job, fence, own, gone)
        if problem is None:
            return _not_yet(status, "its output is being taken"), LOOK_AGAIN_S
        if stop is not None:
            problem = ""  # the last words of a pod that is ended may go with it
        status = self._with_usage(status, [*gone, *own])
        return _with_notes(status, double_start_note([*own, *gone]), restart_note(view), problem), 0.0

    def _with_usage(self, status: Status, pods: Sequence[PodObject]) -> Status:
        """The status with what the pods were given. Of a running attempt only if it has GPUs: others are not told."""
        if status.usage is None and status.seen is not ObservedState.RUNNING:
            return status
        given = self._usage_of(pods)
        if given is None or given.allocated is None or (status.usage is None and not given.allocated.gpus):
            return status
        usage = given if status.usage is None else msgspec.structs.replace(status.usage, allocated=given.allocated)
        return replace(status, usage=usage)


def _with_notes(status: Status, *notes: str) -> Status:
    """Add to the reason what its reader must know besides."""
    return replace(status, reason="; ".join(filter(None, (status.reason, *notes)))) if any(notes) else status


def _is_left(job: SubmittedJob, view: JobView, own: list[PodObject], stop: RecordedStop) -> bool:
    """Whether something is left of an attempt that the agent ends. What is returned is not begun before it is gone."""
    is_job_left = job.is_unwanted and not view.is_gone
    return is_job_left or (bool(own) and (job.is_unwanted or stop.seen is ObservedState.RETURNED))


def _not_yet(end: Status, text: str) -> Status:
    """An end that is not reported yet. An attempt that began still counts as running."""
    if end.began_ago_us is None:
        return Status(seen=ObservedState.SUBMITTED, text=text, reason=end.reason)
    return Status(seen=ObservedState.RUNNING, text=text, ago_us=end.began_ago_us)


# Finalizers that Kubernetes sets and takes off by itself.
KUBERNETES_FINALIZERS = ("foregroundDeletion", "orphan", TRACKING_FINALIZER)


def running_note(view: JobView, node_state: Callable[[str], NodeState]) -> str:
    """The note of an attempt that has not ended; empty: there is nothing to tell."""
    pods = [pod for pod in view.pods if view.index is None or pod.index == view.index]
    gone = [pod for pod in view.gone_pods if view.index is None or pod.index == view.index]
    if away := _away_node([*pods, *gone], node_state):
        return f"its node {away} does not answer: it may still run there"
    if holders := _holders(view, pods):
        return f"it is being deleted, held by {', '.join(holders)}"
    ending = next((pod for pod in pods if pod.metadata.deletion_timestamp and not PodFacts(pod).terminated), None)
    if ending is None:
        return ""
    grace_s = ending.metadata.deletion_grace_period_seconds
    return "its pod is being ended" + (f": it has {grace_s} s after SIGTERM" if grace_s else "")


def _away_node(pods: Sequence[PodObject], node_state: Callable[[str], NodeState]) -> str:
    """The node of a pod that has not ended, as far as its kubelet told, and whose node does not answer."""
    nodes = (pod.spec.node_name for pod in pods if pod.spec.node_name and not PodFacts(pod).terminated)
    return next((node for node in nodes if node_state(node) is NodeState.AWAY), "")


def _holders(view: JobView, pods: Sequence[PodObject]) -> list[str]:
    """The finalizers of others on a Job or a pod whose containers have ended and that is being deleted."""
    if any(not PodFacts(pod).terminated for pod in pods):
        return []
    objects: list[ObjectMeta] = [pod.metadata for pod in pods]
    if view.job is not None and not view.is_deleted:
        objects.append(view.job.metadata)
    deleting = [meta for meta in objects if meta.deletion_timestamp is not None]
    return sorted({name for meta in deleting for name in meta.finalizers} - set(KUBERNETES_FINALIZERS))


def stop_order_of(
    view: JobView, *, now_s: float, site: KubernetesSite, starts: Mapping[int, str] | None = None
) -> StopOrder | None:
    """Why the agent must end this attempt itself; None: it goes on, or it is over.

    `starts`: the uids of the pods that the agent let start, by completion index.
    """
    if view.is_gone or view.job is None or view.job.metadata.deletion_timestamp is not None:
        return None
    live, gone = view.readings(), view.gone_readings()
    if (order := _second_start(view, live, gone) or _return_order(view, live, gone)) is not None:
        return order
    if starts and (order := _lost_start(view, starts, now_s=now_s)) is not None:
        return order
    bounds = {
        WaitKind.IMAGE_NAME: 0.0,
        WaitKind.IMAGE: site.image_wait_s,
        WaitKind.CONFIG: site.config_wait_s,
        WaitKind.NODE: site.start_wait_s,
    }
    for reading in live:
        bound_s = bounds.get(reading.rule.wait) if reading.rule.wait is not None else None
        since_s = reading.waits_since_s
        if reading.seen is WAITS and bound_s is not None and since_s is not None and now_s - since_s >= bound_s:
            return _wait_order(reading, bound_s, has_begun=any(row.facts.has_begun for row in live))
    return _gang_order(view, live, now_s=now_s, bound_s=site.gang_wait_s)


def _second_start(view: JobView, live: Sequence[PodReading], gone: Sequence[PodReading]) -> StopOrder | None:
    """A command must not run twice: not in a second pod, and not when a suspended Job is resumed."""
    assert view.job is not None, "asked only of a Job that is there"
    for reading in (*live, *gone):
        if not reading.facts.has_begun:
            continue
        index, uid = reading.facts.pod.index, reading.facts.pod.metadata.uid
        if any(row.facts.pod.index == index and row.facts.pod.metadata.uid != uid and not row.is_over for row in live):
            words = "Kubernetes made a second pod for it, and the agent ended both: it may have run in part"
            return StopOrder(seen=FAILED, reason=words, cause=Cause.CLUSTER)
        if view.job.spec.suspend and not _has_ended_alone(reading):
            words = "its Job was suspended after it had begun, and resuming it would run it again"
            return StopOrder(seen=FAILED, reason=words, cause=Cause.PREEMPTED)
    return None


def _lost_start(view: JobView, starts: Mapping[int, str], *, now_s: float) -> StopOrder | None:
    """The pod that was let start is gone, nobody knows how far it came, and another pod waits at the agent's gate."""
    known = {pod.metadata.uid for pod in view.pods}
    known |= {reading.facts.pod.metadata.uid for reading in view.gone_readings() if reading.is_over}
    for pod in view.pods:
        started, made_s = starts.get(start_index(pod), ""), seconds(pod.metadata.creation_timestamp)
        is_other = view.index is not None and pod.index != view.index
        if is_other or not is_held(pod) or not started or started in known:
            continue
        if made_s is not None and now_s - made_s >= LOST_START_S:
            words = "its pod is gone, and it is not known whether its command began; its second pod was not started"
            return StopOrder(seen=FAILED, reason=words, cause=Cause.CLUSTER)
    return None


def _return_order(view: JobView, live: Sequence[PodReading], gone: Sequence[PodReading]) -> StopOrder | None:
    """An attempt whose node could not make its container goes back to the queue, once its Job is gone."""
    failed = next((reading for reading in live if reading.rule.name == NOT_STARTED), None)
    if failed is None or view.attempt >= ATTEMPTS_MAX or not all(row.is_unbegun for row in (*live, *gone)):
        return None
    return StopOrder(seen=RETURNED, reason=failed.reason)


def _has_ended_alone(reading: PodReading) -> bool:
    return reading.is_over and not reading.facts.is_deletion_first


def _wait_order(reading: PodReading, bound_s: float, *, has_begun: bool) -> StopOrder:
    waited = f" (for {bound_s:g} s)" if bound_s else ""
    if reading.rule.wait is WaitKind.NODE and not has_begun:
        return StopOrder(seen=RETURNED, reason=f"{reading.reason}{waited}")  # nothing of it began: it can go elsewhere
    return StopOrder(
        seen=FAILED, reason=f"{reading.reason}{waited}", cause=reading.rule.cause, failure=reading.rule.failure
    )


def _gang_order(view: JobView, live: Sequence[PodReading], *, now_s: float, bound_s: float) -> StopOrder | None:
    begun = [row.began_s for row in live if row.began_s is not None]
    if view.gang_size == 1 or not begun or len(begun) >= view.gang_size or now_s - min(begun) < bound_s:
        return None
    if any(row.is_over and row.seen is FAILED for row in live):  # it ends already
        return None
    waiting = next((row.reason for row in live if row.seen is WAITS), "the others were not created")
    words = f"only {len(begun)} of its {view.gang_size} pods ran within {bound_s:g} s: {waiting}"
    return StopOrder(seen=FAILED, reason=words, cause=Cause.CLUSTER)
