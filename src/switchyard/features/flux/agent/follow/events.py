"""The facts of a job, from the events of its eventlog (RFC 21). Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from switchyard.features.flux.agent.cluster.resource_sets import read_allocation
from switchyard.model.cluster.allocation import GivenResources

FATAL_SEVERITY = 0
WAIT_STATUS_MAX = 0xFFFF  # an exit code or a signal, in two bytes


class JobEvent(Struct, frozen=True):
    """One event. The last four fields are added by the agent to the last event of a job that had resources."""

    name: str
    timestamp: float
    context: dict[str, Any] = {}
    nodes: str = ""  # the host list of the job
    ranks: Any = None  # what it had on each rank: R_lite of its resource set
    task_status: Any = None  # wait status of the first task that failed, from a log that the job can write
    is_taskless: bool = False  # the job shell ended before it started a task


@dataclass(frozen=True, slots=True, kw_only=True)
class JobException:
    """The exception that ended a job."""

    type: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxJobFacts:
    """What the events of one job say."""

    phase: str = ""  # the name of the last event that changed the state
    started_s: float | None = None  # since 1970: its processes began
    finished_s: float | None = None  # since 1970: its processes ended
    ended_s: float | None = None  # since 1970: its resources are free again, and nothing follows
    wait_status: int | None = None  # of the job: the highest of its shells
    task_status: int | None = None  # of the first task that failed
    is_taskless: bool = False  # the job shell ended before it started a task
    exception: JobException | None = None  # the first fatal one
    nodes: str = ""
    allocated: GivenResources | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_s is not None


# The events that change the state, in their order. Others, such as those of plugins, are notes.
STATE_EVENTS = ("submit", "depend", "priority", "alloc", "start", "finish", "clean")


def apply_event(facts: FluxJobFacts, event: JobEvent) -> FluxJobFacts:
    """The facts after one more event. The first event of an eventlog is `submit`: facts begin anew with it."""
    if event.name == "submit":
        return FluxJobFacts(phase="submit")
    if event.name == "start":
        return replace(facts, phase="start", started_s=event.timestamp)
    if event.name == "finish":
        return replace(
            facts, phase="finish", finished_s=event.timestamp, wait_status=_wait_status(event.context.get("status"))
        )
    if event.name == "exception":
        return _apply_exception(facts, event)
    if event.name == "clean":
        return replace(
            facts,
            phase="clean",
            ended_s=event.timestamp,
            nodes=event.nodes,
            allocated=read_allocation(event.ranks),
            task_status=_wait_status(event.task_status),
            is_taskless=event.is_taskless,
        )
    # A job that has resources keeps them: a new priority does not take it back to the queue.
    is_step = event.name in STATE_EVENTS and STATE_EVENTS.index(event.name) > _step_of(facts)
    return replace(facts, phase=event.name) if is_step else facts


def _step_of(facts: FluxJobFacts) -> int:
    return STATE_EVENTS.index(facts.phase) if facts.phase else -1


def _apply_exception(facts: FluxJobFacts, event: JobEvent) -> FluxJobFacts:
    if event.context.get("severity") != FATAL_SEVERITY or facts.exception is not None:
        return facts
    exception = JobException(type=str(event.context.get("type", "")), note=str(event.context.get("note", "")))
    return replace(facts, exception=exception)


def _wait_status(value: object) -> int | None:
    """The value, if it is the wait status of a process that has ended."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= WAIT_STATUS_MAX:
        return None
    return value if os.WIFEXITED(value) or os.WIFSIGNALED(value) else None
