"""What a Job, its pods and its events mean here. Pure; pod_status.py has the table of single pods.

| Job | pods | status |
|---|---|---|
| any | one is on a node that does not answer | RUNNING: it may still run there |
| any | one runs or waits | that of the pod; of a gang: RUNNING when all run |
| any | all have ended, and their kubelets say so | the end of the pod; of a gang: of the pod that failed first |
| Complete, Failed | none are left | the Job's own words |
| gone, by us | none are left | the stop order's: cancelled, or the reason why the agent gave up |
| gone, by somebody | none are left | the end if it was seen, else CANCELLED |
| unknown, was never seen | none | LOST |
| suspended | none | SUBMITTED |
| not finished | none | SUBMITTED, with the event that says why no pod could be created |

The conditions FailureTarget and SuccessCriteriaMet are no end: pods may still run. `now_s` is the cluster's clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.returns import limit_returns
from switchyard.features.kubernetes.agent.jobs.kueue import kueue_wait_reason
from switchyard.features.kubernetes.agent.jobs.start_choice import without_surplus
from switchyard.features.kubernetes.agent.kubernetes_names import OWN_PREFIX
from switchyard.features.kubernetes.agent.namespaces.objects import (
    EventObject,
    JobObject,
    ObjectCondition,
    PodObject,
    has_index,
)
from switchyard.features.kubernetes.agent.pods.pod_facts import PodFacts, seconds, split_code, tidy
from switchyard.features.kubernetes.agent.pods.pod_status import ENDED, FAILED, RUNS, WAITS, PodReading, read_pod
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

GONE_WAIT_S = 300.0
NODES_SHOWN_MAX = 20
# `Error creating: pods "x-4kxqs" is forbidden: exceeded quota: …`
CREATE_PREFIX = re.compile(r'^Error creating: (Pod "[^"]*" is invalid: |pods "[^"]*" is forbidden: )?')
# What the rules of podFailurePolicy make Kubernetes write into the Job.
EXIT_CODE_NOTE = re.compile(r"failed with exit code (\d+) matching")
DISRUPTION_NOTE = re.compile(r"has condition DisruptionTarget matching")


class NodeState(StrEnum):
    """Whether a node answers, as far as it matters for pods that vanished from it."""

    READY = "ready"
    AWAY = "away"  # its kubelet does not answer: containers may run on
    GONE = "gone"  # removed from the cluster, or marked out of service: an operator's word that nothing runs there
    UNSEEN = "unseen"  # not known, e.g. for lack of rights


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """The agent deletes the Job, or the pod of one index. When it is gone, the attempt has this end."""

    seen: ObservedState
    reason: str
    cause: Cause = Cause.CLUSTER
    failure: FailureKind | None = None


CANCELLED = StopOrder(seen=ObservedState.CANCELLED, reason="cancelled")
_NONE = ObjectCondition("")
DELETED = StopOrder(seen=ObservedState.CANCELLED, reason="its Job was deleted at the cluster by somebody")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What the cluster shows of one attempt: a Job, or one index of a range's Job.

    `job`: as last seen; None: never seen. `gone_pods`: pods that were seen and are not there any more, as last seen.
    """

    job: JobObject | None
    pods: Sequence[PodObject] = ()
    events: Sequence[EventObject] = ()
    index: int | None = None
    is_deleted: bool = False  # the Job is not there any more
    gone_pods: Sequence[PodObject] = ()

    @property
    def is_gone(self) -> bool:
        return self.job is None or self.is_deleted

    @property
    def attempt(self) -> int:
        """Which attempt of the job it is, from 1; 0: the Job does not say so."""
        text = self.job.metadata.labels.get(f"{OWN_PREFIX}attempt", "") if self.job is not None else ""
        return int(text) if text.isdecimal() else 0

    def readings(self) -> list[PodReading]:
        return self._read(without_surplus(self.pods, self.gone_pods))

    def gone_readings(self) -> list[PodReading]:
        return self._read(without_surplus(self.gone_pods, self.pods))

    def _read(self, pods: Sequence[PodObject]) -> list[PodReading]:
        own = [pod for pod in pods if self.index is None or pod.index == self.index]
        return sorted((read_pod(pod, self.events) for pod in own), key=_age_key)

    @property
    def gang_size(self) -> int:
        """How many pods must run at the same time."""
        return 1 if self.index is not None or self.job is None else self.job.spec.completions or 1


