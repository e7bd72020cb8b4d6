"""`/metrics`: who may read it, and that it is Prometheus's form, with the requests of this very test counted in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.programs import call, start_server
from tests.server.town import ROLES, Town

pytestmark = pytest.mark.xdist_group("metrics")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_it_needs_the_role_view_on_the_platform(town: Town) -> None:
    # nobody, bad, agent: no user; view … admin: of their own project and cluster alone
    says = dict(zip(ROLES, (401, 401, 401, 403, 403, 403, 403, 403, 200), strict=True))
    statuses = {role: town.ask("GET", "/metrics", token=town.tokens[role]).status for role in ROLES}
    assert statuses == says
    _, viewer = town.user(("view", "platform", "all"))
    answer = town.ask("GET", "/metrics", token=viewer)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert town.ask("POST", "/metrics", {}, token=town.root).status == 405


def test_what_is_done_is_counted_under_the_addresses_of_the_table(town: Town) -> None:
    before = samples(town.ask("GET", "/metrics", token=town.root).body.decode())
    job = town.job("own")
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/explain", "/v1/nothing/here", "/v1/nothing/there"):
        town.ask("GET", path, token=town.root)
    assert town.ask("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "pool": "none"}, token=town.root).status == 400
    after = samples(town.ask("GET", "/metrics", token=town.root).body.decode())

    def grown(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0) - before.get(key, 0)

    requests = "switchyard_http_requests_total"
    assert grown(requests, method="POST", route="/v1/jobs", code="201") == 1
    assert grown(requests, method="GET", route="/v1/jobs/{job}", code="200") == 1
    assert grown(requests, method="GET", route="/v1/jobs/{job}/explain", code="200") == 1
    assert grown(requests, method="GET", route="other", code="404") == 2
    assert grown("switchyard_jobs_accepted_total") == 1
    assert grown("switchyard_route_refusals_total", code="unknown-name", step="admit") == 1
    assert grown("switchyard_route_decision_seconds_count") >= 1
    assert grown("switchyard_commit_seconds_count") >= 1
    outcomes = [value for (name, _), value in after.items() if name == "switchyard_route_decisions_total"]
    assert sum(outcomes) >= 1


def test_it_may_be_opened_to_everybody(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("metrics: {anonymous: true}\n", encoding="utf-8")
    with start_server(tmp_path, auth=True, extra=["--config", str(config)]) as server:
        assert call("GET", f"{server.url}/metrics").status == 200
        assert call("GET", f"{server.url}/v1/jobs").status == 401
