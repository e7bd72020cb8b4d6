"""Builds the pod template of a Job: the container, its resources, and where it may run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from msgspec import to_builtins

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.work_folders import JOB_FOLDER
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.site import Site
from switchyard.agent.site.site_types import ImagePull
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.jobs.gang import Gang, gang_pod
from switchyard.features.kubernetes.agent.kubernetes_names import is_label_key, is_label_value, is_object_name
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite, ScratchVolume, kubernetes_of
from switchyard.features.kubernetes.agent.nodes.device_labels import (
    NO_LABELS,
    DeviceLabels,
    labels_of_devices,
    names_type,
    resource_of,
)
from switchyard.features.kubernetes.agent.pods.command import main_command, variables_of
from switchyard.features.kubernetes.agent.pods.image_policy import image_of
from switchyard.features.kubernetes.agent.pods.labels import GANG_LABEL
from switchyard.features.kubernetes.agent.pods.pod_security import container_security, pod_security
from switchyard.features.kubernetes.agent.pods.template_patch import patch_template
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import ExecutionConfig, RunAs, SecurityContext
from switchyard.model.job.image_compatibility import architecture_of
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.constraint import Constraint, read_constraint
from switchyard.model.jobspec.devices import devices_of, typed_resources
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount, parse_bytes, parse_duration_s

PULL_POLICIES = {ImagePull.ALWAYS: "Always", ImagePull.MISSING: "IfNotPresent", ImagePull.NEVER: "Never"}
Manifest = dict[str, Any]
TERMS_MAX = 100
HOST_LABEL, ARCH_LABEL, OS_LABEL = "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os"
# Architectures as Go names them, which Kubernetes does, too.
GO_ARCHITECTURES = ("amd64", "arm64", "386", "arm", "ppc64le", "s390x", "riscv64", "loong64")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod_template(
    lease: Lease,
    site: Site,
    labels: dict[str, str],
    annotations: dict[str, str],
    *,
    cluster: str,
    name: str,
    gang: Gang,
    work_root: str,
    device_labels: DeviceLabels = NO_LABELS,
) -> Manifest:
    spec, kubernetes = spec_of(lease), kubernetes_of(site)
    volumes = volumes_of(lease, site, work_root=work_root)
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": kubernetes.grace_s,
        # The command is not process 1, which Linux shields from signals: SIGTERM ends it, as on other clusters.
        "shareProcessNamespace": True,
        "enableServiceLinks": False,  # else variables for each Service of the namespace
        **_identity(spec, kubernetes),
        **_place(lease, site, device_labels),
        "securityContext": pod_security(kubernetes),
        "containers": [_container(lease, site, volumes, cluster=cluster, name=name, gang=gang)],
    }
    if spec.resources.time_limit is not None:
        pod["activeDeadlineSeconds"] = parse_duration_s(spec.resources.time_limit)
    if volumes.volumes:
        pod["volumes"] = volumes.volumes
    if gang.size > 1:
        labels = {**labels, GANG_LABEL: "true"}
        merge_affinity(pod, gang_pod(name, gang, kubernetes))
    template: Manifest = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}
    return patch_template(template, spec, site)


def _container(lease: Lease, site: Site, volumes: Volumes, *, cluster: str, name: str, gang: Gang) -> Manifest:
    spec = spec_of(lease)
    container: Manifest = {
        "name": MAIN_CONTAINER,
        "image": image_of(spec, site),
        "imagePullPolicy": PULL_POLICIES[site.containers.pull],
        "command": main_command(lease),
        "env": variables_of(lease, site, cluster=cluster, name=name, gang=gang, files=volumes.files_path),
        "resources": resources_of(spec, kubernetes_of(site), tasks=gang.tasks_per_pod),
        # The end of the log goes into the pod's status, where it can be read when the node is away.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **container_security(kubernetes_of(site)),
    }
    if place := spec.cwd or volumes.files_path:
        container["workingDir"] = place
    if volumes.mounts:
        container["volumeMounts"] = volumes.mounts
    return container


def resources_of(spec: JobSpec, site: KubernetesSite, *, tasks: int = 1) -> Manifest:
    """Requests and limits of one pod. A limit that is not given is the request, as everywhere."""
    asked, limits = spec.resources.asked, spec.resources.limits
    pairs = {
        "cpu": (_millicores(asked.cores, tasks), _millicores(_first(limits.cores, asked.cores), tasks)),
        "memory": _bytes_pair(asked.memory, limits.memory, tasks),
        "ephemeral-storage": _bytes_pair(asked.ephemeral_storage, limits.ephemeral_storage, tasks),
    }
    for device in devices_of(spec.resources):
        name = resource_of(device, site)
        amount = str(device.count * tasks + int(pairs.get(name, ("0",))[0]))
        pairs[name] = amount, amount
    given = {name: pair for name, pair in pairs.items() if pair[0]}
    return {
        "requests": {name: request for name, (request, _) in given.items()},
        "limits": {name: limit for name, (_, limit) in given.items()},
    }


def _identity(spec: JobSpec, site: KubernetesSite) -> Manifest:
    """Service account and pull secrets. Only an account that somebody named has its token in the pod."""
    rules = spec.execution or ExecutionConfig()
    run_as = (rules.security_context or SecurityContext()).run_as or RunAs()
    account = run_as.k8s_service_account or ""
    if account and not is_object_name(account):
        raise PolicyRefused(
            f"{account[:80]!r} cannot be the name of a service account: Kubernetes takes a-z, 0-9, - and ."
        )
    if account and account != site.service_account and not _is_listed(account, site.service_accounts):
        raise PolicyRefused(
            f"This site does not let jobs run as the service account {account} (`service_accounts` in its site file)."
        )
    role_account = site.iam_roles.get(run_as.iam_role or "", "")
    if account and role_account and account != role_account:
        raise PolicyRefused(
            f"The IAM role {run_as.iam_role} comes with the service account {role_account} here (`iam_roles` in the "
            f"site file), and the job names {account}."
        )
    account = account or role_account or site.service_account
    identity: Manifest = {"automountServiceAccountToken": bool(account)}
    if account:
        identity["serviceAccountName"] = account
    if site.pull_secrets:
        identity["imagePullSecrets"] = [{"name": secret} for secret in site.pull_secrets]
    return identity


def _place(lease: Lease, whole_site: Site, device_labels: DeviceLabels) -> Manifest:
    """Node labels, tolerated taints, constraints and priority."""
    spec, site = spec_of(lease), kubernetes_of(whole_site)
    devices = [device for device in devices_of(typed_resources(spec)) if not names_type(device, site)]
    told = device_labels or labels_of_devices(devices, (), site, whole_site.names)
    needed = [told[device] for device in devices if device in told]
    only = {label: values[0] for labels in needed if (label := _single(labels)) for values in labels.values()}
    choice = site.interruptible if (spec.execution or ExecutionConfig()).interruptible else site.uninterruptible
    selector = {**site.node_selector, **choice.node_selector, **only}
    tolerations = [*site.tolerations, *choice.tolerations]
    place: Manifest = {}
    if selector:
        place["nodeSelector"] = selector
    if tolerations:
        place["tolerations"] = to_builtins(tolerations)
    if affinity := node_affinity(spec, [labels for labels in needed if not _single(labels)]):
        place["affinity"] = affinity
    if avoided := [node for node in lease.avoid_nodes if NODE_NAME.match(node)]:
        merge_affinity(place, {"affinity": {"nodeAffinity": {**affinity.get("nodeAffinity", {}), **_away(avoided)}}})
    classes = [row for row in site.priority_classes if row.min <= lease.priority]
    if classes:
        place["priorityClassName"] = max(classes, key=lambda row: row.min).name
    return place


def _away(nodes: Sequence[str]) -> Manifest:
    """A preference, not a rule: a pod that fits nowhere else still runs on these nodes."""
    # Kubernetes takes one name for each.
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return {PREFERRED: [{"weight": 100, "preference": {"matchFields": names}}]}


def _single(labels: Mapping[str, tuple[str, ...]]) -> str:
    """The only label, if it has one value: then a selector says it."""
    return next(iter(labels)) if sum(map(len, labels.values())) == 1 else ""


def _is_listed(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _first(limit: int | float | str | None, request: int | float | str) -> int | float | str:
    return request if limit is None else limit


def _millicores(cores: int | float | str, tasks: int) -> str:
    thousandths = ceil_fraction(parse_amount(cores) * 1000) * tasks
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _bytes_pair(request: int | float | str, limit: int | float | str | None, tasks: int) -> tuple[str, str]:
    size = parse_bytes(request) * tasks
    return (str(size), str(parse_bytes(_first(limit, request)) * tasks)) if size else ("", "")


FILES_VOLUME = "yard-files"


@dataclass(frozen=True, slots=True)
class Volumes:
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)
    files_path: str | None = None  # the folder of a job with files


def volumes_of(lease: Lease, site: Site, *, work_root: str) -> Volumes:
    """Raises PolicyRefused for a job with files where pods cannot see them."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    for number, scratch in enumerate(kubernetes_of(site).scratch):
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
    volume = kubernetes_of(site).files_volume
    if volume is None or site.files.folder is None:
        raise PolicyRefused(
            "It has files, and pods of this cluster share no folder with the agent.",
            next_step="Name one in the agent's site file: `files: {folder: DIR}` and `kubernetes: {files_volume: …}`.",
        )
    path = PurePosixPath(work_root) / marker_of(lease) / JOB_FOLDER
    volumes.append({"name": FILES_VOLUME, **volume})
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


