"""The resources of a job are those of its whole pod: containers that the job adds take their share of them. Pure.

The server admits a job by its `resources` and chooses a cluster by them. So the pod asks for no more, however many
containers a job brings; the job's own container has what the others leave.
"""

from __future__ import annotations

from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    CPU,
    MEMORY,
    STORAGE,
    Amounts,
    add_amounts,
    asked_amounts,
    largest_amounts,
)
from switchyard.features.kubernetes.agent.pods.pod_changes import by_name
from switchyard.features.kubernetes.agent.pods.pod_security import is_named
from switchyard.model.cluster.pod_part import MAIN_CONTAINER

WORDS = ("requests", "limits")
MAIN_RESOURCES = ("spec", "containers", "0", "resources")
Manifest = dict[str, Any]


def share_resources(given: Manifest, patched: Manifest, site: KubernetesSite) -> Manifest:
    """The pod template with the shares. Raises PolicyRefused if the added containers leave too little."""
    counted = (CPU, MEMORY, STORAGE, site.gpu_resource)
    before, after = by_name(given["spec"], "containers"), by_name(patched["spec"], "containers")
    main = after[MAIN_CONTAINER]
    if any(_asked(main, word, counted) != _asked(before[MAIN_CONTAINER], word, counted) for word in WORDS):
        _check_named(site)
    known = by_name(given["spec"], "initContainers")
    early = [one for name, one in by_name(patched["spec"], "initContainers").items() if name not in known]
    late = [one for name, one in after.items() if name not in before]
    resources = dict(main.get("resources") or {})
    for word in WORDS:
        beside, largest = _use_of(early, late, word, counted)
        resources[word] = _left(dict(resources.get(word) or {}), _asked(main, word, counted), beside, largest)
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
        asked = _asked(container, word, counted)
        if container.get("restartPolicy") == "Always":
            beside = add_amounts(beside, asked)
        else:
            steps.append(add_amounts(beside, asked))
    beside = add_amounts(beside, *(_asked(container, word, counted) for container in late))
    return beside, largest_amounts([beside, *steps])


def _left(written: Manifest, has: Amounts, beside: Amounts, largest: Amounts) -> Manifest:
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


def _asked(container: Manifest, word: str, counted: tuple[str, ...]) -> Amounts:
    """A request without a limit is the limit, and a limit without a request the request."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    written = limits | requests if word == "requests" else requests | limits
    return {name: amount for name, amount in asked_amounts(written).items() if name in counted}
