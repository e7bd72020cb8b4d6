"""The volumes of a pod: scratch folders, folders of the host that the site mounts, and the files of the job. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.work_folders import JOB_FOLDER
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.kubernetes_site import ScratchVolume
from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.poll import Lease
from switchyard.model.jobspec.quantity import parse_bytes

FILES_VOLUME = "yard-files"
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Volumes:
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)
    files_path: str | None = None  # the folder of a job with files


def volumes_of(lease: Lease, site: Site, *, work_root: str) -> Volumes:
    """Raises PolicyRefused for a job with files where pods cannot see them."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    for number, scratch in enumerate(site.kubernetes.scratch):
        name = f"scratch-{number}"
        volumes.append({"name": name, **_scratch(scratch)})
        mounts.append({"name": name, "mountPath": scratch.path})
    for number, mount in enumerate(site.containers.mounts):
        source, target, is_read_only = _split_mount(mount)
        name = f"host-{number}"
        volumes.append({"name": name, "hostPath": {"path": source}})
        mounts.append({"name": name, "mountPath": target, **({"readOnly": True} if is_read_only else {})})
    files = spec_of(lease).files
    if files is None:
        return Volumes(volumes, mounts)
    if site.kubernetes.files_volume is None or site.files.folder is None:
        raise PolicyRefused(
            "It has files, and pods of this cluster share no folder with the agent.",
            next_step="Name one in the agent's site file: `files: {folder: DIR}` and `kubernetes: {files_volume: …}`.",
        )
    path = PurePosixPath(work_root) / marker_of(lease) / JOB_FOLDER
    volumes.append({"name": FILES_VOLUME, **site.kubernetes.files_volume})
    # Only this attempt's folder: a job must not see the files of others.
    inside = path.relative_to(site.files.folder)
    mounts.append({"name": FILES_VOLUME, "mountPath": str(path), "subPath": str(inside)})
    for target, inner in files.mounts.items():
        mounts.append({"name": FILES_VOLUME, "mountPath": target, "subPath": str(inside / inner)})
    return Volumes(volumes, mounts, str(path))


def _scratch(scratch: ScratchVolume) -> Manifest:
    size = None if scratch.size is None else str(parse_bytes(scratch.size))
    if scratch.storage_class:
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": scratch.storage_class,
            "resources": {"requests": {"storage": size}},
        }
        return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    medium = {"medium": "Memory"} if scratch.memory else {}
    return {"emptyDir": {**medium, **({"sizeLimit": size} if size else {})}}


def _split_mount(mount: str) -> tuple[str, str, bool]:
    """`/data`, `/data:ro`, `/srv/data:/data` and `/srv/data:/data:ro`."""
    source, *further = mount.split(":")
    is_read_only = further[-1:] == ["ro"]
    target = next((part for part in further if part.startswith("/")), source)
    return source, target, is_read_only
