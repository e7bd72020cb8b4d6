"""Somebody without a grant on a project gets the same answers for it as for one that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.stage import Secret, Stage, staged

SECRET, NONE = "secret-project", "absent-project"  # of one length: bodies may be cut
CALLS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "/v1/projects/{project}", None),
    ("PATCH", "/v1/projects/{project}", {"title": "mine"}),
    ("GET", "/v1/jobs?project={project}", None),
    ("GET", "/v1/files/usage?project={project}", None),
    ("GET", "/v1/stats/routes?project={project}", None),
    ("GET", "/v1/executions?project={project}", None),
    ("GET", "/v1/executions/{project}/development/e", None),
    ("GET", "/v1/executions/{project}/development/e/explain", None),
    ("POST", "/v1/executions", {"project": "{project}", "task": "none"}),
    ("GET", "/v1/cluster-resources?project={project}&domain=production", None),
    ("GET", "/v1/cluster-resources/status?project={project}", None),
    ("GET", "/v1/attributes/execution-queue/effective?project={project}&domain=production", None),
    ("POST", "/v1/jobs", {"project": "{project}", "spec": {"command": ["true"]}}),
    ("POST", "/v1/jobs/bulk", {"jobs": [{"project": "{project}", "spec": {"command": ["true"]}}]}),
    ("POST", "/v1/plan", {"project": "{project}", "spec": {"command": ["true"]}}),
    ("POST", "/v1/quotes", {"project": "{project}", "spec": {"command": ["true"]}}),
    ("POST", "/v1/grants", {"role": "view", "to": "everyone", "on": "project", "object": "{project}"}),
)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, Secret]]:
    with staged(tmp_path_factory.mktemp("projects"), auth=True) as stage:
        stage.post("/v1/projects", {"name": SECRET})
        stage.post("/v1/users", {"name": "outsider"})
        yield stage, Secret(stage.post("/v1/tokens", {"user": "outsider"})["token"])


def filled(value: Any, project: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, project) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, project) for item in value]
    return value.replace("{project}", project) if isinstance(value, str) else value


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_outsider_cannot_tell_a_project_from_none(
    town: tuple[Stage, Secret], method: str, path: str, body: dict[str, Any] | None
) -> None:
    stage, token = town
    answers = []
    for project in (SECRET, NONE):
        answer = stage.call(method, filled(path, project), filled(body, project), token=token)
        text = answer.body if isinstance(answer.body, str) else answer.body.decode()
        answers.append((answer.status, text.replace(project, "PROJECT")))
    assert answers[0] == answers[1]
    assert answers[0][0] < 500
