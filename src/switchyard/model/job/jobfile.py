"""The JSON Schema of a job file, the plain form that people write: made from the very types that check it. Pure."""

from __future__ import annotations

from typing import Any

from switchyard.model.job.job import ALTERNATIVES_MAX, JobRequest, JobSpec, Resources
from switchyard.model.wire.schema import schemas_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "A Switchyard job file"
ABOUT = "What `yard submit -f FILE` reads. Every field but `command` may be left out."
# Shown by editors beside a field; where the type says enough there is none.
FIELD_DESCRIPTIONS = {
    "command": "the program and its arguments: a list of words, or one line split as a shell would",
    "name": "what to call it; else the program's name",
    "project": "where it belongs (default: default)",
    "domain": "development, staging, production or what the server has (default: development)",
    "workflow": "the workflow it belongs to; rules may be set for one",
    "launch_plan": "the launch plan of that workflow",
    "pool": "only clusters of this pool",
    "cluster_label": "only clusters with this label",
    "tags": "of the queue it should wait in",
    "quality_of_service": "how long it may wait before it is reported late: a tier, or a queueing_budget",
    "tokens": "what it holds of token pools from its assignment to its end: {matlab: 1}",
    "task_type": "what plugin overrides go by (default: default)",
    "native": "told to the batch system: account, qos, reservation, constraint, licenses, gpu_type, exclusive, options",
    "execution": "how it is executed, where its rules are not to say: max_parallelism, envs, annotations, …",
    "priority": "higher goes first (default 0)",
    "labels": "free names and values to find it by",
    "cluster": "only this cluster",
    "clusters": "submit tokens of clusters; else those of your own file",
    "array": "a task for each index, e.g. 0-999%50: at most 50 at once",
    "together": "keep all tasks of the array on one cluster; else every eligible cluster takes tasks as it has room",
    "after": "begin after these jobs: ID, ID:ok, ID:any or ID:notok",
    "hold": "wait until `yard release`",
    "expires_after": "not begun by then: it fails; 90, 15m, 1h30m, 2d or 1:30:00",
    "in": "local files and folders to send, from this file's folder on: PATH, PATH:NAME, or names with paths",
    "workdir": "a local folder that becomes the job's folder, without what its .yardignore names",
    "out": "patterns of files in the job's folder that are kept at its end: results/*, **/*.csv",
    "out_required": "the job has failed if there is no file for a pattern of `out` (default false)",
    "site": "what the cluster's site file gives to the job: a place for data, and secrets by name",
    "pod": "further parts of its pod in Kubernetes' words, where the site allows them; no other cluster takes them",
    "files": "trees that were uploaded before, by their SHA-256, and the patterns of output files",
    "env": "the environment it adds",
    "cwd": "where it runs, on the cluster",
    "image": "container image, run as each cluster's rules say; oci:PATH[:TAG] is a layout on disk, read at submit",
    "compatibility": "what the image needs of a node's system: field, and equals, min or max",
    "demand": "resources as a canonical jobspec has them, where the fields here cannot say it",
    "match_engine": "who answers whether it fits; else the server's own choice",
    "select": "how one is chosen of the clusters that can run it: name, and options; else the server's own choice",
    "submit_tokens": "submit tokens of clusters that they only open: other clusters stay candidates",
    "parameters": "names and values that the selection may reckon with",
    "spill": "where it waits for long: `after 10m try pool burst`, `reject after 24h`",
    "nodes": "spread over this many nodes (default: any)",
    "tasks": "tasks in all; cores, gpus, memory and storage are for each of them (default 1)",
    "cores": "cores of a task; 500m is half of one (default 1)",
    "gpus": "GPUs of a task",
    "gpu_type": "their type by any of its names: h100, a100-80gb (with at least that memory)",
    "gpu_memory": "memory of each GPU, at least, as in 80GB",
    "devices": "other countable resources of a task, by kind, type and count: fpga:u280:1",
    "memory": "memory of a task, as in 8GiB",
    "ephemeral_storage": "scratch space of a task, as in 100GiB",
    "limits": "the most a task may use; absent means the request",
    "alternatives": "further choices after the fields here, the preferred first: whole sets, or texts of what differs",
    "time_limit": "ended after this: 90, 15m, 1h30m, 2d or 1:30:00",
    "on_lost": "if its cluster falls silent: wait, requeue or fail (default wait)",
    "lost_after": "silent for how long",
    "retry": "when to try again after a failure",
    "spec": "the same fields, nested as the API has them",
    "resources": "the same fields, nested as the API has them",
}
_TEXTS = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]}
# What only a job file has: `yard submit` uploads the files, and sends `files` in their place.
LOCAL_FILES: dict[str, Any] = {
    "in": {"anyOf": [*_TEXTS["anyOf"], {"type": "object", "additionalProperties": {"type": "string"}}]},
    "workdir": {"type": "string", "minLength": 1},
    "out": _TEXTS,
    "out_required": {"type": "boolean"},
}


def job_file_schema() -> dict[str, Any]:
    """The whole document. The nested form of the API is allowed as well, as `yard submit` allows it."""
    _, parts = schemas_of([JobRequest, JobSpec, Resources], ref_template="#/$defs/{name}")
    nested = [parts.pop(kind.__name__) for kind in (JobRequest, JobSpec, Resources)]
    request, spec, resources = (dict(part["properties"]) for part in nested)
    del request["spec"], spec["resources"]
    either = {"anyOf": [{"type": "string", "minLength": 1}, _object(resources)]}
    spec["alternatives"] = {"type": "array", "items": either, "maxItems": ALTERNATIVES_MAX - 1}
    command = {"anyOf": [{"type": "string", "minLength": 1}, spec.pop("command")]}
    flat = {"command": command, **request, **spec, **resources}
    inner = {"command": command, **spec, **resources, "resources": _object(resources)}
    properties = {**flat, **LOCAL_FILES, "spec": _object(inner), "resources": _object(resources)}
    return {
        "$schema": DIALECT,
        "title": TITLE,
        "description": ABOUT,
        **_object({name: _described(name, part) for name, part in properties.items()}),
        "anyOf": [{"required": ["command"]}, {"required": ["spec"]}],
        **JobRequest.SCHEMA,
        "$defs": parts,
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _described(name: str, part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "description": FIELD_DESCRIPTIONS[name]} if name in FIELD_DESCRIPTIONS else part
