"""Checks a task before it is registered: what it must have, and what it asks for against the limits of its project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flyteidl.core import tasks_pb2
from msgspec import ValidationError, convert

from switchyard.errors import BadRequest, ImpossibleValue
from switchyard.features.flyte.workflow.tasks.pod_resources import whole_pod
from switchyard.features.flyte.workflow.tasks.task_retries import RETRY_ON, rules_of
from switchyard.features.flyte.workflow.values.content import plain_message
from switchyard.model.job.retry import Retry
from switchyard.model.jobspec.quantity import is_amount_above, parse_kubernetes

WORDS = {
    tasks_pb2.Resources.CPU: "cpu",
    tasks_pb2.Resources.GPU: "gpu",
    tasks_pb2.Resources.MEMORY: "memory",
    tasks_pb2.Resources.EPHEMERAL_STORAGE: "ephemeral_storage",
    tasks_pb2.Resources.STORAGE: "storage",
}
POD_WORDS = {
    "cpu": "cpu",
    "memory": "memory",
    "ephemeral-storage": "ephemeral_storage",
    "nvidia.com/gpu": "gpu",
    "amd.com/gpu": "gpu",
    # As flytekit writes the resources of a task into its pod template:
    "gpu": "gpu",
    "storage": "storage",
}
Amounts = dict[str, str]  # a quantity of Kubernetes by the word of the resource


def task_mistakes(template: Any, limits: Mapping[str, str]) -> Iterator[str]:
    """All mistakes of a task. `limits`: the most of each resource that its project and domain allow."""
    if not template.type:
        yield "missing type"
    for field in ("metadata", "interface"):
        if not template.HasField(field):
            yield f"missing {field}"
    if not template.metadata.runtime.version:
        yield "missing runtime version"
    target = template.WhichOneof("target")
    if target == "container":
        if not template.container.image:
            yield "missing image"
        yield from _container_mistakes(template.container.resources, limits)
    elif target is None or target == "sql":
        yield f"a task of type {template.type[:40]} has no container and no pod; no plugin here runs it"
    elif target == "k8s_pod":
        if not template.k8s_pod.HasField("pod_spec"):
            yield "missing pod_spec"
        yield from _pod_mistakes(template.k8s_pod.pod_spec, limits)
    yield from _variable_mistakes(template.interface)
    try:
        convert({"on": rules_of(template.config)}, Retry)
    except (BadRequest, ValidationError) as exc:
        yield f"config {RETRY_ON}: {exc}"


def _variable_mistakes(interface: Any) -> Iterator[str]:
    for word, variables in (("input", interface.inputs.variables), ("output", interface.outputs.variables)):
        for name in sorted(variables):
            if variables[name].type.WhichOneof("type") is None:
                yield f"{word} {name[:80]!r} has no type"


def _container_mistakes(resources: Any, limits: Mapping[str, str]) -> Iterator[str]:
    amounts: dict[str, Amounts] = {"requests": {}, "limits": {}}
    for word, own in amounts.items():
        for entry in getattr(resources, word):
            name = WORDS.get(entry.name)
            if name is None:
                yield f"{word} name an unknown resource ({entry.name})"
            elif name in own:
                yield f"can't specify {name} in {word} multiple times"
            else:
                own[name] = entry.value
    yield from _amount_mistakes(amounts["requests"], amounts["limits"], limits)


def _pod_mistakes(pod: Any, limits: Mapping[str, str]) -> Iterator[str]:
    """Every container of the pod is checked like a container, then all of them together."""
    plain = plain_message(pod)
    if plain is None:
        yield "the pod_spec has values that JSON has not"
        return
    init, containers = (_with_resources(plain.get(group)) for group in ("initContainers", "containers"))
    mistakes = [mistake for one in (*init, *containers) for mistake in _resource_mistakes(one["resources"], limits)]
    yield from mistakes
    if not mistakes:
        whole = whole_pod({}, init, containers, unsaid={})
        yield from (f"All containers together: {mistake}" for mistake in _resource_mistakes(whole, limits))


def _with_resources(containers: Any) -> list[dict[str, Any]]:
    """The containers that ask for something, with what we count of it."""
    given = [one for one in containers if isinstance(one, dict)] if isinstance(containers, list) else []
    return [
        {**one, "resources": {word: _pod_values(one["resources"], word) for word in ("requests", "limits")}}
        for one in given
        if isinstance(one.get("resources"), dict)
    ]


def _pod_values(resources: Mapping[str, Any], word: str) -> dict[str, Any]:
    given = resources.get(word)
    return {name: value for name, value in given.items() if name in POD_WORDS} if isinstance(given, dict) else {}


def _resource_mistakes(resources: Mapping[str, Any], limits: Mapping[str, str]) -> Iterator[str]:
    yield from _amount_mistakes(_pod_amounts(resources, "requests"), _pod_amounts(resources, "limits"), limits)


def _pod_amounts(resources: Mapping[str, Any], word: str) -> Amounts:
    return {POD_WORDS[name]: _text(value) for name, value in _pod_values(resources, word).items()}


def _text(value: Any) -> str:
    """A number in a Struct is a float: 2.0 is written 2."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _amount_mistakes(requests: Amounts, own_limits: Amounts, limits: Mapping[str, str]) -> Iterator[str]:
    """Exact, and of limits without requests too; Flyte rounds up, and looks only at what is requested."""
    sound: dict[str, Amounts] = {"request": {}, "limit": {}}
    for word, amounts in (("request", requests), ("limit", own_limits)):
        for name, value in amounts.items():
            try:
                parse_kubernetes(value)
                sound[word][name] = value
            except (ValueError, ImpossibleValue) as exc:
                yield f"Parsing of {name} {word} failed for value {value[:40]!r}: {exc}"
    for name, request in sound["request"].items():
        limit = sound["limit"].get(name)
        if limit is not None and is_amount_above(request, limit):
            yield f"Requested {name} [{request}] is greater than the task's own limit [{limit}]"
        if name == "gpu" and parse_kubernetes(request).denominator != 1:
            yield f"GPUs are whole: [{request}] is not"
        if name == "gpu" and limit is not None and parse_kubernetes(limit) != parse_kubernetes(request):
            yield f"For extended resource gpu, the request [{request}] must equal the limit [{limit}]"
    for word, amounts in sound.items():
        for name, value in amounts.items():
            most = limits.get(name)
            if most and is_amount_above(value, most):
                yield f"{name} {word} [{value}] is greater than the limit [{most}] of the project and domain"
