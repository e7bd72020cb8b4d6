"""A FlyteAdmin config as it stands: its sections become ours, and each key without use here is reported.

The tables at the end say which of ours each key is, and which are accepted and have no use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from switchyard.model.rules.names import Name
from switchyard.server.config.config_reading import ABSENT, ConfigReading, KeyPath, path_text, value_at
from switchyard.server.config.section_checks import find_mistakes

DEFAULT_DOMAINS = ("development", "staging", "production")


class ExecutionQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue of Flyte's: `dynamic` is its name."""

    dynamic: Name
    attributes: list[Name] = []
    primary: str = ""


class WorkflowQueues(Struct, frozen=True, forbid_unknown_fields=True):
    """The tags of a domain's jobs; without a domain, of all others."""

    tags: list[Name] = []
    domain: str = ""
    project: str = ""
    workflowName: str = ""


def read_flyte_keys(reading: ConfigReading) -> None:
    """Put the file into our words. A file without Flyte's keys stays as it is."""
    for theirs, ours in FLYTE_KEYS.items():
        value = _take(reading.value, theirs)
        if value is not ABSENT:
            reading.add(reading.in_file(path_text(theirs)), ours, value)
    _drop_unused(reading)
    _read_queues(reading)
    _refuse_rest(reading)


def known_keys() -> dict[KeyPath, list[str]]:
    """The sections that are Flyte's alone, the innermost first, with the keys that are known in each."""
    own = {path[0] for path in OUR_SECTIONS}
    known: dict[KeyPath, list[str]] = {}
    for path in (*FLYTE_KEYS, *UNUSED_KEYS):
        for length in range(1, len(path)):
            if path[0] not in own:
                keys = known.setdefault(path[:length], [])
                keys += [path[length]] if path[length] not in keys else []
    return dict(sorted(known.items(), key=lambda item: -len(item[0])))


def _drop_unused(reading: ConfigReading) -> None:
    """Report keys without use. Those of a cluster stay: their shape is checked with the cluster."""
    for path, reason in UNUSED_KEYS.items():
        take = value_at if path[0] == "clusters" else _take
        found = [take(holder, path[-1:]) for holder in _holders(reading.value, path[:-1])]
        if any(value is not ABSENT for value in found):
            reading.unused[reading.in_file(path_text(path))] = reason
            if len(path) > 1 and reading.value.get(path[0]) == {}:
                del reading.value[path[0]]


def _refuse_rest(reading: ConfigReading) -> None:
    """Report what is left of Flyte's sections: keys that nobody knows."""
    for section, known in known_keys().items():
        rest = _take(reading.value, section)
        if rest is ABSENT or rest is None or rest == {}:
            continue
        where = path_text(section)
        if isinstance(rest, dict):
            reading.mistakes += [f"{where}.{key}: unknown key; known here: {', '.join(known)}" for key in rest]
        else:
            reading.mistakes.append(f"{where}: Expected `object`, got `{type(rest).__name__}`")


def _read_queues(reading: ConfigReading) -> None:
    """Read `queues` in Flyte's form: a map of execution queues, and of tags by domain."""
    queues: list[tuple[str, Any]] = []
    tags: list[tuple[str, Any]] = []
    if isinstance(reading.value.get("queues"), dict) and reading.value["queues"]:
        section = reading.value.pop("queues")
        queues += [("queues.executionQueues", section.pop("executionQueues", ABSENT))]
        tags += [("queues.workflowConfigs", section.pop("workflowConfigs", ABSENT))]
        known = "executionQueues, workflowConfigs"
        reading.mistakes += [f"queues.{key}: unknown key; known here: {known}" for key in section]
    queues += [("executionQueues", reading.value.pop("executionQueues", ABSENT))]
    tags += [("workflowConfigs", reading.value.pop("workflowConfigs", ABSENT))]
    for where, rows in queues:
        if rows is not ABSENT:
            _add_queues(reading, where, rows)
    for where, rows in tags:
        if rows is not ABSENT:
            _add_tags(reading, where, rows)


