"""A small job through a backend, to its end: the only proof that a batch system runs what it is given."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from switchyard.agent.backends import TERMINAL_STATES, Backend, Status, native_name
from switchyard.errors import YardError
from switchyard.model.ids import make_id
from switchyard.model.job import JobSpec, Resources
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Lease

CANARY_TEXT = "the canary sings"
CANARY_POLL_S = 0.2
# for a job that was cancelled to be gone, and for its output to be seen over a network's file system
CANARY_CLEANUP_S = 30.0
OUTPUT_MAX = 4096
SHARED_FOLDER_ADVICE = "Name a folder that the nodes share with this machine: `slurm: {folder: /…}` in the site's file."
# Why Slurm lets a job wait, by how its word begins, and what to do about it.
PENDING_ADVICE = {
    "Resources": "Nothing is wrong: the cluster is full. Try again later, or give --wait more time.",
    "Priority": "Nothing is wrong: others are before it. Try again later, or give --wait more time.",
    "Partition": "The default partition is closed or too small: see `scontrol show partition`.",
    "ReqNodeNotAvail": "Its nodes are down, drained or reserved: see `sinfo -R`.",
    "Assoc": "The account's limits are reached, or it may not run here: see `sacctmgr show assoc`.",
    "Account": "Slurm wants another account: `slurm: {account: …}` in the site's file.",
    "InvalidAccount": "Slurm does not know the account: `slurm: {account: …}` in the site's file, or sacctmgr.",
    "InvalidQOS": "Slurm does not know the quality of service: see `sacctmgr show qos`.",
    "QOS": "A limit of the quality of service is reached: see `sacctmgr show qos`.",
    "JobHeld": "The site holds new jobs: ask who runs the cluster, or `scontrol release`.",
    "Licenses": "The licences it needs are taken.",
    "BadConstraints": "No node has what it asks for.",
}


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """How it went; `is_ok` none: it cannot be told."""

    is_ok: bool | None
    detail: str
    advice: str = ""


def run_canary(backend: Backend, *, owner: str, wait_s: float) -> CanaryResult:
    """Submit, wait for its end, read its output, and leave nothing behind."""
    lease = _make_lease(owner)
    begun = time.monotonic()
    try:
        native_id = backend.submit(lease)
    except YardError as exc:
        return CanaryResult(False, f"a job cannot be submitted: {exc.detail}", exc.next_step)
    name = native_name(native_id)
    status, silence = _wait_for_end(backend, native_id, wait_s)
    if status.seen not in TERMINAL_STATES:
        song = _not_ended(backend, native_id, status, silence, wait_s)
    elif status.seen is not ObservedState.SUCCEEDED:
        said = _read(backend, native_id, "stderr").decode(errors="replace").strip()
        beside = f"; it said: {said[-300:]}" if said else ""
        song = CanaryResult(
            False,
            f"job {name} was submitted and ended badly: {status.reason or status.text}{beside}",
            SHARED_FOLDER_ADVICE,
        )
    elif not _has_output(backend, native_id):
        song = CanaryResult(False, f"job {name} ran, but what it printed cannot be seen here", SHARED_FOLDER_ADVICE)
    else:
        song = CanaryResult(
            True, f"job {name} was submitted, ran, and its output came back in {time.monotonic() - begun:.1f} s"
        )
    backend.forget(native_id)
    return song


def _make_lease(owner: str) -> Lease:
    spec = JobSpec(command=["/bin/echo", CANARY_TEXT], resources=Resources(time_limit="5m"))
    job = make_id(time.time_ns() // 1000, secrets.randbits(80))
    return Lease(
        job=job,
        attempt=1,
        fence=1,
        name="yard-doctor",
        owner=owner,
        is_owner_admin=True,  # who runs the doctor runs the agent
        project="default",
        domain="development",
        spec=spec,
    )


def _wait_for_end(backend: Backend, native_id: str, wait_s: float) -> tuple[Status, str]:
    """Its last status, and why the cluster told nothing newer, if so."""
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


def _not_ended(backend: Backend, native_id: str, status: Status, silence: str, wait_s: float) -> CanaryResult:
    name = native_name(native_id)
    try:
        backend.cancel([native_id])
        _wait_for_end(backend, native_id, CANARY_CLEANUP_S)
    except YardError as exc:
        return CanaryResult(
            False, f"job {name} was submitted, and then: {exc.detail}", f"Cancel it by hand: scancel {name}"
        )
    if silence:
        return CanaryResult(
            False, f"job {name} was submitted, and then: {silence}", "See whether slurmctld runs: `scontrol ping`."
        )
    if status.seen is ObservedState.RUNNING:
        return CanaryResult(
            False, f"job {name} began, and did not end within {wait_s:g} s", "See `sinfo -R` and the node's log."
        )
    why = status.reason.rpartition(": ")[2] or status.text
    advice = next(
        (text for word, text in PENDING_ADVICE.items() if why.startswith(word)), "See `squeue` for the reason."
    )
    is_full = why.startswith(("Resources", "Priority"))
    return CanaryResult(
        None if is_full else False, f"job {name} did not begin within {wait_s:g} s; the cluster says: {why}", advice
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
