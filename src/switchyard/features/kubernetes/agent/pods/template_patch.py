"""Changes to the pod template: the site's template, then what the site lets a job set. Pure.

A job sets one place with an option: `--pod=/spec/runtimeClassName=gvisor`. The path is a JSON pointer into the pod
template, the value is JSON or, if it is none, a text. `-` as the last part adds to a list. A job may also bring parts
of its pod (`JobSpec.pod`). Each path must lie in or below one of the site's `patch_paths`. Some changes are refused
below every path (pod_changes.py), others below wide paths (pod_security.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_names import OWN_PREFIX
from switchyard.features.kubernetes.agent.kubernetes_site import AGENT_PLACES, KubernetesSite, kubernetes_of
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    CPU,
    MEMORY,
    STORAGE,
    Amounts,
    add_amounts,
    asked_amounts,
    largest_amounts,
)
from switchyard.features.kubernetes.agent.pods.labels import MANAGED_BY_LABEL, is_own_key
from switchyard.features.kubernetes.agent.pods.pod_changes import by_name, check_changes
from switchyard.features.kubernetes.agent.pods.pod_security import check_security, is_named, secure_containers
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.job.job import JobSpec, native_problem

OPTION = "--pod"
Manifest = dict[str, Any]
WORDS = ("requests", "limits")
MAIN_RESOURCES = ("spec", "containers", "0", "resources")


def patch_template(template: Manifest, spec: JobSpec, site: Site) -> Manifest:
    """The template with the changes. Raises PolicyRefused for a change that the site does not allow."""
    kubernetes = kubernetes_of(site)
    given = patched = merge_patch(template, kubernetes.template) if kubernetes.template else template
    for path, value in job_patches(spec, kubernetes):
        patched = deepcopy(patched)
        _set(patched, path, value)
    if spec.pod is not None:
        part = msgspec.to_builtins(spec.pod)
        _check_part(part, patched, kubernetes)
        patched = merge_patch(patched, part)
    _check_unchanged(template, patched)
    if patched != given:
        check_changes(given, patched)
        check_security(given, patched, site)
        patched = share_resources(given, secure_containers(given, patched, kubernetes), kubernetes)
    return patched


def _check_part(part: Manifest, template: Manifest, site: KubernetesSite) -> None:
    """Refuse parts of a pod at places that the site does not let jobs set. What changes nothing is no matter."""
    for path, value in _leaves(part):
        if not path:
            continue  # an empty part
        if value is None:
            raise PolicyRefused(f"The pod of this job has null at /{'/'.join(path)}: a job cannot remove anything.")
        if _at(template, path) != value and not any(_covers(allowed, path) for allowed in site.patch_paths):
            raise _not_settable(f"/{'/'.join(path)}", site)
    for path, name in _changed_elements(part, template):
        raise PolicyRefused(
            f"The pod of this job changes {name[:80]!r} in /{'/'.join(path)}, which the cluster sets. "
            "A job only adds to lists."
        )


def _changed_elements(part: Any, template: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Elements of the template's lists that the part would change, except the job's own container."""
    if isinstance(part, dict) and isinstance(template, dict):
        for key, inner in part.items():
            yield from _changed_elements(inner, template.get(key), (*path, str(key)))
    elif isinstance(part, list) and isinstance(template, list) and (key := _list_key(template, part)):
        known = {item[key]: item for item in template}
        for item in part:
            before = known.get(item[key])
            if path == ("spec", "containers") and item[key] == MAIN_CONTAINER:
                yield from _changed_elements(item, before, (*path, "0"))
            elif before is not None and merge_patch(before, item) != before:
                yield path, item[key]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The places of a part, each with its value. A new element of a list is `-`, the job's own container `0`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list) and value:
        is_container = path == ("spec", "containers")
        for item in value:
            is_main = is_container and isinstance(item, dict) and item.get("name") == MAIN_CONTAINER
            rest = {key: one for key, one in item.items() if key != "name"} if is_main else item
            yield from _leaves(rest, (*path, "0" if is_main else "-"))
    else:
        yield path, value


def merge_patch(target: Any, patch: Any) -> Any:
    """The patched target: maps are merged, lists of maps by `_list_key`, other lists are joined; null removes."""
    if isinstance(target, dict) and isinstance(patch, dict):
        merged = dict(target)
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge_patch(merged.get(key), value)
        return merged
    if isinstance(target, list) and isinstance(patch, list):
        return _merge_lists(target, patch)
    return deepcopy(patch)


