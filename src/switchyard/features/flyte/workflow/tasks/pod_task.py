"""Pod tasks: tasks that bring a pod in Kubernetes' words. The primary container runs the task's command. Pure.

The primary container becomes the job's command, image and variables. The job's resources are those of all containers
together; on the cluster, the other containers take their share of them. What else the pod says becomes
`JobSpec.pod`: only Kubernetes clusters take it, and only at places that their site files let jobs set. The other
containers become sidecars: they begin before the primary one and end after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flyteidl.core import tasks_pb2

from switchyard.features.flyte.workflow.compile.task_checks import POD_WORDS, WORDS
from switchyard.features.flyte.workflow.tasks.pod_resources import whole_pod
from switchyard.features.flyte.workflow.values.content import plain_message
from switchyard.model.cluster.pod_part import MAIN_CONTAINER, PodPart

PRIMARY_KEY = "primary_container_name"  # in a task's config, as flytekit writes it
# A container that Kubernetes ends when the main one has ended, as Flyte ends the pod with its primary container.
SIDECAR = {"restartPolicy": "Always"}
OWN_FIELDS = ("name", "image", "command", "args")
_NUMBERS = {word: number for number, word in WORDS.items()}


def is_pod_task(template: Any) -> bool:
    return bool(template.WhichOneof("target") == "k8s_pod")


def pod_task_mistakes(template: Any) -> Iterator[str]:
    """Why a pod task cannot run."""
    pod = plain_message(template.k8s_pod.pod_spec)
    if pod is None:
        yield "its pod_spec has values that JSON has not"
        return
    containers = _containers(pod)
    named = [one.get("name") for one in containers]
    primary = _primary_name(template)
    if template.k8s_pod.data_config.enabled:
        yield "it has a data_config, which is served for raw containers alone"
    if not primary and len(containers) != 1:
        yield f"it does not say which of its {len(containers)} containers is the primary one ({PRIMARY_KEY})"
    elif primary and primary not in named:
        yield f"its pod has no container {primary[:80]!r}, which it calls the primary one"
    elif not (_primary(template, pod).get("image")):
        yield "its primary container has no image"
    if MAIN_CONTAINER in named and (primary or MAIN_CONTAINER) != MAIN_CONTAINER:
        yield f"a container besides the primary one is called {MAIN_CONTAINER}, as the primary one is here"
    yield from _kind_mistakes(template, pod)


def _kind_mistakes(template: Any, pod: dict[str, Any]) -> Iterator[str]:
    """Values of the wrong kind, e.g. a text in the place of a list."""
    for group in ("containers", "initContainers", "volumes"):
        given = pod.get(group) or []
        if not isinstance(given, list) or not all(isinstance(one, dict) and one.get("name") for one in given):
            yield f"its {group} are no list of maps with names"
            return
    primary = _primary(template, pod)
    for field in ("command", "args"):
        if not isinstance(primary.get(field) or [], list):
            yield f"{field} of its primary container is no list"
    try:
        container_of(template)
        pod_part(template)
    except (TypeError, ValueError, AttributeError, LookupError) as exc:
        yield f"its pod has a value of the wrong kind: {str(exc)[:200]}"


def container_of(template: Any) -> Any:
    """The container that runs the task's command; of a pod task, the primary one, with the resources of the pod."""
    if not is_pod_task(template):
        return template.container
    pod = plain_message(template.k8s_pod.pod_spec) or {}
    primary = _primary(template, pod)
    container = tasks_pb2.Container(image=str(primary.get("image") or ""))
    container.command.extend(str(word) for word in primary.get("command") or [])
    container.args.extend(str(word) for word in primary.get("args") or [])
    for variable in _plain_variables(primary):
        container.env.add(key=str(variable["name"]), value=str(variable.get("value") or ""))
    others = [one for one in _containers(pod) if one is not primary]
    for word, amounts in whole_pod(primary, pod.get("initContainers") or [], others).items():
        for name, amount in amounts.items():
            if name in POD_WORDS:
                getattr(container.resources, word).add(name=_NUMBERS[POD_WORDS[name]], value=amount)
    return container


def pod_part(template: Any) -> PodPart | None:
    """What the pod says besides the command of its primary container. None: nothing, or the task is no pod task."""
    if not is_pod_task(template):
        return None
    spec = plain_message(template.k8s_pod.pod_spec) or {}
    primary = _primary(template, spec)
    own = _rest_of_primary(primary)
    others = [{**_tidy(one), **SIDECAR} for one in _containers(spec) if one is not primary]
    kept = {key: _tidy(value) for key, value in spec.items() if key != "containers" and value is not None}
    if own:
        kept["containers"] = [{"name": MAIN_CONTAINER, **own}]
    if others:
        kept["initContainers"] = [*(kept.get("initContainers") or []), *others]
    metadata = template.k8s_pod.metadata
    named = {"labels": dict(metadata.labels), "annotations": dict(metadata.annotations)}
    # A pod task has a part even if it is empty: it runs as a pod alone.
    return PodPart(metadata={key: value for key, value in named.items() if value}, spec=kept)


def set_primary_words(template: Any, words: list[str]) -> None:
    """Give the primary container these arguments, without a command and variables."""
    name = _primary_name(template)
    for container in template.k8s_pod.pod_spec["containers"]:
        if not name or container["name"] == name:
            container.update({"command": [], "args": words, "env": []})
            return


def _rest_of_primary(primary: dict[str, Any]) -> dict[str, Any]:
    """What the primary container says that a job has no field for."""
    rest = {key: _tidy(value) for key, value in primary.items() if key not in OWN_FIELDS}
    plain = [variable["name"] for variable in _plain_variables(primary)]
    rest["env"] = [one for one in rest.get("env") or [] if one.get("name") not in plain]
    amounts = rest.get("resources") or {}
    others = {
        word: {name: amount for name, amount in (amounts.get(word) or {}).items() if name not in POD_WORDS}
        for word in ("requests", "limits")
    }
    rest["resources"] = {word: named for word, named in others.items() if named}
    return {key: value for key, value in rest.items() if value not in (None, {}, [], "")}


def _primary_name(template: Any) -> str:
    return str(template.k8s_pod.primary_container_name or template.config.get(PRIMARY_KEY, ""))


def _primary(template: Any, pod: dict[str, Any]) -> dict[str, Any]:
    containers, name = _containers(pod), _primary_name(template)
    found = [one for one in containers if one.get("name") == name] if name else containers
    return found[0] if found else {}


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    given = pod.get("containers")
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def _plain_variables(container: dict[str, Any]) -> list[dict[str, Any]]:
    given = container.get("env")
    variables = given if isinstance(given, list) else []
    return [one for one in variables if isinstance(one, dict) and one.get("name") and not one.get("valueFrom")]


def _tidy(value: Any) -> Any:
    """Without null, and with whole numbers as such: a Struct has floats alone."""
    if isinstance(value, dict):
        return {key: _tidy(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_tidy(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