@dataclass(frozen=True, slots=True)
class LabelExpression:
    """A condition on one label of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def manifest(self) -> Manifest:
        row: Manifest = {"key": self.key, "operator": self.operator}
        return {**row, "values": list(self.values)} if self.values else row


Term = tuple[LabelExpression, ...]


OPPOSITES = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


def node_affinity(spec: JobSpec, devices: Sequence[Mapping[str, tuple[str, ...]]] = ()) -> Manifest:
    """The affinity of a job's pods; empty: every node will do. Raises PolicyRefused if the scheduler cannot be told.

    `devices`: for each of them labels, of which a node must have one with one of its values.

    Properties are labels of nodes (nodes.py says under which names), hosts are the label `kubernetes.io/hostname`. The
    scheduler takes a list of terms of which one must hold, each a list of expressions which must all hold. So a
    constraint is brought into that form; one that needs too many terms is refused. Ranks mean nothing to Kubernetes.
    """
    attributes = (spec.demand or {}).get("attributes") or {}
    words = (attributes.get("system") or {}).get("constraints")
    constraint = read_constraint(words, where="attributes.system.constraints")
    if constraint is None and not devices:
        return {}
    parts = [] if constraint is None else [_terms(constraint, is_negated=False)]
    for labels in devices:
        parts.append([(LabelExpression(label, "In", values),) for label, values in labels.items()])
    terms = _all_of(parts, constraint)
    if not terms:
        raise PolicyRefused(f"No node can be what its constraint says ({constraint}).")
    if any(not term for term in terms):
        return {}
    rows = [{"matchExpressions": [part.manifest() for part in term]} for term in terms]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": rows}}}


def merge_affinity(pod: Manifest, further: Manifest) -> None:
    """Add fields to a pod's spec. Its affinity keeps what it has."""
    affinity = {**pod.get("affinity", {}), **further.get("affinity", {})}
    pod.update(further)
    if affinity:
        pod["affinity"] = affinity