def _add_queues(reading: ConfigReading, where: str, rows: Any) -> None:
    if mistakes := find_mistakes(rows, list[ExecutionQueue], where):
        reading.mistakes += mistakes
        return
    if any("primary" in row for row in rows):
        reading.unused[f"{where}[].primary"] = "a queue has one name, its `dynamic`"
    queues = msgspec.convert(rows, list[ExecutionQueue])
    reading.add(where, ("queues",), [{"name": queue.dynamic, "attributes": queue.attributes} for queue in queues])


def _add_tags(reading: ConfigReading, where: str, rows: Any) -> None:
    """Give domains their tags. As Flyte does: the last entry of a domain counts, else the last without a domain."""
    if mistakes := find_mistakes(rows, list[WorkflowQueues], where):
        reading.mistakes += mistakes
        return
    by_domain: dict[str, tuple[str, list[str]]] = {}
    for index, row in enumerate(msgspec.convert(rows, list[WorkflowQueues])):
        if row.project or row.workflowName:
            reading.unused[f"{where}[] with project or workflowName"] = (
                "the file has no rules of one project; set them with `yard update execution-queue-attribute`"
            )
            continue
        by_domain[row.domain] = (f"{where}[{index}]", _first_known(reading, where, row.tags))
    domains = reading.value.get("domains", list(DEFAULT_DOMAINS))
    if not by_domain or not isinstance(domains, list):
        return
    named: list[dict[str, Any]] = [domain if isinstance(domain, dict) else {"id": domain} for domain in domains]
    known = [str(domain.get("id")) for domain in named]
    for index, domain in enumerate(named):
        if domain.get("tags"):
            reading.mistakes.append(
                f"{where}: says the same as domains[{index}].tags, which the file has too; keep one of them"
            )
            return
    for name, (entry, _) in by_domain.items():
        if name and name not in known:
            reading.mistakes.append(f"{entry}.domain: there is no such domain; known: {', '.join(known)}")
    nowhere: tuple[str, list[str]] = ("", [])
    for domain_row in named:
        tags = by_domain.get(str(domain_row.get("id")), by_domain.get("", nowhere))[1]
        domain_row.update({"tags": tags} if tags else {})
    reading.value["domains"] = named


def _first_known(reading: ConfigReading, where: str, tags: list[str]) -> list[str]:
    """The first tag that a queue has, as in Flyte. All of them if no queue has one: then they are a mistake."""
    queues = reading.value.get("queues")
    rows = [row for row in queues if isinstance(row, dict)] if isinstance(queues, list) else []
    known = {str(tag) for row in rows for tag in (row.get("name"), *(row.get("attributes") or ()))}
    first = [tag for tag in tags if tag in known][:1]
    if first and len(tags) > 1:
        reading.unused[f"{where}[].tags after the first that a queue has"] = "the first tag selects the queue"
    return first or tags


def _holders(value: Any, path: KeyPath) -> Iterator[Any]:
    """The maps at a path; a part that ends in [] is each item of a list."""
    if not path:
        yield value
        return
    inner = value.get(path[0].removesuffix("[]")) if isinstance(value, dict) else None
    for item in inner if path[0].endswith("[]") and isinstance(inner, list) else [inner]:
        yield from _holders(item, path[1:])


def _take(value: Any, path: KeyPath) -> Any:
    """Remove and return the value at a path."""
    holder = value_at(value, path[:-1])
    if not isinstance(holder, dict) or path[-1] not in holder:
        return ABSENT
    return holder.pop(path[-1])


def _words(text: str) -> KeyPath:
    return tuple(text.split("."))


