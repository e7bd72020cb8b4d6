"""Lifts the scheduling gate of exactly one pod of each task, as soon as the watch shows the pod.

The steps for one task: choose a pod (start_choice.py), record its uid durably, then take the gate off this pod. What is
recorded decides after a restart. The agent may be killed, and answers may be lost, between any two steps:

| interrupted | afterwards |
|---|---|
| before the record | no pod was let start: the choice is made again |
| after the record, before the patch | the recorded pod has its gate: its gate is lifted now |
| after the patch, before its answer | the pod has no gate any more: nothing is left to do |
| the recorded pod is gone | no other pod starts, unless it is certain that the recorded pod never ran |

It is certain that a pod never ran in two cases: the watch told of its deletion and showed it without a node, or the
first patch since the record found no pod. After a patch whose answer was lost, a missing pod proves nothing. If there
is no certainty, a stop order ends the attempt (attempt_status.py).

A pod is not let start if its task was cancelled, has ended, or was reported as not created.

Without the right to patch pods, Jobs are created without the gate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from switchyard.agent.log import line
from switchyard.agent.loop.parallel_calls import call_in_parallel
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import JSON_PATCH, KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.background_calls import BackgroundCalls
from switchyard.features.kubernetes.agent.api.rights import PATCH_PODS, REVIEWS_PATH, review_body, rule_text
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.start_choice import choose_starts, start_index
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.features.kubernetes.agent.pods.labels import START_GATE, STARTED_ANNOTATION
from switchyard.features.kubernetes.agent.pods.pod_facts import is_held

AT_ONCE = 8  # patches in parallel, of one Job
JOBS_PER_NAMESPACE = 8
JOBS_AT_ONCE = 8 * JOBS_PER_NAMESPACE
RIGHT_S = 30.0  # how long an answer about the right to patch pods serves
RETRY_S_MIN, RETRY_S_MAX = 0.2, 10.0
ROOM_S = 0.02  # until a look whether there is room for another Job
LIFTED_MAX = 20_000
PATCH_TRIES = 3  # others may change the gates of a pod at the same time

log = logging.getLogger(__name__)


class StartGates:
    """Used by several threads. One round at a time works on a Job."""

    def __init__(
        self,
        api: KubernetesApi,
        store: SubmissionStore,
        watcher: KubernetesWatcher,
        *,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_change` is called with the name of a Job whose `problem` changed."""
        self._api, self._store, self._watcher, self._on_change = api, store, watcher, on_change
        self._rounds = BackgroundCalls[None]("start", at_once=JOBS_AT_ONCE, group_at_once=JOBS_PER_NAMESPACE, keep_s=0)
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}  # names of Jobs → when to look at their pods
        self._busy: set[str] = set()
        self._problems: dict[str, str] = {}  # names of Jobs → why a pod of theirs cannot be let start
        self._waits_s: dict[str, float] = {}  # names of Jobs → the last wait before another try
        self._unsent: set[str] = set()  # uids recorded by this process whose gates no patch can have lifted
        self._lifted: set[str] = set()  # uids of pods whose gates were lifted
        self._never_ran: set[str] = set()  # uids of pods that were gone before their gates were lifted
        self._rights: dict[str, tuple[float, bool]] = {}  # by namespace: until when the answer serves, and the answer
        self._is_stopped = False

    def start(self) -> None:
        self._watcher.on_held = self.note
        threading.Thread(target=self._run, name="starts", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def add_gate(self, manifest: dict[str, Any]) -> None:
        """Add the gate to the pods of a Job, if the agent has the right to lift it. Called before a Job is created.

        Kubernetes refuses gates in a pod whose node the site names itself.
        """
        pod = manifest["spec"]["template"]["spec"]
        if pod.get("nodeName") or not self._may_patch(manifest["metadata"]["namespace"]):
            return
        others = [gate for gate in pod.get("schedulingGates") or () if gate.get("name") != START_GATE]
        pod["schedulingGates"] = [*others, {"name": START_GATE}]

    def problem(self, name: str) -> str:
        """Why pods of this Job cannot be let start; empty: they can."""
        return self._problems.get(name, "")

    @property
    def missing_right(self) -> str:
        """What it costs that the agent may not patch pods in some namespace, and the rule to add; empty: it may."""
        lacking = sorted(namespace for namespace, (_, is_allowed) in list(self._rights.items()) if not is_allowed)
        if not lacking:
            return ""
        return f"the agent may not patch pods in {lacking[0]}; add {rule_text(PATCH_PODS)}: {PATCH_PODS.purpose}"

    def note(self, name: str) -> None:
        """A Job has a pod with the gate, or one of several pods has gone: look at them at once."""
        with self._changed:
            self._due[name] = 0.0
            self._changed.notify()

    def _may_patch(self, namespace: str) -> bool:
        until, is_allowed = self._rights.get(namespace, (0.0, False))
        if time.monotonic() < until:
            return is_allowed
        try:
            answer = self._api.create(REVIEWS_PATH, review_body(PATCH_PODS, PATCH_PODS.verbs[0], namespace))
            is_now_allowed = bool((answer.get("status") or {}).get("allowed"))
        except ApiRefusal:
            is_now_allowed = False
        if not is_now_allowed and (is_allowed or namespace not in self._rights):
            log.warning(line("kubernetes-right-missing", namespace=namespace, cost=PATCH_PODS.purpose))
        self._rights[namespace] = (time.monotonic() + RIGHT_S, is_now_allowed)
        return is_now_allowed

    def _run(self) -> None:
        """Begin a round for each Job that is due."""
        while True:
            with self._changed:
                if self._is_stopped:
                    return
                now = time.monotonic()
                names = [name for name, due in self._due.items() if due <= now and name not in self._busy]
                if not names:
                    waits = [due - now for name, due in self._due.items() if name not in self._busy]
                    self._changed.wait(max(0.0, min(waits)) if waits else None)
                    continue
                for name in names:
                    del self._due[name]
                self._busy.update(names)
            for name in names:
                self._begin(name)

    def _begin(self, name: str) -> None:
        job = self._store.get(name)
        if job is None:
            self._tell(name, "")
            self._finish(name)
        elif not self._rounds.begin(name, partial(self._work, name), group=job.namespace):
            self._finish(name, again_s=ROOM_S)

    def _work(self, name: str) -> None:
        again_s: float | None = RETRY_S_MAX  # after a defect, whose traceback is this thread's
        problem = ""
        try:
            self._lift_all(name)
            self._waits_s.pop(name, None)
            again_s = None
        except YardError as exc:
            problem = exc.detail
            again_s = min(RETRY_S_MAX, 2 * self._waits_s.get(name, RETRY_S_MIN / 2))
            self._waits_s[name] = again_s
        finally:
            self._rounds.discard(name)
            self._tell(name, problem)
            self._finish(name, again_s=again_s)

    def _finish(self, name: str, *, again_s: float | None = None) -> None:
        with self._changed:
            self._busy.discard(name)
            if again_s is not None:
                self._due.setdefault(name, time.monotonic() + again_s)
            self._changed.notify()

    def _tell(self, name: str, problem: str) -> None:
        if problem == self._problems.get(name, ""):
            return
        if problem:
            log.warning(line("kubernetes-start-held", name=name, why=problem))
            self._problems[name] = problem
        else:
            self._problems.pop(name, None)
        self._on_change(name)

    def _lift_all(self, name: str) -> None:
        """Record and lift what may start of a Job. Raises the first error after every pod was tried."""
        while (job := self._store.get(name)) is not None:
            view = self._watcher.view(name)
            never_ran = self._pods_never_ran(job, view.gone_pods)
            pods = [pod for pod in view.pods if not is_held(pod) or _is_startable(job, pod)]
            pods_to_start = choose_starts(pods, view.gone_pods, job.starts, never_ran=never_ran)
            uids = {index: pod.metadata.uid for index, pod in pods_to_start.items()}
            if new := {index: uid for index, uid in uids.items() if job.starts.get(index) != uid}:
                if not self._store.note_starts(name, new):
                    return
                self._unsent.update(new.values())
            # The watch may show a gate that was lifted a moment ago.
            if not self._lift_several([pod for pod in pods_to_start.values() if pod.metadata.uid not in self._lifted]):
                return

    def _lift_several(self, pods: Sequence[PodObject]) -> bool:
        """Whether a pod was gone before, so that another may start. Raises the first error after all were tried."""
        outcomes: list[YardError | bool] = []
        for first in range(0, len(pods), AT_ONCE):
            outcomes += call_in_parallel(self._lift, pods[first : first + AT_ONCE])
        if errors := [outcome for outcome in outcomes if isinstance(outcome, YardError)]:
            raise errors[0]
        return any(outcomes)

    def _note_lifted(self, uid: str) -> None:
        self._unsent.discard(uid)
        if len(self._lifted) > LIFTED_MAX:
            self._lifted.clear()  # at worst, a patch is sent that changes nothing
        self._lifted.add(uid)

    def _pods_never_ran(self, job: SubmittedJob, gone: Sequence[PodObject]) -> set[str]:
        """The uids of pods that certainly never ran. Raises if the API does not answer.

        A watch by labels also tells of a deletion if somebody took the labels off: a direct read decides.
        """
        recorded = set(job.starts.values())
        unplaced = self._watcher.unplaced_uids(job.name) & recorded - self._never_ran
        for pod in gone:
            if pod.metadata.uid in unplaced and self._is_absent(pod):
                self._never_ran.add(pod.metadata.uid)
        return self._never_ran & {*recorded, *(pod.metadata.uid for pod in gone)}

    def _is_absent(self, pod: PodObject) -> bool:
        try:
            return self._api.get_as(PodObject, pod_path(pod)).metadata.uid != pod.metadata.uid
        except ApiRefusal as exc:
            if _is_pod_absent(exc, pod):
                return True
            raise

    def _lift(self, pod: PodObject) -> YardError | bool:
        """Take the gate off a pod. True: the pod was gone before, so that another may start."""
        uid = pod.metadata.uid
        path = pod_path(pod)
        try:
            for _ in range(PATCH_TRIES):
                try:
                    answer = self._api.patch(path, _lifting(pod, self._api.server_time()), media=JSON_PATCH)
                    self._note_lifted(uid)
                    self._watcher.put_patched(msgspec.convert(answer, PodObject))
                    return False
                except ApiRefusal as exc:
                    if _is_pod_absent(exc, pod) or exc.is_right_missing:
                        raise
                    refusal = exc
                pod = self._api.get_as(PodObject, path)  # somebody changed it
                if pod.metadata.uid != uid or not is_held(pod):
                    return False
            return refusal
        except ApiRefusal as exc:
            if not _is_pod_absent(exc, pod):
                return exc
            if uid not in self._unsent:
                return False
            self._unsent.discard(uid)
            self._never_ran.add(uid)
            return True
        except ApiUnavailable as exc:
            if not exc.is_unsent:
                self._unsent.discard(uid)
            return exc
        except YardError as exc:
            self._unsent.discard(uid)
            return exc


def pod_path(pod: PodObject) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _is_pod_absent(exc: ApiRefusal, pod: PodObject) -> bool:
    """Whether the API server says that this pod is not there, and not only that it does not know the path."""
    return exc.is_absent and pod.metadata.name in exc.message


def _is_startable(job: SubmittedJob, pod: PodObject) -> bool:
    """Whether a pod with the gate is of this Job, and its task is to run."""
    if not is_held(pod):
        return False
    owners = {owner.uid for owner in pod.metadata.owner_references}
    fence = job.lease.fence + (start_index(pod) if job.size > 1 else 0)
    if (job.uid and job.uid not in owners) or job.is_forgotten:
        return False
    return fence not in job.stops and fence not in job.ends and fence not in job.refuted


def _lifting(pod: PodObject, now_s: float) -> list[dict[str, Any]]:
    """The patch that takes our gate off this pod, and off no other pod of its name."""
    place = next(at for at, gate in enumerate(pod.spec.scheduling_gates) if gate.name == START_GATE)
    note = STARTED_ANNOTATION.replace("/", "~1")
    at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    has_notes = bool(pod.metadata.annotations)
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {"op": "test", "path": f"/spec/schedulingGates/{place}/name", "value": START_GATE},
        {"op": "remove", "path": f"/spec/schedulingGates/{place}"},
        *([] if has_notes else [{"op": "add", "path": "/metadata/annotations", "value": {}}]),
        {"op": "add", "path": f"/metadata/annotations/{note}", "value": at},
    ]
