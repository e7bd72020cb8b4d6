"""A user of flytekit, unmodified, in a process of its own: registers, fetches and lists entities.

    python flytekit_entities.py STORY '{"endpoint": "127.0.0.1:8089", "insecure": true}'

It imports `flows` from its folder. Knows nothing of Switchyard.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from flytekit import LaunchPlan
from flytekit.configuration import Config, ImageConfig, PlatformConfig, SerializationSettings
from flytekit.exceptions.base import FlyteException
from flytekit.models import filters
from flytekit.models.admin.common import Sort
from flytekit.models.common import NamedEntityIdentifier
from flytekit.models.core.identifier import Identifier, ResourceType, WorkflowExecutionIdentifier
from flytekit.models.launch_plan import LaunchPlanState
from flytekit.remote import FlyteRemote

PROJECT, DOMAIN = "kit", "development"
NO_EXECUTION = WorkflowExecutionIdentifier(PROJECT, DOMAIN, "x")


def main(story: str, platform: str) -> None:
    sys.path.insert(0, ".")
    remote = FlyteRemote(Config(platform=PlatformConfig(**json.loads(platform))), PROJECT, DOMAIN)
    json.dump(STORIES[story](remote), sys.stdout)


def register(remote: Any) -> Any:
    """By FlyteRemote, without an upload; then the same again, and something else under the same version."""
    import flows  # type: ignore[import-not-found]

    task = remote.register_task(flows.add, settings(), "r1")
    workflow = remote.register_workflow(flows.wf, settings(), "r1")
    plan = remote.register_launch_plan(
        LaunchPlan.get_or_create(flows.wf, name="flows.often", default_inputs={"n": 4}),
        "r1",
        serialization_settings=settings(),
    )
    again = remote.register_workflow(flows.wf, settings(), "r1")
    return {
        "names": [task.id.name, workflow.id.name, plan.id.name, again.id.version],
        "nodes": [node.id for node in workflow.flyte_nodes],
        "other": failure(lambda: remote.register_task(flows.add, settings("other/image:2"), "r1")),
    }


def look(remote: Any) -> Any:
    task = remote.fetch_task(name="flows.add", version="v1")
    newest = remote.fetch_task(name="flows.add")
    workflow = remote.fetch_workflow(name="flows.wf", version="v1")
    plan = remote.fetch_launch_plan(name="flows.doubled", version="v1")
    return {
        "task": [task.id.version, sorted(task.interface.inputs), task.template.container.image],
        "newest": newest.id.version,
        "workflow": [
            sorted(workflow.interface.inputs),
            [node.id for node in workflow.flyte_nodes],
            [sub.id.name for sub in workflow.flyte_sub_workflows],
        ],
        "plan": [
            plan.workflow_id.name,
            plan.is_scheduled,
            plan.default_inputs.parameters["n"].default.scalar.primitive.integer,
        ],
        "missing": failure(lambda: remote.fetch_task(name="flows.add", version="v9")),
        "by version": sorted(task.id.name for task in remote.list_tasks_by_version("v1")),
        "no execution": failure(lambda: remote.client.relaunch_execution(NO_EXECUTION)),
    }


def lists(remote: Any) -> Any:
    client, here = remote.client, NamedEntityIdentifier(PROJECT, DOMAIN, None)
    newest = Sort("created_at", Sort.Direction.DESCENDING)
    by_name = Sort("name", Sort.Direction.ASCENDING)
    first, token = client.list_tasks_paginated(here, limit=1, sort_by=by_name)
    second, _ = client.list_tasks_paginated(here, limit=1, token=token, sort_by=by_name)
    only = [filters.Contains("task.name", ["doub"]), filters.ValueIn("version", ["v1", "v2"])]
    return {
        "task ids": [one.name for one in client.list_task_ids_paginated(PROJECT, DOMAIN)[0]],
        "workflow ids": [one.name for one in client.list_workflow_ids_paginated(PROJECT, DOMAIN)[0]],
        "plan ids": [one.name for one in client.list_launch_plan_ids_paginated(PROJECT, DOMAIN)[0]],
        "pages": [one.id.name for one in (*first, *second)],
        "filtered": [one.id.name for one in client.list_tasks_paginated(here, limit=9, filters=only)[0]],
        "versions": [
            one.id.version
            for one in client.list_workflows_paginated(
                NamedEntityIdentifier(PROJECT, DOMAIN, "flows.wf"), sort_by=newest
            )[0]
        ],
        "bad filter": failure(lambda: client.list_tasks_paginated(here, filters=[filters.Equal("colour", "red")])),
    }


def activate(remote: Any) -> Any:
    """The active version, before and after each change."""
    client, name = remote.client, "flows.doubled"
    told: list[Any] = []

    def note() -> None:
        listed = client.list_active_launch_plans_paginated(PROJECT, DOMAIN)[0]
        try:
            active = client.get_active_launch_plan(NamedEntityIdentifier(PROJECT, DOMAIN, name)).id.version
        except FlyteException as exc:
            active = type(exc).__name__
        told.append([active, [f"{plan.id.name}:{plan.id.version}" for plan in listed]])

    note()
    for version, state in (
        ("v1", LaunchPlanState.ACTIVE),
        ("v2", LaunchPlanState.ACTIVE),
        ("v2", LaunchPlanState.INACTIVE),
    ):
        client.update_launch_plan(Identifier(ResourceType.LAUNCH_PLAN, PROJECT, DOMAIN, name, version), state)
        note()
    return told


def settings(image: str = "registry.example/team/image:1") -> SerializationSettings:
    return SerializationSettings(
        image_config=ImageConfig.auto(img_name=image), project=PROJECT, domain=DOMAIN, version="r1"
    )


def failure(work: Callable[[], Any]) -> list[str]:
    """What flytekit raises, and what the server had said."""
    try:
        work()
    except FlyteException as exc:
        cause = exc.__cause__
        return [type(exc).__name__, cause.code().name, cause.details()]  # type: ignore[union-attr]
    return ["nothing"]


STORIES = {"register": register, "look": look, "lists": lists, "activate": activate}

if __name__ == "__main__":
    main(*sys.argv[1:])