# Sections that both have, under one name.
OUR_SECTIONS = (("clusters",), ("cluster_resources",), ("storage",), ("resourcemanager",))
_CONFIG = "execution_config"
FLYTE_KEYS: dict[KeyPath, KeyPath] = {
    _words(theirs): _words(ours)
    for theirs, ours in (
        # The chart of Flyte has one more level around the same.
        ("task_resource_defaults.task_resources", "task_resources"),
        ("task_resource_defaults.defaults", "task_resources.defaults"),
        ("task_resource_defaults.limits", "task_resources.limits"),
        ("cluster_resource_manager.config.cluster_resources", "cluster_resources"),
        ("clusterResources", "cluster_resources"),
        ("cluster_resources.refresh", "cluster_resources.refreshInterval"),
        ("namespace_config.namespace_mapping", "namespace_mapping"),
        ("clusterPools.clusterPoolAssignments", "clusters.clusterPoolAssignments"),
        ("qualityOfService", "quality_of_service"),
        ("domain.domains", "domains"),
        ("propeller.resourcemanager", "resourcemanager"),
        ("flyteadmin.maxParallelism", f"{_CONFIG}.max_parallelism"),
        ("flyteadmin.k8sServiceAccount", f"{_CONFIG}.security_context.run_as.k8s_service_account"),
        ("flyteadmin.assumableIamRole", f"{_CONFIG}.security_context.run_as.iam_role"),
        ("flyteadmin.outputLocationPrefix", f"{_CONFIG}.raw_output_data_config.output_location_prefix"),
        ("flyteadmin.interruptible", f"{_CONFIG}.interruptible"),
        ("flyteadmin.overwriteCache", f"{_CONFIG}.overwrite_cache"),
        ("flyteadmin.labels", f"{_CONFIG}.labels"),
        ("flyteadmin.annotations", f"{_CONFIG}.annotations"),
        ("flyteadmin.envs", f"{_CONFIG}.envs"),
    )
}
_DIALS_IN = "the agent of the cluster connects to this server, and this server never to the cluster"
_DATABASE = "this server has a database of its own (`--database`)"
_USERS = "users and their tokens are in this server's database (`yard user`)"
_NO_NOTICES = "this server sends no messages; follow the stream of events (`yard events -f`)"
_PROCESS = "it is about the process of FlyteAdmin"
_STORAGE = "this server keeps files where `storage.url` says"
UNUSED_KEYS: dict[KeyPath, str] = {
    _words(theirs): reason
    for reason, keys in (
        (
            _DIALS_IN,
            (
                "clusters.clusterConfigs[].endpoint",
                "clusters.clusterConfigs[].auth",
                "clusters.clusterConfigs[].kubeClientConfig",
                "clusters.clusterConfigs[].inCluster",
            ),
        ),
        ("templates are applied by agents", ("cluster_resources.standaloneDeployment",)),
        ("templates are files in the folder `cluster_resources.templatePath`", ("cluster_resource_manager.templates",)),
        ("it is about the chart of Flyte", ("cluster_resource_manager.enabled",)),
        ("every project may use every type of task", ("task_type_whitelist",)),
        ("the bounds of workflows are under `workflows`", ("registration",)),
        (_DATABASE, ("database",)),
        (_USERS, ("auth",)),
        (_NO_NOTICES, ("notifications", "externalEvents", "cloudEvents")),
        ("schedules of launch plans run in this server", ("scheduler", "flyteadmin.runScheduler")),
        ("data of tasks is reached through agents and `storage`", ("remoteData", "flyteadmin.metadataStoragePrefix")),
        ("the site file of an agent says what becomes of a role", ("flyteadmin.roleNameKey",)),
        (
            _STORAGE,
            (
                *("storage.type", "storage.container", "storage.connection", "storage.stow", "storage.cache"),
                *("storage.limits", "storage.enable-multicontainer", "storage.signedURL"),
            ),
        ),
        ("the address and certificates are options of `yard server`", ("server",)),
        (
            _PROCESS,
            (
                *("application", "Logger", "logger", "admin", "otel"),
                *("flyteadmin.profilerPort", "flyteadmin.metricsScope", "flyteadmin.metricsKeys", "flyteadmin.testing"),
                *("flyteadmin.eventVersion", "flyteadmin.asyncEventsBufferSize", "flyteadmin.featureGates"),
                *("flyteadmin.useOffloadedWorkflowClosure", "flyteadmin.useOffloadedInputs", "flyteadmin.consoleUrl"),
            ),
        ),
    )
    for theirs in keys
}
