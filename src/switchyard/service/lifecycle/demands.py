"""Convert a job's resources, in any form, to one demand. The image's compatibility is added as node requirements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand, Need, NeedKind, walk_needs
from switchyard.match.nextgen_jobspec import demand_of_nextgen
from switchyard.match.plain_demand import demand_of_resources
from switchyard.match.requirement import Requirement, requirements_of
from switchyard.model.cluster.hardware import GPU
from switchyard.model.job.image_compatibility import SYSTEM_SUBSYSTEM, Compatibility, architecture_of
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.alternatives import sets_of, spec_with_set
from switchyard.model.jobspec.devices import devices_of, typed_resources
from switchyard.model.jobspec.structure import check_canonical, check_dictionary
from switchyard.model.jobspec.tasks import check_task_counts, check_task_group

DEMANDS_CACHE_MAX = 1024  # most jobs of a user differ only in their command

# Vertex type and unit → name in task resources.
_RESOURCE_NAMES = {
    ("core", ""): "cpu",
    ("gpu", ""): "gpu",
    ("memory", "B"): "memory",
    ("storage", "B"): "ephemeral_storage",
}

_encoder = msgspec.json.Encoder(order="deterministic")


def demand_of_spec(spec: JobSpec) -> Demand:
    """Return the demand of a job with plain resources or with a jobspec."""
    requires = tuple(_requirement(need) for need in spec.compatibility) if spec.compatibility else ()
    resources = typed_resources(spec)
    if spec.demand is None:
        return demand_of_resources(resources, requires)
    demand = demand_of_any_jobspec(spec.demand, requires)
    if not resources.gpu_type and not resources.gpu_memory:
        return demand
    asked = requirements_of(devices_of(resources)[0])
    return replace(demand, needs=tuple(_with_gpu_type(need, asked) for need in demand.needs))


def demands_of_sets(spec: JobSpec) -> tuple[Demand, ...]:
    """Return the demand of each alternative, in the job's order; of a job without alternatives: its one demand."""
    return tuple(demand_of_spec(spec_with_set(spec, number)) for number, _ in enumerate(sets_of(spec), 1))


@lru_cache(maxsize=DEMANDS_CACHE_MAX)
def largest_task(demand: Demand) -> Mapping[str, int]:
    """Return the most of each resource that one task requests. A task is a slot, or a top vertex without slots."""
    largest: dict[str, int] = {}
    for task in _tasks(demand.needs):
        amounts: dict[str, int] = {}
        for need, count in walk_needs((replace(task, count=1),)):
            if (name := _RESOURCE_NAMES.get((need.type, need.unit))) is not None:
                amounts[name] = amounts.get(name, 0) + count
        largest = {name: max(largest.get(name, 0), amounts.get(name, 0)) for name in (*largest, *amounts)}
    return largest


def _tasks(needs: tuple[Need, ...]) -> Iterator[Need]:
    """Yield the outermost slots, and each top vertex without its slots."""
    yield from _slots(needs)
    yield from (_without_slots(need) for need in needs if need.kind is not NeedKind.SLOT)


def _slots(needs: tuple[Need, ...]) -> Iterator[Need]:
    for need in needs:
        if need.kind is NeedKind.SLOT:
            yield need
        else:
            yield from _slots(need.holds)


def _without_slots(need: Need) -> Need:
    return replace(need, holds=tuple(_without_slots(inner) for inner in need.holds if inner.kind is not NeedKind.SLOT))


def check_jobspec(form: Mapping[str, Any]) -> None:
    """Raise Malformed if the form is no jobspec, as `yard submit` would say it.

    A form with neither tasks nor attributes asks for resources alone. Rainbow's clients ask so whether a job would fit.
    """
    _check(form, "the jobspec", is_whole="tasks" in form or "attributes" in form)


def check_demand(form: Mapping[str, Any]) -> None:
    """Raise Malformed if the form is no part of a jobspec. Jobs that were accepted before are not checked again."""
    _check(form, "the demand", is_whole=False, is_job=True)


def _check(form: Mapping[str, Any], where: str, *, is_whole: bool, is_job: bool = False) -> None:
    """Rainbow's dictionaries have rules of their own, which their reader checks. `is_job`: its command will run."""
    try:
        if isinstance(form.get("resources"), Mapping):
            check_dictionary(form, is_whole=False)
            if is_job:
                check_task_group(form)
        else:
            check_canonical(form, is_whole=is_whole)
            if is_job:
                check_task_counts(form)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}", next_step=exc.next_step) from exc


def demand_of_any_jobspec(form: Mapping[str, Any], requires: tuple[Requirement, ...] = ()) -> Demand:
    """Return the demand of a jobspec: Rainbow's names its groups of resources, Flux's lists them."""
    try:
        return _read(_encoder.encode(form), requires)
    except RecursionError as exc:
        raise Malformed("The demand is nested too deeply.") from exc


@lru_cache(maxsize=DEMANDS_CACHE_MAX)
def _read(body: bytes, requires: tuple[Requirement, ...]) -> Demand:
    form = msgspec.json.decode(body)
    is_dictionary = isinstance(form.get("resources"), Mapping)
    demand = (demand_of_nextgen if is_dictionary else demand_of_jobspec)(form, where="the demand")
    if not requires:
        return demand
    return replace(demand, needs=tuple(_with_requirements(need, requires) for need in demand.needs))


def _with_gpu_type(need: Need, asked: tuple[Requirement, ...]) -> Need:
    """Ask for a type of all GPUs for which the jobspec itself names none."""
    if need.type == GPU and not need.hardware:
        return replace(need, requires=(*need.requires, *asked))
    return replace(need, holds=tuple(_with_gpu_type(inner, asked) for inner in need.holds)) if need.holds else need


def _with_requirements(need: Need, requires: tuple[Requirement, ...]) -> Need:
    """Add node requirements to each node, or to each slot that holds no nodes, since such a slot lies within one."""
    if need.type == "node" or (need.kind is NeedKind.SLOT and not _has_node(need)):
        return replace(need, requires=(*need.requires, *requires))
    if not need.holds:
        raise Malformed(
            f"The demand asks for {need.type[:64]} outside of any node or slot, so nothing can be asked of its node.",
            next_step="Put the resources into a slot or a node, or leave the compatibility out.",
        )
    if need.kind is NeedKind.SLOT:  # what else it holds, such as storage, lies beside its nodes
        holds = [_with_requirements(inner, requires) if _has_node(inner) else inner for inner in need.holds]
    else:
        holds = [_with_requirements(inner, requires) for inner in need.holds]
    return replace(need, holds=tuple(holds))


def _has_node(need: Need) -> bool:
    return any(inner.type == "node" for inner, _ in walk_needs((need,)))


def _requirement(need: Compatibility) -> Requirement:
    equals = None if need.equals is None else _text(need.equals)
    if need.field == "architecture" and equals is not None:
        equals = architecture_of(equals)
    return Requirement(
        SYSTEM_SUBSYSTEM,
        need.field,
        match=equals,
        min=None if need.min is None else str(need.min),
        max=None if need.max is None else str(need.max),
    )


def _text(value: bool | float | str) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