def _terms(constraint: Constraint, *, is_negated: bool) -> list[Term]:
    """The constraint, or its opposite, as terms of which one must hold. One empty term: it always holds."""
    if constraint.operator == "ranks":
        raise PolicyRefused("Its constraint names ranks, and nodes of Kubernetes have none: name properties or hosts.")
    if constraint.operator == "not":
        if not constraint.parts:
            return [()] if is_negated else []
        return _terms(constraint.parts[0], is_negated=not is_negated)
    if constraint.operator in ("and", "or"):
        parts = [_terms(part, is_negated=is_negated) for part in constraint.parts]
        is_and = (constraint.operator == "and") is not is_negated
        if not parts:  # an empty one allows every node
            return [] if is_negated else [()]
        return _all_of(parts, constraint) if is_and else _bounded([term for part in parts for term in part], constraint)
    expressions = _expressions(constraint)
    if not is_negated:
        return [tuple(expressions)]
    return [(LabelExpression(part.key, OPPOSITES[part.operator], part.values),) for part in expressions]


def _all_of(parts: Sequence[Sequence[Term]], constraint: Constraint | None) -> list[Term]:
    terms: list[Term] = [()]
    for part in parts:
        terms = _bounded([(*left, *right) for left, right in product(terms, part)], constraint)
    return terms


def _bounded(terms: list[Term], constraint: Constraint | None) -> list[Term]:
    if len(terms) > TERMS_MAX:
        raise PolicyRefused(f"Its constraint ({constraint}) is too complicated for Kubernetes' scheduler.")
    return terms


def _expressions(constraint: Constraint) -> list[LabelExpression]:
    if constraint.operator == "hostlist":
        return [LabelExpression(HOST_LABEL, "In", tuple(sorted(constraint.names)))]
    return [_property(name) for name in sorted(constraint.names)]


def _property(name: str) -> LabelExpression:
    if name.startswith("^"):
        part = _property(name[1:])
        return LabelExpression(part.key, OPPOSITES[part.operator], part.values)
    key, equals, value = name.partition("=")
    if key in ("arch", "os"):
        label = ARCH_LABEL if key == "arch" else OS_LABEL
        if not equals:
            return LabelExpression(label, "Exists")
        names = (
            [go for go in GO_ARCHITECTURES if architecture_of(go) == architecture_of(value)] if key == "arch" else []
        )
        return LabelExpression(label, "In", (names[0] if names else value,))
    if not is_label_key(key) or not is_label_value(value):
        raise PolicyRefused(f"The property {name[:80]!r} cannot be a label of a node, so no node here has it.")
    return LabelExpression(key, "In", (value,)) if equals else LabelExpression(key, "Exists")