def job_patches(spec: JobSpec, site: KubernetesSite) -> Iterator[tuple[list[str], Any]]:
    """The places that a job sets, each with its value. Other options have no meaning on Kubernetes and are refused."""
    if problem := native_problem(spec.native):
        raise PolicyRefused(f"This cannot be passed to Kubernetes: {problem}.")
    for option in spec.native.options if spec.native else []:
        name, _, text = option.partition("=")
        if name != OPTION:
            raise PolicyRefused(f"Kubernetes has no option {name}: a job may set `{OPTION}=/PATH=VALUE`.")
        pointer, equals, value = text.partition("=")
        path = [_unescape(part) for part in pointer.split("/")[1:]]
        if not pointer.startswith("/") or not equals or not all(path):
            raise PolicyRefused(
                f"{option[:80]!r}: write `{OPTION}=/PATH=VALUE`, e.g. {OPTION}=/spec/dnsPolicy=Default."
            )
        if not any(_covers(allowed, path) for allowed in site.patch_paths):
            raise _not_settable(pointer, site)
        yield path, _value(value)


def _not_settable(pointer: str, site: KubernetesSite) -> PolicyRefused:
    known = f"it lets them set {', '.join(site.patch_paths)}" if site.patch_paths else "it lets them set nothing"
    return PolicyRefused(f"This site does not let jobs set {pointer} of their pods: {known}.")


def _merge_lists(target: list[Any], patch: list[Any]) -> list[Any]:
    key = _list_key(target, patch)
    if not key:
        return [*target, *deepcopy(patch)]
    merged = {item[key]: item for item in target}
    for item in patch:
        merged[item[key]] = merge_patch(merged.get(item[key]), item)
    return list(merged.values())


def _list_key(target: list[Any], patch: list[Any]) -> str:
    """The key by which elements of two lists are the same; empty: none are.

    Mounts have the name of their volume, which several mounts share: they are the same by `mountPath`.
    """
    items = [*target, *patch]
    if not all(isinstance(item, dict) for item in items):
        return ""
    key = "mountPath" if any("mountPath" in item for item in items) else "name"
    if not all(isinstance(item.get(key), str) for item in items):
        return ""
    return key if len({item[key] for item in target}) == len(target) else ""


def _covers(allowed: str, path: Sequence[str]) -> bool:
    """Whether the path is the allowed place or lies below it; `*` stands for any part."""
    parts = [_unescape(part) for part in allowed.split("/")[1:]]
    return len(parts) <= len(path) and all(
        part in ("*", name) for part, name in zip(parts, path[: len(parts)], strict=True)
    )


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _set(template: Manifest, path: Sequence[str], value: Any) -> None:
    place: Any = template
    for number, part in enumerate(path):
        is_last = number == len(path) - 1
        if isinstance(place, dict):
            if is_last:
                place[part] = value
            else:
                place = place.setdefault(part, [] if path[number + 1] == "-" else {})
        elif isinstance(place, list) and part == "-":
            place.append(value if is_last else {})
            place = place[-1]
        elif isinstance(place, list) and part.isdecimal() and int(part) < len(place):
            if is_last:
                place[int(part)] = value
            else:
                place = place[int(part)]
        else:
            raise PolicyRefused(f"A pod of this job has no place /{'/'.join(path)}.")


def _check_unchanged(before: Manifest, after: Manifest) -> None:
    for place in AGENT_PLACES:
        if _at(before, place) != _at(after, place):
            raise PolicyRefused(f"/{'/'.join(place)} of a pod is set by the agent itself.")
    if _own(before) != _own(after):
        raise PolicyRefused(
            f"{MANAGED_BY_LABEL}, and labels and annotations of {OWN_PREFIX}…, are set by the agent itself. "
            "Those of batch.kubernetes.io/…, job-name and controller-uid are set by Kubernetes."
        )
    if _main(before) != _main(after):
        raise PolicyRefused(f"The container {MAIN_CONTAINER} comes first and runs the job's command.")


def _at(template: Any, place: Sequence[str]) -> Any:
    for part in place:
        template = template.get(part) if isinstance(template, dict) else None
    return template


