"""More memory and time for the retry of a job, up to the bounds of its policy and of its rules. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.failures.asked_resources import AskedResources
from switchyard.model.failures.retry_rule import RetryRule, raised_amount, read_factor
from switchyard.model.job.job import JobRequest, Resources
from switchyard.model.jobspec.quantity import (
    BYTES_MAX,
    DURATION_S_MAX,
    ceil_fraction,
    parse_bytes,
    parse_duration_s,
    show_duration,
)

_OF_ARRAY = "the tasks of an array all ask for the same: no retry can ask for more. Leave out the raise, or the array"
_OF_ALTERNATIVES = "a job with alternatives asks for one of its sets as it is. Leave out the raise, or the alternatives"


class MemoryBound(NamedTuple):
    """The most memory that the rules allow a task, and the rule in words."""

    amount: int | float | str
    source: str


@dataclass(frozen=True, slots=True)
class Raise:
    """The resources of the next attempt. `note`: what is raised, and what stops the raise."""

    resources: Resources
    note: str


def asked_of(resources: Resources) -> AskedResources:
    memory, limit = resources.memory, resources.limits.memory
    most = limit if limit != memory else None
    return AskedResources(memory if memory is not None else limit, most, resources.time_limit)


def raise_resources(resources: Resources, rule: RetryRule, bound: MemoryBound | None) -> Raise:
    """Return the resources that a rule gives to the next attempt. `bound`: what the rules of its project allow."""
    notes: list[str] = []
    before = asked_of(resources).memory
    if rule.memory is not None and before is not None:
        most, why = _most_memory(rule, bound)
        factor, memory, limit = read_factor(rule.memory), resources.memory, resources.limits.memory
        limits = resources.limits
        if limit is not None:
            limits = replace(limits, memory=_raised(limit, factor, most))
        resources = replace(resources, memory=_raised(memory, factor, most), limits=limits)
        after = asked_of(resources).memory or 0
        is_bounded = parse_bytes(after) < parse_bytes(before) * factor
        notes.append(_note("memory", before, after, stop=why if is_bounded else ""))
    if rule.time is not None and resources.time_limit is not None:
        before_s, factor = parse_duration_s(resources.time_limit), read_factor(rule.time)
        most_s = parse_duration_s(rule.time_max) if rule.time_max is not None else DURATION_S_MAX
        after_s = max(before_s, min(ceil_fraction(before_s * factor), most_s))
        time_limit = resources.time_limit if after_s == before_s else show_duration(after_s)
        stop = f"its time_max is {rule.time_max}" if after_s < before_s * factor else ""
        notes.append(_note("time limit", resources.time_limit, time_limit, stop=stop))
        resources = replace(resources, time_limit=time_limit)
    return Raise(resources, "; ".join(notes))


def _most_memory(rule: RetryRule, bound: MemoryBound | None) -> tuple[int | float | str, str]:
    """The lower of the two bounds, and where it is from."""
    bounds: list[tuple[int | float | str, str]] = [(BYTES_MAX, "there is no more")]
    if rule.memory_max is not None:
        bounds.append((rule.memory_max, f"its memory_max is {rule.memory_max}"))
    if bound is not None:
        bounds.append((bound.amount, bound.source))
    return min(bounds, key=lambda pair: parse_bytes(pair[0]))


def _raised(amount: int | float | str | None, factor: Fraction, most: int | float | str) -> int | float | str | None:
    """The raised amount, at most `most`, and never less than before. None: nothing is asked for."""
    if amount is None or parse_bytes(amount) >= parse_bytes(most):
        return amount
    size = parse_bytes(amount) * factor
    return most if size >= parse_bytes(most) else raised_amount(amount, factor)


def _note(name: str, before: object, after: object, *, stop: str) -> str:
    """`stop`: what bounded the raise; empty: nothing did."""
    words = f"{name} stays at {before}" if before == after else f"{name} {after} instead of {before}"
    return f"{words}: {stop}" if stop else words


def refuse_impossible_raises(request: JobRequest) -> None:
    """Refuse a policy whose raises cannot be: of what the job does not ask for, or up to less than it asks for.

    The rules have filled in what the request omits.
    """
    for kind, rule in request.spec.retry.on.items():
        if problem := _memory_problem(request, rule) or _time_problem(request, rule):
            raise BadRequest(f"retry.on: {kind}: {problem}.", next_step="Change `retry.on`, or what the job asks for.")


def possible_rules(request: JobRequest, rules: Mapping[str, RetryRule]) -> dict[str, RetryRule]:
    """Return rules that are not the job's own, without the raises that this job cannot have."""
    return {
        kind: rule.without_raise(memory=bool(_memory_problem(request, rule)), time=bool(_time_problem(request, rule)))
        for kind, rule in rules.items()
    }


def _memory_problem(request: JobRequest, rule: RetryRule) -> str:
    if rule.memory is None:
        return ""
    asked = asked_of(request.spec.resources).memory
    if request.array is not None:
        return _OF_ARRAY
    if request.spec.alternatives:
        return _OF_ALTERNATIVES
    if request.spec.demand is not None:
        return "memory cannot be raised of a job that says in `demand` what it asks for"
    if asked is None:
        return "memory is to be raised, and the job asks for none: give it a `memory`"
    if rule.memory_max is not None and parse_bytes(rule.memory_max) < parse_bytes(asked):
        return f"memory_max ({rule.memory_max}) is below what the job asks for ({asked})"
    return ""


def _time_problem(request: JobRequest, rule: RetryRule) -> str:
    if rule.time is None:
        return ""
    asked = request.spec.resources.time_limit
    if request.array is not None:
        return _OF_ARRAY
    if request.spec.alternatives:
        return _OF_ALTERNATIVES
    if asked is None:
        return "the time limit is to be raised, and the job has none: give it a `time_limit`"
    if rule.time_max is not None and parse_duration_s(rule.time_max) < parse_duration_s(asked):
        return f"time_max ({rule.time_max}) is below its time limit ({asked})"
    return ""
