"""When the agent gives up an attempt that Kubernetes would keep for ever, or would run a second time. Pure.

A stop order is carried out in three steps: the backend records it, deletes the Job (or the pod of one index) in the
foreground, and when nothing is left `status_of` reports the order's end. So nothing is retried before it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchyard.agent.backends.shared.returns import ATTEMPTS_MAX
from switchyard.features.kubernetes.agent.jobs.job_status import JobView, StopOrder
from switchyard.features.kubernetes.agent.jobs.start_choice import start_index
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.pods.pod_facts import is_held, seconds
from switchyard.features.kubernetes.agent.pods.pod_status import (
    FAILED,
    NOT_STARTED,
    RETURNED,
    WAITS,
    PodReading,
    WaitKind,
)
from switchyard.model.job.retry import Cause

LOST_START_S = 30.0  # within this time a second pod starts if it is certain that the first one never ran


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
    return StopOrder(seen=FAILED, reason=f"{reading.reason}{waited}", cause=reading.rule.cause)


def _gang_order(view: JobView, live: Sequence[PodReading], *, now_s: float, bound_s: float) -> StopOrder | None:
    begun = [row.began_s for row in live if row.began_s is not None]
    if view.gang_size == 1 or not begun or len(begun) >= view.gang_size or now_s - min(begun) < bound_s:
        return None
    if any(row.is_over and row.seen is FAILED for row in live):  # it ends already
        return None
    waiting = next((row.reason for row in live if row.seen is WAITS), "the others were not created")
    words = f"only {len(begun)} of its {view.gang_size} pods ran within {bound_s:g} s: {waiting}"
    return StopOrder(seen=FAILED, reason=words, cause=Cause.CLUSTER)