def _own(template: Manifest) -> list[tuple[str, str, Any]]:
    """Our own labels and annotations."""
    return [
        (kind, key, value)
        for kind in ("labels", "annotations")
        for key, value in sorted(_map(_at(template, ("metadata", kind))).items())
        if is_own_key(key)
    ]


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _main(template: Manifest) -> tuple[Any, ...]:
    containers = _at(template, ("spec", "containers"))
    first = containers[0] if isinstance(containers, list) and containers and isinstance(containers[0], dict) else {}
    return tuple(first.get(key) for key in ("name", "command", "args"))


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def share_resources(given: Manifest, patched: Manifest, site: KubernetesSite) -> Manifest:
    """Let containers that the job adds take their share of its resources, which are those of its whole pod.

    The server admits a job by its `resources` and chooses a cluster by them. So the pod asks for no more, however many
    containers a job brings; the job's own container has what the others leave. Raises PolicyRefused if that is too
    little.
    """
    counted = (CPU, MEMORY, STORAGE, site.gpu_resource)
    before, after = by_name(given["spec"], "containers"), by_name(patched["spec"], "containers")
    main = after[MAIN_CONTAINER]
    if any(_amounts(main, word, counted) != _amounts(before[MAIN_CONTAINER], word, counted) for word in WORDS):
        _check_named(site)
    known = by_name(given["spec"], "initContainers")
    early = [one for name, one in by_name(patched["spec"], "initContainers").items() if name not in known]
    late = [one for name, one in after.items() if name not in before]
    resources = dict(main.get("resources") or {})
    for word in WORDS:
        beside, largest = _use_of(early, late, word, counted)
        resources[word] = _main_amounts(dict(resources.get(word) or {}), _amounts(main, word, counted), beside, largest)
    shared = [{**one, "resources": resources} if one is main else _limited(one, late) for one in after.values()]
    spec = {**patched["spec"], "containers": shared}
    if "initContainers" in spec:
        spec["initContainers"] = [_limited(one, early) for one in spec["initContainers"]]
    return {**patched, "spec": spec}


def _check_named(site: KubernetesSite) -> None:
    if not any(is_named(path, MAIN_RESOURCES) for path in site.patch_paths):
        raise PolicyRefused(f"/{'/'.join(MAIN_RESOURCES)} of a pod is set by the job's `resources`.")


def _use_of(
    early: list[Manifest], late: list[Manifest], word: str, counted: tuple[str, ...]
) -> tuple[Amounts, Amounts]:
    """What the added containers use beside the job's own one, and the most that they use at any time."""
    beside: Amounts = {}
    steps: list[Amounts] = []
    for container in early:
        asked = _amounts(container, word, counted)
        if container.get("restartPolicy") == "Always":
            beside = add_amounts(beside, asked)
        else:
            steps.append(add_amounts(beside, asked))
    beside = add_amounts(beside, *(_amounts(container, word, counted) for container in late))
    return beside, largest_amounts([beside, *steps])


def _main_amounts(written: Manifest, has: Amounts, beside: Amounts, largest: Amounts) -> Manifest:
    """The amounts of the job's own container, less those of the others."""
    for name, amount in largest.items():
        left = has.get(name, 0) - beside.get(name, 0)
        if amount > has.get(name, 0) or (left == 0 and name == CPU):
            raise PolicyRefused(
                f"The containers that this job adds to its pod ask for too much {name}. The job's resources are those "
                "of the whole pod.",
                next_step="Ask for more in the job's resources, or for less in the other containers.",
            )
        if name in beside:
            written.pop(name, None)
            if left:
                written[name] = f"{left}m" if name == CPU else str(left)
    return written


def _limited(container: Manifest, added: list[Manifest]) -> Manifest:
    """An added container with its requests as limits, where it gives none, as everywhere."""
    resources = container.get("resources") or {}
    if container not in added or not resources.get("requests"):
        return container
    limits = {**resources["requests"], **(resources.get("limits") or {})}
    return {**container, "resources": {**resources, "limits": limits}}


def _amounts(container: Manifest, word: str, counted: tuple[str, ...]) -> Amounts:
    """A request without a limit is the limit, and a limit without a request the request."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    written = limits | requests if word == "requests" else requests | limits
    return {name: amount for name, amount in asked_amounts(written).items() if name in counted}
