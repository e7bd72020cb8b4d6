"""A user of flytekit, unmodified, in a process of its own: does one thing with its client and prints what came of it.

    python flytekit_client.py STORY '{"endpoint": "127.0.0.1:8089", "insecure": true}'

The second word is flytekit's PlatformConfig. Knows nothing of Switchyard.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from flyteidl.admin import matchable_resource_pb2 as matchable
from flyteidl.admin import project_attributes_pb2 as project_attributes
from flyteidl.admin import workflow_attributes_pb2 as workflow_attributes
from flytekit.configuration import Config, PlatformConfig
from flytekit.exceptions.base import FlyteException
from flytekit.models.core.identifier import WorkflowExecutionIdentifier
from flytekit.models.matchable_resource import (
    ClusterResourceAttributes,
    ExecutionClusterLabel,
    ExecutionQueueAttributes,
    MatchingAttributes,
    PluginOverride,
    PluginOverrides,
)
from flytekit.models.project import Project
from flytekit.remote import FlyteRemote
from google.protobuf.json_format import MessageToDict

PROJECT, DOMAIN = "kit", "development"
LABEL = matchable.EXECUTION_CLUSTER_LABEL


def main(story: str, platform: str) -> None:
    remote = FlyteRemote(Config(platform=PlatformConfig(**json.loads(platform))), PROJECT, DOMAIN)
    json.dump(STORIES[story](remote.client), sys.stdout)


def projects(client: Any) -> Any:
    client.register_project(Project(PROJECT, "Flytekit's own", "made by flytekit"))
    again = failure(lambda: client.register_project(Project(PROJECT, "Flytekit's own", "")))
    listed, token = client.list_projects_paginated(limit=10)
    client.update_project(Project.archived_project(PROJECT))
    archived = [each.id for each in client.list_projects_paginated(limit=10)[0]]
    closed = failure(lambda: client.update_project_domain_attributes(PROJECT, DOMAIN, label("PD")))
    client.update_project(Project.active_project(PROJECT))
    return {
        "again": again,
        "listed": {each.id: [each.name, each.description, each.state] for each in listed},
        "token": token,
        "after archiving": archived,
        "a rule for an archived one": closed,
        "after all": [each.id for each in client.list_projects_paginated(limit=10)[0]],
        "domains": [each.id for each in client.get_domains()],
        "version": client.get_control_plane_version(),
    }


def attributes(client: Any) -> Any:
    missing = failure(lambda: client.get_project_domain_attributes(PROJECT, DOMAIN, LABEL))
    override = PluginOverride("python", ["plugin"], PluginOverride.USE_DEFAULT)
    for given in (
        label("PD"),
        MatchingAttributes(cluster_resource_attributes=ClusterResourceAttributes({"projectQuotaCpu": "1000"})),
        MatchingAttributes(execution_queue_attributes=ExecutionQueueAttributes(["bar", "baz"])),
        MatchingAttributes(plugin_overrides=PluginOverrides([override])),
    ):
        client.update_project_domain_attributes(PROJECT, DOMAIN, given)
    client.update_workflow_attributes(PROJECT, DOMAIN, "app.flow", label("W"))
    refused = failure(lambda: client.update_project_domain_attributes(PROJECT, DOMAIN, label("nowhere")))
    by_hand(client)
    found = {
        "missing": missing,
        "refused": refused,
        "no execution": failure(lambda: client.relaunch_execution(WorkflowExecutionIdentifier(PROJECT, DOMAIN, "x"))),
        "of the domain": [plain(client.get_project_domain_attributes(PROJECT, DOMAIN, kind)) for kind in (1, 2, 3, 5)],
        "of the workflow": plain(client.get_workflow_attributes(PROJECT, DOMAIN, "app.flow", LABEL)),
        "of another workflow": plain(client.get_workflow_attributes(PROJECT, DOMAIN, "other", LABEL)),
        "of the project": plain(
            client._stub.GetProjectAttributes(project_attributes.ProjectAttributesGetRequest(project=PROJECT))
        ),
        "all": plain(client.list_matchable_attributes(LABEL)),
    }
    client._stub.DeleteWorkflowAttributes(
        workflow_attributes.WorkflowAttributesDeleteRequest(
            project=PROJECT, domain=DOMAIN, workflow="app.flow", resource_type=LABEL
        )
    )
    return found | {"after the delete": plain(client.list_matchable_attributes(LABEL))}


def by_hand(client: Any) -> None:
    """flytekit's own models know four kinds and two levels; for the rest its users take the stub."""
    limits = matchable.TaskResourceAttributes(limits=matchable.TaskResourceSpec(cpu="2"))
    given = matchable.MatchingAttributes(task_resource_attributes=limits)
    own = project_attributes.ProjectAttributes(project=PROJECT, matching_attributes=given)
    client._stub.UpdateProjectAttributes(project_attributes.ProjectAttributesUpdateRequest(attributes=own))


def look(client: Any) -> Any:
    """As somebody who may look at the project and no more."""
    return {
        "projects": [each.id for each in client.list_projects_paginated(limit=10)[0]],
        "label": plain(client.get_project_domain_attributes(PROJECT, DOMAIN, LABEL)),
        "write": failure(lambda: client.update_project_domain_attributes(PROJECT, DOMAIN, label("P"))),
        "elsewhere": failure(lambda: client.get_project_domain_attributes("foreign", DOMAIN, LABEL)),
        "register": failure(lambda: client.register_project(Project("mine", "mine", ""))),
    }


def reach(client: Any) -> Any:
    """What stands in the way, if anything."""
    return failure(lambda: client.list_projects_paginated(limit=10))


def write(client: Any) -> Any:
    client.register_project(Project(PROJECT, "Flytekit's own", ""))
    client.update_project_domain_attributes(PROJECT, DOMAIN, label("PD"))
    return plain(client.get_project_domain_attributes(PROJECT, DOMAIN, LABEL))


def label(value: str) -> MatchingAttributes:
    return MatchingAttributes(execution_cluster_label=ExecutionClusterLabel(value))


def plain(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


def failure(work: Callable[[], Any]) -> list[str]:
    """What flytekit raises, and what the server had said."""
    try:
        work()
    except FlyteException as exc:
        cause = exc.__cause__
        return [type(exc).__name__, cause.code().name, cause.details()]  # type: ignore[union-attr]
    return ["nothing"]


STORIES = {"projects": projects, "attributes": attributes, "look": look, "reach": reach, "write": write}

if __name__ == "__main__":
    main(*sys.argv[1:])