def status_of(
    view: JobView,
    *,
    now_s: float,
    stop: StopOrder | None = None,
    nodes: Callable[[str], NodeState] = lambda _: NodeState.UNSEEN,
    gone_wait_s: float = GONE_WAIT_S,
) -> Status:
    """The status of an attempt. `stop`: why the agent deletes it, if it does."""
    live, gone = view.readings(), view.gone_readings()
    if (doubt := _doubtful_pod(view, live, gone, nodes, now_s=now_s, gone_wait_s=gone_wait_s)) is not None:
        return _running(doubt, now_s, text=_away_text(doubt))
    if unfinished := [reading for reading in live if not reading.is_over]:
        status = _live_status(view, live, unfinished, now_s)
        away = [row for row in unfinished if row.facts.node and nodes(row.facts.node) is NodeState.AWAY]
        return _away_status(status, away[0]) if away else status
    readings = [*live, *gone]
    if (end := _own_end(view, readings, is_stopped=stop is not None)) is not None:
        return limit_returns(_end(end, readings, now_s), view.attempt)
    if not view.is_gone and _is_decided(view, readings):
        return _job_end(view, stop, readings, now_s)
    if view.is_gone:
        return _gone_end(view, stop or DELETED, readings, now_s)
    return _pending(view, is_stopped=stop is not None)


def restart_note(view: JobView) -> str:
    """Say that a kubelet made a container of this attempt again, although no pod may be restarted; empty: none did."""
    pods = [pod for pod in (*view.pods, *view.gone_pods) if view.index is None or pod.index == view.index]
    rows = [facts for facts in map(PodFacts, pods) if facts.doubtful_restarts]
    most = max(rows, key=lambda facts: facts.doubtful_restarts, default=None)
    if most is None:
        return ""
    starts = most.doubtful_restarts + 1
    return f"its node {most.node} made its container {starts} times: its command may have begun more than once"


def _live_status(view: JobView, live: Sequence[PodReading], unfinished: Sequence[PodReading], now_s: float) -> Status:
    first = unfinished[0]
    if view.gang_size > 1:
        return _gang_status(view, live, unfinished, now_s)
    if first.seen is ObservedState.UNKNOWN:
        return Status(seen=first.seen, text=first.reason)
    if first.seen is RUNS:
        return _running(first, now_s, text=_ending_text(view, first))
    return Status(seen=WAITS, text=first.rule.name, reason=first.reason)


def _gang_status(view: JobView, live: Sequence[PodReading], unfinished: Sequence[PodReading], now_s: float) -> Status:
    """A gang runs when every pod has begun. Until then its reason is that of the first pod that waits."""
    begun = [reading for reading in live if reading.facts.has_begun]
    if len(begun) >= view.gang_size:
        last = max(begun, key=lambda reading: reading.began_s or 0)
        return _running(last, now_s, text=_ending_text(view, last))
    waiting = next((reading.reason for reading in unfinished if reading.seen is WAITS), "")
    why = waiting or _create_problem(view) or "the others are not created yet"
    return Status(seen=WAITS, text="gang", reason=f"{len(begun)} of its {view.gang_size} pods run; {why}")


def _away_status(status: Status, away: PodReading) -> Status:
    """A pod that waits as far as its kubelet told: it may have begun its command since then."""
    reason = status.reason
    if status.seen is WAITS:
        reason += f"; its node {away.facts.node} does not answer: its command may have begun there"
    return replace(status, text=_away_text(away), reason=reason)


def _away_text(reading: PodReading) -> str:
    return f"node {reading.facts.node} does not answer; it may still run there"


def _ending_text(view: JobView, reading: PodReading) -> str:
    if view.is_gone:
        return "its Job is gone, its pod is not"
    if reading.facts.pod.metadata.deletion_timestamp is not None:
        return "its pod is being ended"
    if view.job is not None and (view.job.condition("FailureTarget") or view.job.condition("SuccessCriteriaMet")):
        return "its Job is being ended"
    return reading.rule.name


