"""Changes that no job may make to its pod, however wide the site's `patch_paths` are. Pure.

No command runs twice, so no container restarts but a sidecar. The volumes of the agent hold the files of all jobs and
folders of the host. A job sees them only through the mounts that the agent writes: it neither changes these mounts nor
adds others of these volumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.job.job import JobSpec

CONTAINER_LISTS = ("initContainers", "containers")
MOUNT_LISTS = ("volumeMounts", "volumeDevices")
Manifest = dict[str, Any]


@contextmanager
def refuse_malformed(spec: JobSpec) -> Iterator[None]:
    """Raise PolicyRefused if the pod cannot be built or read because of values that the job brings."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as exc:
        if spec.pod is None and spec.native is None:
            raise  # a defect of the agent
        raise PolicyRefused(f"The pod of this job has a value that Kubernetes cannot read: {str(exc)[:200]}.") from exc


def check_changes(given: Manifest, patched: Manifest) -> None:
    """Raise PolicyRefused for a change that no job may make. `given`: the pod template before the job's changes."""
    before, after = given["spec"], patched["spec"]
    volumes = by_name(before, "volumes")
    _check_kept(volumes, by_name(after, "volumes"), "volume")
    for group in CONTAINER_LISTS:
        known, containers = by_name(before, group), by_name(after, group)
        _check_kept(_without_main(known), containers, "container")
        for name, container in containers.items():
            _check_mounts(known.get(name, {}), container, volumes)
            _check_restarts(container, is_init=group == "initContainers")


def _check_kept(known: dict[str, Manifest], now: dict[str, Manifest], word: str) -> None:
    for name, value in known.items():
        if now.get(name) != value:
            raise PolicyRefused(f"The {word} {name} of a pod is set by the cluster: a job cannot change it.")


def _check_mounts(before: Manifest, after: Manifest, volumes: dict[str, Manifest]) -> None:
    """Mounts that are there stay as they are. New mounts are of volumes that the job brings."""
    for group in MOUNT_LISTS:
        known, mounts = list(items_of(before, group)), list(items_of(after, group))
        if any(mount not in mounts for mount in known):
            raise PolicyRefused("A mount of the pod is set by the cluster: a job cannot change it.")
        for mount in mounts:
            name = mount.get("name")
            if mount not in known and (not isinstance(name, str) or name in volumes):
                raise PolicyRefused(f"A job mounts only volumes that it brings, and not {str(name)[:80]!r}.")


def _check_restarts(container: Manifest, *, is_init: bool) -> None:
    """A command never runs again by itself. Only a helper that runs beside the job, an init container, may restart."""
    for key in ("restartPolicyRules",) if is_init else ("restartPolicy", "restartPolicyRules"):
        if container.get(key) is not None:
            raise PolicyRefused(
                f"The container {container['name'][:80]!r} of this job's pod has {key}: Kubernetes would run a command "
                "again. For another attempt, submit with `--retry`."
            )


def _without_main(containers: dict[str, Manifest]) -> dict[str, Manifest]:
    return {name: container for name, container in containers.items() if name != MAIN_CONTAINER}


def by_name(spec: Manifest, group: str) -> dict[str, Manifest]:
    """The elements of a list by name. Raises PolicyRefused if a name is missing or there twice."""
    named: dict[str, Manifest] = {}
    for item in items_of(spec, group):
        name = item.get("name")
        if not isinstance(name, str) or name in named:
            raise PolicyRefused(f"In {group} of a pod, each element has a name of its own, and not {str(name)[:80]!r}.")
        named[name] = item
    return named


def items_of(value: Manifest, group: str) -> Iterator[Manifest]:
    """The maps of a list. Raises PolicyRefused if it is something else."""
    items = value.get(group)
    if items is None:
        return
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise PolicyRefused(f"{group} of a pod is a list of maps.")
    yield from items
