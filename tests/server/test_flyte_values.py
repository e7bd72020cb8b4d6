"""Values that no rule may have, at both of Flyte's doors: refused with the reason, and not stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.flyte_doors import Doors, opened

pytestmark = pytest.mark.xdist_group("flyte-values")
DEV = "development"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors")) as made:
        yield made


VALUES: list[tuple[str, dict[str, Any], str]] = [
    ("unknown label", {"execution_cluster_label": {"value": "nowhere"}}, "no label 'nowhere'"),
    ("empty label", {"execution_cluster_label": {}}, "value"),
    ("unknown pool", {"cluster_assignment": {"cluster_pool_name": "nowhere"}}, "no pool 'nowhere'"),
    ("unknown tag", {"execution_queue_attributes": {"tags": ["nowhere"]}}, "no queue has the tag 'nowhere'"),
    ("unknown tier", {"quality_of_service": {"tier": "LOW"}}, "LOW"),
    ("bad quantity", {"task_resource_attributes": {"limits": {"cpu": "a lot"}}}, "a lot"),
    (
        "a default above its limit",
        {"task_resource_attributes": {"defaults": {"cpu": "3"}, "limits": {"cpu": "2"}}},
        "above its own limit",
    ),
    ("a reserved name", {"cluster_resource_attributes": {"attributes": {"namespace": "kube-system"}}}, "namespace"),
    ("no value at all", {"task_resource_attributes": {}}, "at least one"),
]


@pytest.mark.parametrize(("given", "said"), [row[1:] for row in VALUES], ids=[row[0] for row in VALUES])
def test_a_value_that_cannot_hold_is_refused_and_not_stored(doors: Doors, given: dict[str, Any], said: str) -> None:
    project = doors.fresh()
    asked = {"attributes": {"project": project, "domain": DEV, "matching_attributes": given}}
    for ask in doors.ways().values():
        reply = ask("UpdateProjectDomainAttributes", asked)
        assert reply.code == "INVALID_ARGUMENT"
        assert said in reply.message
    view = doors.v1("GET", f"/v1/policy?project={project}&domain={DEV}")
    assert "project+domain" not in {
        field["level"] for attribute in view.get("attributes", []) for field in attribute["fields"]
    }


def test_cluster_resources_of_a_workflow_are_refused_naming_the_levels(doors: Doors) -> None:
    given = {"cluster_resource_attributes": {"attributes": {"a": "b"}}}
    scope = {"project": doors.fresh(), "domain": DEV, "workflow": "w"}
    for ask in doors.ways().values():
        reply = ask("UpdateWorkflowAttributes", {"attributes": {**scope, "matching_attributes": given}})
        assert reply.code == "INVALID_ARGUMENT"
        assert "domain, project, project+domain" in reply.message