def _doubtful_pod(
    view: JobView,
    live: Sequence[PodReading],
    gone: Sequence[PodReading],
    nodes: Callable[[str], NodeState],
    *,
    now_s: float,
    gone_wait_s: float,
) -> PodReading | None:
    """A pod that may still run although the control plane says that it has ended, or does not show it any more."""
    unsure = [reading for reading in (*live, *gone) if reading.is_over and not reading.is_sure]
    vanished = [reading for reading in gone if not reading.is_over and reading.facts.terminated is None]
    for reading in (*unsure, *vanished):
        state = nodes(reading.facts.node) if reading.facts.node else NodeState.GONE
        if state is NodeState.AWAY:
            return reading
        if state is NodeState.UNSEEN and now_s - _vanished_s(view, reading) < gone_wait_s:
            return reading
    return None


def _vanished_s(view: JobView, reading: PodReading) -> float:
    """When the pod was asked to end, or the Job ended, whichever is known; else long ago."""
    failed = view.job.condition("Failed") if view.job is not None else None
    times = [
        seconds(reading.facts.pod.metadata.deletion_timestamp),
        seconds(failed.last_transition_time) if failed is not None else None,
    ]
    return max((at for at in times if at is not None), default=0.0)


def _own_end(view: JobView, readings: Sequence[PodReading], *, is_stopped: bool) -> PodReading | None:
    """The pod whose end is that of the attempt; None: there is none, or it ended only because it was deleted."""
    is_deleting = view.is_gone or (view.job is not None and view.job.metadata.deletion_timestamp is not None)
    ends = [reading for reading in readings if reading.is_over and reading.is_sure]
    own = [reading for reading in ends if not reading.facts.is_deletion_first or not (is_stopped or is_deleting)]
    failed = [reading for reading in own if reading.seen is not ENDED]
    if failed:  # of a gang: the first that failed by itself; the others were ended for its sake
        return min(failed, key=lambda reading: (reading.facts.is_deletion_first, reading.ended_s or 0.0))
    done = [reading for reading in own if reading.seen is ENDED]
    if len({reading.facts.pod.index for reading in done}) >= view.gang_size:
        return max(done, key=lambda reading: reading.ended_s or 0.0, default=None)
    return None


def _is_decided(view: JobView, readings: Sequence[PodReading]) -> bool:
    """Whether the Job, or this index of it, has ended."""
    assert view.job is not None, "asked only of a Job that is there"
    if view.index is None or view.job.has_ended():
        return view.job.has_ended()
    return view.job.has_ended(view.index) and all(row.is_over for row in readings)


def _job_end(view: JobView, stop: StopOrder | None, readings: Sequence[PodReading], now_s: float) -> Status:
    """The end of an attempt without a pod that says it, by the Job's own words."""
    assert view.job is not None, "asked only of a Job that is there"
    job = view.job
    done, failed = job.condition("Complete"), job.condition("Failed")
    at_s = seconds(job.status.completion_time) or seconds((done or failed or _NONE).last_transition_time)
    ago_us, began_us = _ago_us(at_s, now_s), _began_us(readings, now_s)
    is_complete = done is not None or (view.index is not None and has_index(job.status.completed_indexes, view.index))
    if is_complete:
        return Status(seen=ENDED, text="Complete", exit_code=0, ago_us=ago_us, began_ago_us=began_us)
    if stop is not None:
        return _stopped(stop, readings, now_s)
    words, cause, code, number = _job_words(view, readings)
    is_late = failed is not None and view.index is None and failed.reason == "DeadlineExceeded"
    return Status(
        seen=FAILED,
        text=failed.reason if failed is not None else "FailedIndexes",
        reason=words,
        cause=cause,
        failure=FailureKind.TIME_LIMIT if is_late else None,
        exit_code=code,
        signal=number,
        ago_us=ago_us,
        began_ago_us=began_us,
    )


def _job_words(view: JobView, readings: Sequence[PodReading]) -> tuple[str, Cause, int | None, int | None]:
    failed = view.job.condition("Failed") if view.job is not None and view.index is None else None
    if failed is not None and failed.reason == "DeadlineExceeded":
        return "time limit reached", Cause.JOB, None, None
    if failed is not None and (note := EXIT_CODE_NOTE.search(failed.message)) is not None:
        code, number = split_code(int(note[1]))
        return f"exit code {code}" if number is None else f"killed by signal {number}", Cause.JOB, code, number
    taken = next((row for row in readings if row.is_over and row.facts.disruption is not None), None)
    if taken is not None:  # the control plane ended the pod, and its kubelet says nothing more
        return taken.reason, taken.rule.cause, None, None
    if failed is None:
        return "it failed, and its pod is gone: its exit code is not known", Cause.CLUSTER, None, None
    if DISRUPTION_NOTE.search(failed.message):
        return "the cluster took its node away, and its pod is gone", Cause.PREEMPTED, None, None
    return f"its pod is gone, and its exit code is not known: {tidy(failed.message)}", Cause.CLUSTER, None, None


