"""Runs a small job through a backend to its end, to prove that the batch system runs jobs."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from switchyard.agent.backends import TERMINAL_STATES, Backend, Status, native_name
from switchyard.agent.feature import CanaryAdvice, SmallJob
from switchyard.errors import YardError
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec, Resources
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.wire.ids import make_id

COMMON_PLACE = SmallJob()
CANARY_TEXT = "the canary sings"
MARKER_SEEN = "it sees the marker"
CANARY_POLL_S = 0.2
# for a job that was cancelled to be gone, and for its output to be seen over a network's file system
CANARY_CLEANUP_S = 30.0
OUTPUT_MAX = 4096


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The result; `is_ok` is None if it is not known."""

    is_ok: bool | None
    detail: str
    advice: str = ""
    is_marker_seen: bool | None = None  # None: the job printed nothing, or there was no marker


def run_canary(
    backend: Backend,
    *,
    owner: str,
    wait_s: float,
    marker: Path | None = None,
    place: SmallJob = COMMON_PLACE,
    advice: CanaryAdvice,
) -> CanaryResult:
    """Submit the job, wait for its end, read its output, and clean up. The job says whether it sees `marker`."""
    lease = _make_lease(owner, marker, place)
    result = _follow_canary(backend, lease, wait_s=wait_s, marker=marker, advice=advice)
    is_advised = advice.is_always and result.is_ok is not True and result.advice
    return replace(result, advice=advice.output) if is_advised else result


def _follow_canary(
    backend: Backend, lease: Lease, *, wait_s: float, marker: Path | None, advice: CanaryAdvice
) -> CanaryResult:
    begun = time.monotonic()
    try:
        native_id = backend.submit(lease)
    except YardError as exc:
        return CanaryResult(False, f"a job cannot be submitted: {exc.detail}", exc.next_step)
    name = native_name(native_id)
    status, silence = _wait_for_end(backend, native_id, wait_s)
    if status.seen not in TERMINAL_STATES:
        result = _not_ended(backend, native_id, status=status, silence=silence, wait_s=wait_s, advice=advice)
    elif status.seen is not ObservedState.SUCCEEDED:
        stderr = _read(backend, native_id, "stderr").decode(errors="replace").strip()
        beside = f"; it said: {stderr[-300:]}" if stderr else ""
        result = CanaryResult(
            False,
            f"job {name} was submitted and ended badly: {status.reason or status.text}{beside}",
            advice.output,
        )
    elif not _has_output(backend, native_id):
        result = CanaryResult(False, f"job {name} ran, but what it printed cannot be seen here", advice.output)
    else:
        took_s = time.monotonic() - begun
        is_seen = MARKER_SEEN.encode() in _read(backend, native_id, "stdout") if marker is not None else None
        detail = f"job {name} was submitted, ran, and its output came back in {took_s:.1f} s"
        result = CanaryResult(True, detail, is_marker_seen=is_seen)
    backend.forget(native_id)
    return result


def _make_lease(owner: str, marker: Path | None, place: SmallJob) -> Lease:
    # The text comes last: who reads it has read the line before it, too.
    script = f'if [ -e "$0" ]; then echo {MARKER_SEEN}; fi; echo {CANARY_TEXT}'
    command = ["/bin/sh", "-c", script, str(marker)] if marker is not None else ["/bin/echo", CANARY_TEXT]
    spec = JobSpec(command=command, resources=Resources(time_limit="5m"))
    job = make_id(time.time_ns() // 1000, secrets.randbits(80))
    return Lease(
        job=job,
        attempt=1,
        fence=1,
        name="yard-doctor",
        owner=owner,
        is_owner_admin=True,  # the doctor runs under the agent's account
        project=place.project,
        domain=place.domain,
        spec=spec,
    )


def _wait_for_end(backend: Backend, native_id: str, wait_s: float) -> tuple[Status, str]:
    """The last status, and the error if the cluster gave no newer one."""
    deadline = time.monotonic() + wait_s
    silence = ""
    while True:
        try:
            backend.refresh()
            silence = ""
        except YardError as exc:
            silence = exc.detail
        status = backend.status([native_id])[native_id]
        if status.seen in TERMINAL_STATES or time.monotonic() > deadline:
            return status, silence
        time.sleep(CANARY_POLL_S)


def _not_ended(
    backend: Backend, native_id: str, status: Status, silence: str, *, wait_s: float, advice: CanaryAdvice
) -> CanaryResult:
    name = native_name(native_id)
    try:
        backend.cancel([native_id])
        _wait_for_end(backend, native_id, CANARY_CLEANUP_S)
    except YardError as exc:
        return CanaryResult(
            False, f"job {name} was submitted, and then: {exc.detail}", advice.cancel.replace("{name}", name)
        )
    if silence:
        return CanaryResult(False, f"job {name} was submitted, and then: {silence}", advice.silent)
    if status.seen is ObservedState.RUNNING:
        return CanaryResult(False, f"job {name} began, and did not end within {wait_s:g} s", advice.slow)
    why = status.reason.rpartition(": ")[2] or status.text
    what_to_do = next((text for word, text in advice.waits.items() if why.startswith(word)), advice.queued)
    is_full = why.startswith(("Resources", "Priority"))
    return CanaryResult(
        None if is_full else False, f"job {name} did not begin within {wait_s:g} s; the cluster says: {why}", what_to_do
    )


def _has_output(backend: Backend, native_id: str) -> bool:
    deadline = time.monotonic() + CANARY_CLEANUP_S
    while CANARY_TEXT.encode() not in _read(backend, native_id, "stdout"):
        if time.monotonic() > deadline:
            return False
        time.sleep(CANARY_POLL_S)
    return True


def _read(backend: Backend, native_id: str, stream: str) -> bytes:
    try:
        return backend.output(native_id, stream, offset=0, size=OUTPUT_MAX).data
    except YardError:
        return b""
