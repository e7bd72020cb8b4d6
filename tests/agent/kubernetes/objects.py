"""Jobs, pods and events as an API server shows them: everything defaulted but what matters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from switchyard.features.kubernetes.agent.namespaces.objects import EventObject, JobObject, PodObject
from switchyard.features.kubernetes.agent.pods.labels import START_GATE

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
NOW_S = NOW.timestamp()
JOB_UID = "job-uid"
Body = dict[str, Any]


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_condition(kind: str, reason: str = "", message: str = "", *, status: str = "True", at: float = 1) -> Body:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": ago(at)}


def a_job(
    *conditions: Body,
    status: Body | None = None,
    spec: Body | None = None,
    labels: dict[str, str] | None = None,
    **metadata: Any,
) -> JobObject:
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "yard-x-1-1", "namespace": "ns", "uid": JOB_UID, "labels": labels or {}, **metadata},
        "spec": {"completions": 1, "parallelism": 1, **(spec or {})},
        "status": {"conditions": list(conditions), "uncountedTerminatedPods": {}, **(status or {})},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=JobObject)


def running(since: float = 30) -> Body:
    return {"running": {"startedAt": ago(since)}}


def waiting(reason: str, message: str = "") -> Body:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error", message: str = "", *, began: float = 30, ended: float = 10) -> Body:
    times = {"startedAt": ago(began), "finishedAt": ago(ended)}
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **times}}


def a_pod(
    phase: str,
    state: Body | None = None,
    *conditions: Body,
    node: str = "n1",
    index: int | None = None,
    uid: str = "",
    created: float = 60,
    deleted: float | None = None,
    init: Body | None = None,
    limits: dict[str, str] | None = None,
    is_held: bool = False,
    gates: Sequence[str] = (),
    **status: Any,
) -> PodObject:
    """`deleted`: so many seconds ago somebody asked to delete it, with 30 s of grace.

    `is_held`: it has the agent's scheduling gate. `gates`: those of others.
    """
    meta: Body = {
        "name": f"pod-{index}-{created}",
        "uid": uid or f"uid-{index}-{created}",
        "creationTimestamp": ago(created),
    }
    meta["labels"] = {"batch.kubernetes.io/job-name": "yard-x-1-1"}
    if index is not None:
        meta["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    if deleted is not None:
        meta |= {"deletionTimestamp": ago(deleted - 30), "deletionGracePeriodSeconds": 30}
    rows = [] if state is None else [{"name": "main", "state": state, "ready": False, "restartCount": 0}]
    body = {
        "metadata": meta,
        "spec": {
            "nodeName": node,
            "schedulingGates": [{"name": name} for name in (*gates, *([START_GATE] if is_held else []))],
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits or {}}}],
        },
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "containerStatuses": rows,
            "initContainerStatuses": [] if init is None else [{"name": "prepare", "state": init}],
            "startTime": ago(created),
            **status,
        },
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=PodObject)


def an_event(reason: str, message: str, *, uid: str, first: float = 100, last: float = 5) -> EventObject:
    body = {
        "metadata": {"name": "e", "creationTimestamp": ago(first)},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "firstTimestamp": ago(first),
        "lastTimestamp": ago(last),
        "eventTime": None,
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=EventObject)