def _gone_end(view: JobView, stop: StopOrder, readings: Sequence[PodReading], now_s: float) -> Status:
    if view.job is None and not readings and stop is DELETED:
        return Status(seen=ObservedState.LOST, reason="the cluster does not know it", cause=Cause.LOST)
    if view.job is not None and stop is DELETED and (view.job.condition("Complete") or view.job.condition("Failed")):
        return _job_end(view, None, readings, now_s)
    return _stopped(stop, readings, now_s)


def _stopped(stop: StopOrder, readings: Sequence[PodReading], now_s: float) -> Status:
    return Status(
        seen=stop.seen,
        text="deleted",
        reason=stop.reason,
        cause=stop.cause,
        failure=stop.failure,
        began_ago_us=_began_us(readings, now_s),
    )


def _pending(view: JobView, *, is_stopped: bool) -> Status:
    """The status of a Job that has not ended and has no pod."""
    assert view.job is not None, "asked only of a Job that is there"
    job = view.job
    if is_stopped or job.metadata.deletion_timestamp is not None:
        holders = f", held by {', '.join(job.metadata.finalizers)}" if job.metadata.finalizers else ""
        return Status(seen=WAITS, text="being deleted", reason=f"it is being deleted{holders}")
    if job.spec.suspend:
        queue = kueue_wait_reason(job.metadata.labels, is_suspended=True)
        return Status(seen=WAITS, text="Suspended", reason=queue or "waits at the cluster: its Job is suspended")
    if problem := _create_problem(view):
        return Status(seen=WAITS, text="FailedCreate", reason=f"no pod can be created: {problem}")
    return Status(seen=WAITS, text="no pod", reason="waits for Kubernetes to create its pod")


def _create_problem(view: JobView) -> str:
    """Why the Job's controller could not create a pod, by its last event; empty: no event says so."""
    uid = view.job.metadata.uid if view.job is not None else ""
    rows = [row for row in view.events if row.reason == "FailedCreate" and row.involved_object.uid == uid]
    last = max(rows, key=lambda row: seconds(row.last_seen) or 0.0, default=None)
    return "" if last is None else tidy(CREATE_PREFIX.sub("", last.message))


def _running(reading: PodReading, now_s: float, *, text: str) -> Status:
    return Status(seen=RUNS, text=text, ago_us=_ago_us(reading.began_s, now_s))


def _end(end: PodReading, readings: Sequence[PodReading], now_s: float) -> Status:
    began_s = min((row.began_s for row in readings if row.began_s is not None), default=None)
    ended_s = end.ended_s
    names = sorted({row.facts.node for row in readings if row.facts.node})
    usage = None
    if began_s is not None and ended_s is not None:
        usage = Usage(elapsed_s=max(0, round(ended_s - began_s)), nodes=",".join(names[:NODES_SHOWN_MAX]))
    # Of a gang, other pods may have begun: then it is not returned.
    is_failed = end.seen is ObservedState.RETURNED and not all(row.is_unbegun for row in readings)
    return Status(
        seen=FAILED if is_failed else end.seen,
        text=end.rule.name,
        reason=end.reason,
        exit_code=end.exit_code,
        signal=end.signal,
        ago_us=_ago_us(ended_s, now_s),
        began_ago_us=_ago_us(began_s, now_s) if began_s is not None else None,
        cause=end.rule.cause,
        failure=end.rule.failure,
        usage=usage,
    )


def _began_us(readings: Sequence[PodReading], now_s: float) -> int | None:
    began_s = min((row.began_s for row in readings if row.began_s is not None), default=None)
    return None if began_s is None else _ago_us(began_s, now_s)


def _ago_us(at_s: float | None, now_s: float) -> int:
    return 0 if at_s is None else max(0, int((now_s - at_s) * 1_000_000))


def _age_key(reading: PodReading) -> tuple[float, str]:
    meta = reading.facts.pod.metadata
    return seconds(meta.creation_timestamp) or 0.0, meta.name
