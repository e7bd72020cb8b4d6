"""The keys of a FlyteAdmin config: which of ours each is, and which are accepted and have no use here."""

from __future__ import annotations

from msgspec import Struct

from switchyard.model.rules.names import Name

Path = tuple[str, ...]


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


def path_text(path: Path) -> str:
    return ".".join(path)


def known_keys() -> dict[Path, list[str]]:
    """The sections that are Flyte's alone, the innermost first, with the keys that are known in each."""
    own = {path[0] for path in OUR_SECTIONS}
    known: dict[Path, list[str]] = {}
    for path in (*FLYTE_KEYS, *UNUSED_KEYS):
        for length in range(1, len(path)):
            if path[0] not in own:
                keys = known.setdefault(path[:length], [])
                keys += [path[length]] if path[length] not in keys else []
    return dict(sorted(known.items(), key=lambda item: -len(item[0])))


def _words(text: str) -> Path:
    return tuple(text.split("."))


# Sections that both have, under one name.
OUR_SECTIONS = (("clusters",), ("cluster_resources",), ("storage",), ("resourcemanager",))
_CONFIG = "execution_config"
FLYTE_KEYS: dict[Path, Path] = {
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
UNUSED_KEYS: dict[Path, str] = {
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
