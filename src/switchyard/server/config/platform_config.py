"""From the config file to the platform's policy: names, values, and every mistake between the sections."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from switchyard.errors import YardError
from switchyard.model.executions.execution import Tier
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.layout import Layout
from switchyard.model.rules.queue import known_tags
from switchyard.policy.kinds import BUILTIN_KINDS
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind, ClusterAssignmentValue
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind, ExecutionClusterLabelValue
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind, ExecutionQueueValue
from switchyard.policy.kinds.job_priority import JOB_PRIORITY
from switchyard.policy.kinds.kind import Kind, Kinds
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.task_resources import TaskResourcesKind
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind
from switchyard.policy.platform import Platform
from switchyard.server.config.clusters_section_checks import duplicate_clusters, duplicate_names
from switchyard.server.config.config import Config, ResourceSetSection
from switchyard.service.cluster.clusters import RESERVED_CLUSTER_NAMES

FIELD_ALIASES = {"ephemeralStorage": "ephemeral_storage"}


def platform_of(config: Config) -> Platform:
    """The platform of a config without mistakes."""
    platform, mistakes = read_platform(config)
    assert not mistakes, mistakes
    return platform


def read_platform(config: Config) -> tuple[Platform, list[str]]:
    """Return the platform of a config, and the mistakes in it."""
    mistakes: list[str] = []
    domains = {domain.id: domain.name or domain.id for domain in config.all_domains}
    values: dict[str, Struct] = {}
    _take(values, mistakes, TaskResourcesKind(), "task_resources", _task_resources(config, mistakes))
    _take(values, mistakes, WorkflowExecutionConfigKind(), "execution_config", _without_none(config.execution_config))
    _take(values, mistakes, JOB_PRIORITY, "job_priority", _without_none(config.job_priority))
    label = config.clusters.defaultExecutionLabel
    if label is not None:
        values[ExecutionClusterLabelKind.name] = ExecutionClusterLabelValue(label)
    queues = {queue.name: queue.settings for queue in config.queues}
    platform = Platform(
        domains=domains,
        pools=frozenset(config.clusters.poolNameClusterMap),
        labels=frozenset(config.clusters.labelClusterMap),
        tags=known_tags(queues),
        queues=queues,
        tiers_s=_tiers(config, mistakes),
        spill=config.spill.by_pool,
        task_tokens={name: dict(needed) for name, needed in config.resourcemanager.taskTypes.items()},
        values=values,
        domain_values=_domain_values(config, mistakes),
    )
    mistakes += _mistakes(config, platform)
    return platform, mistakes


def layout_of(config: Config) -> Layout:
    """The layout of a config: clusters, pools, labels and queues."""
    clusters = config.clusters
    return Layout(
        clusters={cluster.name: cluster.enabled for cluster in clusters.clusterConfigs},
        pools={
            name: {member.id: member.weight for member in members}
            for name, members in clusters.poolNameClusterMap.items()
        },
        labels={
            name: {member.id: member.weight for member in members} for name, members in clusters.labelClusterMap.items()
        },
        default_label=clusters.defaultExecutionLabel,
        domain_pools={domain: assigned.pool for domain, assigned in clusters.clusterPoolAssignments.items()},
        sticky=sorted(set(clusters.stickyPools)),
        queues={queue.name: queue.settings for queue in config.queues},
        domain_tags={domain.id: domain.tags for domain in config.all_domains if domain.tags},
    )


def _take(values: dict[str, Struct], mistakes: list[str], kind: Kind, where: str, raw: dict[str, Any]) -> None:
    """Read a section as a value of the kind, so that the same rules hold for the config and for stored attributes."""
    if not raw:
        return
    try:
        value = kind.read(raw)
    except YardError as exc:
        mistakes.append(exc.detail.replace(f"{kind.title}:", f"{where}:"))
        return
    if kind.flatten(value):
        values[kind.name] = value


def _task_resources(config: Config, mistakes: list[str]) -> dict[str, Any]:
    resources = config.task_resources
    amounts_by_use = {
        "defaults": _amounts(resources.defaults, "task_resources.defaults", mistakes),
        "limits": _amounts(resources.limits, "task_resources.limits", mistakes),
    }
    return {name: amounts for name, amounts in amounts_by_use.items() if amounts}


def _amounts(section: ResourceSetSection, where: str, mistakes: list[str]) -> dict[str, Any]:
    """Return the valid amounts, and add a mistake for each other one."""
    amounts: dict[str, Any] = {}
    for name, value in _without_none(section).items():
        try:
            TaskResourcesKind().read({"limits": {FIELD_ALIASES.get(name, name): value}})
        except YardError as exc:
            mistakes.append(f"{where}.{name}: {exc.detail.partition(': ')[2].partition(' - at')[0]}")
        else:
            amounts[FIELD_ALIASES.get(name, name)] = value
    return amounts


def _without_none(section: Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(section).items() if value is not None}


def _tiers(config: Config, mistakes: list[str]) -> dict[str, int]:
    budgets: dict[str, int] = {}
    for tier, value in config.quality_of_service.tierExecutionValues.items():
        where = f"quality_of_service.tierExecutionValues.{tier}"
        if tier not in list(Tier):
            mistakes.append(f"{where}: unknown tier; known: {', '.join(Tier)}")
            continue
        try:
            budgets[tier] = parse_duration_s(value.queueingBudget)
        except ValueError as exc:
            mistakes.append(f"{where}.queueingBudget: {exc}")
    return budgets


def _domain_values(config: Config, mistakes: list[str]) -> dict[str, dict[str, Struct]]:
    """The values of each domain: its pool, its tags, its tier."""
    values: dict[str, dict[str, Struct]] = {}
    for domain, assigned in config.clusters.clusterPoolAssignments.items():
        values.setdefault(domain, {})[ClusterAssignmentKind.name] = ClusterAssignmentValue(assigned.pool)
    for section in config.all_domains:
        if section.tags:
            values.setdefault(section.id, {})[ExecutionQueueKind.name] = ExecutionQueueValue(section.tags)
    kind = QualityOfServiceKind()
    for domain, tier in config.quality_of_service.defaultTiers.items():
        try:
            values.setdefault(domain, {})[kind.name] = kind.read({"tier": tier})
        except YardError:
            mistakes.append(
                f"quality_of_service.defaultTiers.{domain}: unknown tier {tier!r}; known: {', '.join(Tier)}"
            )
    return values


def _mistakes(config: Config, platform: Platform) -> list[str]:
    """Names that are given twice, or used and never given."""
    clusters = config.clusters
    mistakes = [
        *duplicate_clusters(msgspec.to_builtins(clusters)),
        *(
            f"clusters.clusterConfigs: no cluster can be called {cluster.name}: it is a word of the API"
            for cluster in clusters.clusterConfigs
            if cluster.name in RESERVED_CLUSTER_NAMES
        ),
        *duplicate_names("queues", (queue.name for queue in config.queues)),
        *duplicate_names("domains", (domain.id for domain in config.all_domains)),
        *(["domains: give at least one"] if not config.domains else []),
    ]
    for section, named in (
        ("clusters.clusterPoolAssignments", clusters.clusterPoolAssignments),
        ("quality_of_service.defaultTiers", config.quality_of_service.defaultTiers),
    ):
        mistakes += [f"{section}.{name}: there is no such domain" for name in named if name not in platform.domains]
    if (label := clusters.defaultExecutionLabel) is not None and label not in platform.labels:
        mistakes.append(f"clusters.defaultExecutionLabel: labelClusterMap has no label {label!r}")
    mistakes += config.spill.strangers(platform.pools)
    mistakes += [
        f"clusters.stickyPools: there is no pool {pool!r}"
        for pool in dict.fromkeys(clusters.stickyPools)
        if pool not in platform.pools
    ]
    kinds = Kinds(BUILTIN_KINDS)
    for domain, values in platform.domain_values.items():
        for name, value in values.items():
            where = f"{_SECTIONS[name]} of domain {domain}"
            mistakes += [f"{where}: {mistake}" for mistake in kinds.get(name).check(value, platform)]
    return mistakes


_SECTIONS = {
    ClusterAssignmentKind.name: "clusters.clusterPoolAssignments",
    ExecutionQueueKind.name: "tags",
    QualityOfServiceKind.name: "quality_of_service.defaultTiers",
}
