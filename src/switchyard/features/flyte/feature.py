"""The feature Flyte, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="flyte",
    commands={
        "Workflows": [
            (
                "flyte",
                "switchyard.features.flyte.cli.flyte",
                "List, show, draw and explain executions of Flyte's workflows and tasks",
            ),
            (
                "create",
                "switchyard.features.flyte.cli.create",
                "Create an execution from a file of flytectl's, or run one again",
            ),
        ]
    },
    config={"workflows": "switchyard.features.flyte.server.workflows_section:WorkflowsSection"},
    config_keys="switchyard.features.flyte.server.config_keys:read_flyte_keys",
    store="switchyard.features.flyte.store.feature:FlyteStore",
    server="switchyard.features.flyte.server.feature:FlyteFeature",
)
