"""The alternatives of a job: sets of resources in order of preference, numbered from 1. `resources` is the first. Pure.

A cluster is handed the job with one set alone, so agents and backends know nothing of the others.
"""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.model.job.job import JobSpec, Limits, Resources

VARIABLE = "YARD_ALTERNATIVE"  # tells the job the number of its set
NAME_CHARS_MAX = 60


def sets_of(spec: JobSpec) -> tuple[Resources, ...]:
    return (spec.resources, *spec.alternatives)


def spec_with_set(spec: JobSpec, number: int) -> JobSpec:
    """Return the job as if this set were the only one."""
    return replace(spec, resources=read_set(spec, number), alternatives=())


def spec_for_cluster(spec: JobSpec, number: int) -> JobSpec:
    """Return the job as a cluster gets it: with one set, and the set's number in the environment."""
    return replace(spec_with_set(spec, number), env=spec.env | {VARIABLE: str(number)})


def read_set(spec: JobSpec, number: int) -> Resources:
    """Return a set by its number. Raise LookupError if the job has no such set."""
    sets = sets_of(spec)
    if not 1 <= number <= len(sets):
        raise LookupError(f"there is no alternative {number} of {len(sets)}")
    return sets[number - 1]


def set_names(spec: JobSpec) -> tuple[str, ...]:
    """Name each set by what the sets differ in: `h100:2` and `a100-80gb:4`, or `8 cores, 64G memory`."""
    words = [_words(resources) for resources in sets_of(spec)]
    differing = [kind for kind in words[0] if len({named[kind] for named in words}) > 1]
    names = (", ".join(filter(None, (named[kind] for kind in differing))) for named in words)
    return tuple(name[:NAME_CHARS_MAX] or f"alternative {number}" for number, name in enumerate(names, 1))


def _words(resources: Resources) -> dict[str, str]:
    asked = resources.asked
    memory = f" of {resources.gpu_memory}" if resources.gpu_memory is not None else ""
    gpus = f"{resources.gpu_type or 'gpu'}:{asked.gpus}{memory}" if asked.gpus else "no gpu"
    limits = ", ".join(f"{name} {value}" for name in Limits.__struct_fields__ if (value := _limit(resources, name)))
    return {
        "gpus": gpus,
        "devices": " ".join(resources.devices),
        "tasks": _count(resources.tasks, "task"),
        "nodes": "" if resources.nodes is None else _count(resources.nodes, "node"),
        "cores": _count(asked.cores, "core"),
        "memory": f"{asked.memory} memory" if asked.memory else "",
        "storage": f"{asked.ephemeral_storage} storage" if asked.ephemeral_storage else "",
        "limits": f"limits {limits}" if limits else "",
        "time": "" if resources.time_limit is None else f"time limit {resources.time_limit}",
    }


def _count(count: int | float | str, word: str) -> str:
    return f"{count} {word}{'' if str(count) == '1' else 's'}"


def _limit(resources: Resources, name: str) -> str:
    """A limit that is not just the request: rules make limits of requests."""
    value = getattr(resources.limits, name)
    return "" if value is None or str(value) == str(getattr(resources.asked, name)) else str(value)
