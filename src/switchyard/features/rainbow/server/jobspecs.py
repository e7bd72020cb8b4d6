"""Reads jobspecs as Rainbow's clients write them, and writes them for clusters that only poll. Pure."""

from __future__ import annotations

import shlex
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.model.cluster.hardware import MEMORY_FIELD, OWN_SUBSYSTEM, TYPE_FIELD
from switchyard.model.cluster.selection import Select
from switchyard.model.job.devices import devices_of, typed_resources
from switchyard.model.job.job import ClusterToken, JobRequest, JobSpec, Resources
from switchyard.model.jobspec.jobspec import from_jobspec
from switchyard.model.jobspec.quantity import parse_amount, parse_bytes, parse_duration_s
from switchyard.model.rules.names import Title
from switchyard.model.wire.decode import convert, load_yaml
from switchyard.service.run.pollers import ANSWER_BYTES, Handover

JOBSPEC_NAME = "the jobspec"
BYTES_MAX = 8 * 2**20  # as any job
RECEIVED_BYTES_MAX = ANSWER_BYTES - 16 * 1024  # less the job's name and the like
VALUES_MAX = 100_000  # YAML aliases repeat a list without writing it again
CACHED_BYTES_MAX = 64 * 1024  # the cache below holds a thousand jobspecs of this size
_SPEC = frozenset(JobSpec.__struct_fields__) - {"resources"}
_RESOURCES = frozenset(Resources.__struct_fields__)


def read_request(
    text: str, *, name: str, clusters: list[ClusterToken], algorithm: str, options: dict[str, str]
) -> JobRequest:
    """Make a job request from a request of Rainbow's clients."""
    read = _read if len(text) <= CACHED_BYTES_MAX else _read.__wrapped__
    request = read(text)
    select = None
    if algorithm:
        # Rainbow's `random` accepts options and ignores them.
        select = convert(
            {"name": algorithm, "options": {} if algorithm == "random" else options}, Select, where="select_algorithm"
        )
    changes: dict[str, Any] = {"clusters": clusters, "select": select}
    if name:
        changes["name"] = convert(name, Title, where="name")
    return msgspec.structs.replace(request, **changes)


@lru_cache(maxsize=1024)
def _read(text: str) -> JobRequest:
    """Make a job request from a jobspec. Cached: most submits repeat a jobspec."""
    if len(text) > BYTES_MAX:
        raise Malformed(f"{JOBSPEC_NAME} is over {BYTES_MAX} bytes.")
    form = load_yaml(text, where=JOBSPEC_NAME, nodes_max=VALUES_MAX)
    if not isinstance(form, dict):
        raise Malformed(f"{JOBSPEC_NAME} is not a mapping with version, resources and tasks.")
    try:
        form = msgspec.json.decode(msgspec.json.encode(form))  # keys that look like numbers become strings
    except TypeError as exc:
        raise Malformed(f"{JOBSPEC_NAME} has a key that is no text: {exc}.") from exc
    plain = from_jobspec(form, where=JOBSPEC_NAME).plain
    spec: dict[str, Any] = {key: value for key, value in plain.items() if key in _SPEC}
    spec["resources"] = {key: value for key, value in plain.items() if key in _RESOURCES}
    rest = {key: value for key, value in plain.items() if key not in _SPEC | _RESOURCES}
    request = convert({"spec": spec, **rest}, JobRequest, where=JOBSPEC_NAME)
    if len(msgspec.json.encode([text, shlex.join(request.spec.command)])) > RECEIVED_BYTES_MAX:
        raise Malformed(
            f"{JOBSPEC_NAME} is over what a cluster can receive in one answer ({RECEIVED_BYTES_MAX} bytes of JSON).",
            next_step="Put what is large in a file that the job reads.",
        )
    return request


def received_job(handed: Handover) -> str:
    """Encode a job for a cluster as JSON: with its own jobspec, or with an equivalent one."""
    lease = handed.lease
    spec = lease.spec if isinstance(lease.spec, JobSpec) else msgspec.json.decode(lease.spec, type=JobSpec)
    form = {
        "id": handed.number,
        "cluster": lease.cluster,
        "name": lease.name,
        "jobspec": handed.jobspec if handed.jobspec is not None else jobspec_of(spec, lease.name),
        "command": shlex.join(spec.command),
    }
    return msgspec.json.encode(form).decode()


def jobspec_of(spec: JobSpec, name: str) -> str:
    """Write a plain job as a jobspec, in JSON, which is also YAML."""
    form: dict[str, Any] = (
        dict(spec.demand) if spec.demand is not None else {"version": 1, "resources": {"job": _group(spec)}}
    )
    tasks = form.get("tasks") or [{"resources": "job"}]
    form["tasks"] = [{"command": spec.command, **tasks[0]}]
    system: dict[str, object] = {}
    if spec.env:
        system["environment"] = spec.env
    if spec.cwd is not None:
        system["cwd"] = spec.cwd
    if spec.resources.time_limit is not None:
        system["duration"] = parse_duration_s(spec.resources.time_limit)
    attributes = form.get("attributes") or {}
    if system:
        form["attributes"] = {**attributes, "system": {**attributes.get("system", {}), **system}}
    if isinstance(form["resources"], dict):
        form["name"] = name
    else:
        form.setdefault("version", 1)
        form.setdefault("attributes", {})  # RFC 14 wants them, if only empty
    return msgspec.json.encode(form).decode()


def _group(spec: JobSpec) -> dict[str, object]:
    """One slot per task, or one node with its share of them."""
    resources, asked = spec.resources, spec.resources.asked
    tasks = ceil(resources.tasks / resources.nodes) if resources.nodes else 1
    parts: list[dict[str, object]] = [{"type": "core", "count": ceil(parse_amount(asked.cores) * tasks)}]
    for device in devices_of(typed_resources(spec)):
        requires = [
            {"name": OWN_SUBSYSTEM, "field": field, **bound}
            for field, value, bound in (
                (TYPE_FIELD, device.type, {"match": device.type}),
                (MEMORY_FIELD, device.memory_mb, {"min": str(device.memory_mb)}),
            )
            if value
        ]
        part: dict[str, object] = {"type": device.kind, "count": device.count * tasks}
        parts.append(part | ({"requires": requires} if requires else {}))
    for kind, size in (("memory", asked.memory), ("storage", asked.ephemeral_storage)):
        if size_bytes := parse_bytes(size):
            parts.append({"type": kind, "count": size_bytes * tasks, "unit": "B"})
    if resources.nodes:
        return {"type": "node", "replicas": resources.nodes, "with": parts}
    return {"type": "slot", "replicas": resources.tasks, "with": parts}
