"""Rules and cluster resources by the SDK, on both databases: a stale writer is told, renders are kept per scope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client, Conflict, NotFound, Scope, YardError
from tests.programs import start_server
from tests.soak import SOAKED

KIND = "task-resource-attribute"
HERE = Scope(domain="development", project="default")


@pytest.fixture
def client(tmp_path: Path, database_url: str) -> Iterator[Client]:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "quota.yaml").write_text("cpu: {{ cpu }}\nnamespace: {{ namespace }}\n")
    config = tmp_path / "yard.yaml"
    config.write_text(
        json.dumps({"cluster_resources": {"templatePath": "templates", "templateData": {"cpu": {"value": "4"}}}})
    )
    with (
        start_server(tmp_path, database=database_url, extra=["--config", str(config)]) as server,
        Client(server.url) as opened,
    ):
        yield opened


def test_rules_are_written_read_and_explained(client: Client) -> None:
    assert [kind.number for kind in client.attribute_kinds()][:8] == list(range(8))
    assert [domain.id for domain in client.domains()] == ["development", "production", "staging"]
    with pytest.raises(NotFound):
        client.attribute(KIND, HERE)
    assert client.check_attribute(KIND, HERE, {"limits": {"cpu": 2}}) == {"limits": {"cpu": "2"}}
    first = client.put_attribute(KIND, HERE, {"limits": {"cpu": "2"}})
    with pytest.raises(Conflict):  # no etag: there must be no row
        client.put_attribute(KIND, HERE, {"limits": {"cpu": "3"}})
    second = client.put_attribute(KIND, HERE, {"limits": {"cpu": "3"}}, etag=first.etag)
    with pytest.raises(Conflict):
        client.put_attribute(KIND, HERE, {"limits": {"cpu": "4"}}, etag=first.etag)
    with pytest.raises(Conflict):
        client.delete_attribute(KIND, HERE, etag=first.etag)
    assert client.attribute(KIND, HERE).value == {"limits": {"cpu": "3"}}
    assert [row.scope for row in client.attributes(KIND)] == [HERE]
    workflow = Scope(domain="development", project="default", workflow="w")
    assert client.effective_attribute(KIND, workflow).fields[0].level == "project+domain"
    assert client.policy(workflow).attributes[0].value == {"limits": {"cpu": "3"}}
    client.delete_attribute(KIND, HERE, etag=second.etag)
    assert [change.action for change in client.attribute_history(KIND, HERE)] == [
        "attribute.delete",
        "attribute.put",
        "attribute.put",
    ]


@pytest.mark.parametrize("database_url", ["sqlite", SOAKED("postgresql")], indirect=True)
def test_renders_are_kept_per_project_and_domain(client: Client) -> None:
    assert client.cluster_resource_changes("default", "development").last is None
    kept = client.render_cluster_resources("default", "development")
    assert kept.files[0].text == "cpu: 4\nnamespace: default-development\n"
    client.render_cluster_resources("default", "production")
    client.put_attribute("cluster-resource-attribute", HERE, {"attributes": {"cpu": "1000"}})
    change = client.cluster_resource_changes("default", "development")
    assert change.last == kept
    assert change.now.files[0].text == "cpu: 1000\nnamespace: default-development\n"
    again = client.render_cluster_resources("default", "development")
    assert client.cluster_resource_changes("default", "development").last == again
    assert client.cluster_resource_changes("default", "production").now.values["cpu"] == "platform config"


@pytest.mark.parametrize("database_url", ["sqlite", SOAKED("postgresql")], indirect=True)
def test_projects(client: Client) -> None:
    made = client.create_project("vision", title="Vision", description="images", labels={"team": "red"})
    assert (made.title, made.labels) == ("Vision", {"team": "red"})
    assert client.change_project("vision", archived=True).is_archived
    with pytest.raises(YardError, match="archived"):
        client.put_attribute(KIND, Scope(project="vision"), {"limits": {"cpu": "1"}})
    assert not client.change_project("vision", archived=False).is_archived
    assert client.project("vision").description == "images"
