"""Reports of an attempt, made from what the backend says of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from switchyard.agent.backends import Status, native_name
from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.need import spec_of
from switchyard.errors import Malformed
from switchyard.model.cluster.allocation import DIFFERENCES_MAX, WORDS_CHARS_MAX, GivenResources
from switchyard.model.cluster.hardware import GPU, read_hardware
from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.jobspec.constraint import Constraint, NodeTraits, read_constraint
from switchyard.model.jobspec.devices import Device, devices_of, typed_resources
from switchyard.model.jobspec.quantity import parse_amount
from switchyard.model.rules.names import printable_line

REASON_CHARS_MAX = 1000  # of a reason in a report; the log has all of it
NODES_MAX = 10_000  # compared with a constraint
ROUNDING = 1e-6


def end_attempt(attempt: Attempt, status: Status) -> AttemptChange:
    """End an attempt of which nothing runs any more. A stopped attempt is not reported."""
    if attempt.is_stopped:
        return AttemptChange(replace(attempt, stage=Stage.SETTLED))
    began: tuple[TimedReport, ...] = ()
    if attempt.stage is not Stage.RUNNING and status.began_ago_us is not None:
        began = reports_of(attempt, Status(seen=ObservedState.RUNNING, ago_us=status.began_ago_us))
    return AttemptChange(replace(attempt, stage=Stage.ENDED), began + reports_of(attempt, status))


def reports_of(attempt: Attempt, status: Status) -> tuple[TimedReport, ...]:
    if attempt.is_stopped:
        return ()
    # An end without a native id is a refusal: the server gives the job to another cluster.
    native_id = None if status.is_unbegun else attempt.native_id
    report = Report(
        job=attempt.lease.job,
        fence=attempt.lease.fence,
        seen=status.seen,
        native_id=native_name(native_id) if native_id else None,
        exit_code=status.exit_code,
        signal=status.signal,
        reason=(status.note or status.reason)[:REASON_CHARS_MAX],
        cause=status.cause,
        usage=checked_usage(attempt.lease, status.usage),
        failure=status.failure.value if status.failure is not None and status.seen is ObservedState.FAILED else None,
    )
    return (TimedReport(report, stamp(ago_us=status.ago_us)),)


def without_details(report: Report) -> Report:
    """The report as servers take it that know neither allocations nor kinds of failures yet."""
    usage = report.usage
    if usage is not None and usage.allocated is not None:
        usage = msgspec.structs.replace(usage, allocated=None)
    if usage is report.usage and report.failure is None:
        return report
    return msgspec.structs.replace(report, usage=usage, failure=None)


def end_fields(change: AttemptChange) -> dict[str, object]:
    """What the log says of an end."""
    if not change.reports:
        return {"seen": "stopped"}
    end = change.reports[-1].report
    return {"seen": end.seen, "exit_code": end.exit_code, "reason": end.reason or None}


def checked_usage(lease: Lease, usage: Usage | None) -> Usage | None:
    """The usage with the differences from what the job asked for."""
    if usage is None or usage.allocated is None:
        return usage
    found = tuple(words[:WORDS_CHARS_MAX] for words in _differences(spec_of(lease), usage, usage.allocated))
    if not found:
        return usage
    allocated = msgspec.structs.replace(usage.allocated, differs=found[:DIFFERENCES_MAX])
    return msgspec.structs.replace(usage, allocated=allocated)


def _differences(spec: JobSpec, usage: Usage, allocated: GivenResources) -> Iterator[str]:
    resources = typed_resources(spec)
    gpus = [device for device in devices_of(resources) if device.kind == GPU]
    asked_gpus = sum(device.count for device in gpus) * resources.tasks
    if allocated.gpus is not None and allocated.gpus < asked_gpus:
        yield f"{allocated.gpus} of {asked_gpus} GPUs"
    is_more = allocated.gpus is not None and allocated.gpus > asked_gpus
    for device in gpus:
        if words := _other_type(device, allocated.gpu_types, is_mixed=len(gpus) > 1 or is_more):
            yield words
    if allocated.cores is not None:
        asked_cores = float(parse_amount(resources.asked.cores)) * resources.tasks
        if allocated.cores < asked_cores - ROUNDING:
            yield f"{allocated.cores:g} of {asked_cores:g} cores"
    if usage.nodes and spec.demand is not None and (node := _forbidden_node(spec, usage.nodes)):
        yield printable_line(f"node {node}, which its constraint excludes")


def _other_type(device: Device, told: tuple[str, ...], *, is_mixed: bool) -> str:
    """Say which type it has in place of the asked one. `is_mixed`: it may have further GPUs of other types."""
    if not told or not (device.type or device.memory_mb):
        return ""
    unmet = [name for name in told if not _is_met(device, name)]
    if not unmet or (is_mixed and len(unmet) < len(told)):
        return ""
    asked = device.spelling or f"with at least {device.memory_mb / 1000:g} GB"
    return f"GPUs {', '.join(unmet)} instead of {asked}"


def _is_met(device: Device, name: str) -> bool:
    """Whether a GPU of this name may be the device: a name that tells no memory contradicts no amount of it."""
    hardware = read_hardware(name)
    is_type = device.type in ("", hardware.name)
    return is_type and (not hardware.memory_mb or hardware.memory_mb >= device.memory_mb)


def _forbidden_node(spec: JobSpec, nodes: str) -> str:
    """The first node that the job's constraint on host names excludes; empty: there is none, or it is not known."""
    attributes = (spec.demand or {}).get("attributes") or {}
    try:
        constraint = read_constraint((attributes.get("system") or {}).get("constraints"), where="constraints")
        if constraint is None or not _is_by_host(constraint):
            return ""
        runs = parse_hosts(nodes)
    except (AttributeError, Malformed, ValueError):
        return ""
    if sum(map(len, runs)) > NODES_MAX:
        return ""
    return next((host for host in expand_hosts(runs) if not constraint.allows(NodeTraits({}, host))), "")


def _is_by_host(constraint: Constraint) -> bool:
    """Whether it is about host names alone: properties and ranks are not known here."""
    if constraint.operator in ("properties", "ranks"):
        return False
    return all(map(_is_by_host, constraint.parts))
