"""Every route with every role, on what is theirs and what is not. A route without a row here fails the tests."""

from __future__ import annotations

import pytest

from switchyard.server.http.endpoints import ENDPOINTS
from tests.server.cases import (
    ADMINS,
    ADMINS_MAKE,
    ALL,
    ROOT,
    ROOT_MAKES,
    SEES,
    SPEC,
    UNSEEN,
    UNSEEN_MAKES,
    USERS,
    Case,
    agent_of,
    at,
    endless,
    foreign,
    fresh_cluster,
    grant_id,
    grant_on,
    me,
    my_token,
    own,
    send,
)
from tests.server.execution_cases import EXECUTION_CASES
from tests.server.file_cases import FILE_CASES
from tests.server.graph_cases import GRAPH_CASES
from tests.server.invite_cases import INVITE_CASES
from tests.server.layout_cases import LAYOUT_CASES
from tests.server.rows_rules import RULES
from tests.server.token_cases import TOKEN_CASES
from tests.server.town import ROLES, Town

pytestmark = pytest.mark.xdist_group("permissions")

JOB_READS = {
    "/v1/jobs/{job}": "/v1/jobs/{}",
    "/v1/jobs/{job}/wait": "/v1/jobs/{}/wait?timeout_s=0",
    "/v1/jobs/{job}/events": "/v1/jobs/{}/events",
    "/v1/jobs/{job}/output": "/v1/jobs/{}/output?stream=stderr",
    "/v1/jobs/{job}/explain": "/v1/jobs/{}/explain",
}
HUGE = {**SPEC, "resources": {"cores": 10_000}}  # fits nowhere, so nobody is asked and waited for
CASES = [
    Case("GET /v1/version", "anybody", ALL),
    Case("GET /v1/whoami", "a user", USERS),
    Case(
        "POST /v1/jobs",
        "own project, own cluster",
        "401 401 401 403 403 201 201 201 201",
        body=send(spec=SPEC, project="own", cluster="own"),
    ),
    Case("POST /v1/jobs", "own project", "401 401 401 403 403 201 201 201 201", body=send(spec=SPEC, project="own")),
    Case("POST /v1/jobs", "foreign project", ROOT_MAKES, body=send(spec=SPEC, project="foreign")),
    Case(
        "POST /v1/jobs",
        "own project, foreign cluster",
        "401 401 401 403 403 400 400 400 201",
        body=send(spec=SPEC, project="own", cluster="foreign"),
    ),
    Case("POST /v1/plan", "own project", "401 401 401 403 403 200 200 200 200", body=send(spec=SPEC, project="own")),
    Case("POST /v1/plan", "foreign project", ROOT, body=send(spec=SPEC, project="foreign")),
    Case("POST /v1/quotes", "own project", "401 401 401 403 403 200 200 200 200", body=send(spec=HUGE, project="own")),
    Case("POST /v1/quotes", "foreign project", ROOT, body=send(spec=HUGE, project="foreign")),
    Case("GET /v1/jobs", "all one may see", USERS),
    Case("GET /v1/jobs", "own project", "401 401 401 403 200 200 200 200 200", lambda *_: "/v1/jobs?project=own"),
    Case("GET /v1/jobs", "foreign project", ROOT, lambda *_: "/v1/jobs?project=foreign"),
    *(Case(f"GET {route}", "own project", SEES, at(path, own("job"))) for route, path in JOB_READS.items()),
    *(Case(f"GET {route}", "foreign project", UNSEEN, at(path, foreign("job"))) for route, path in JOB_READS.items()),
    Case(
        "POST /v1/jobs/{job}/cancel",
        "another's job in the own project",
        "401 401 401 404 403 403 200 200 200",
        at("/v1/jobs/{}/cancel", own("job")),
        send(),
    ),
    Case("POST /v1/jobs/{job}/cancel", "foreign project", UNSEEN, at("/v1/jobs/{}/cancel", foreign("job")), send()),
    Case("GET /v1/schema", "anybody", ALL),
    Case("GET /v1/stats/routes", "of the jobs one may see", USERS),
    Case("GET /v1/stats/failures", "of the jobs one may see", USERS),
    Case(
        "POST /v1/jobs/bulk",
        "own project",
        "401 401 401 403 403 201 201 201 201",
        body=send(jobs=[{"spec": SPEC, "project": "own"}]),
    ),
    Case("POST /v1/jobs/bulk", "foreign project", ROOT_MAKES, body=send(jobs=[{"spec": SPEC, "project": "foreign"}])),
    Case(
        "PATCH /v1/jobs/{job}",
        "another's job in the own project",
        "401 401 401 404 403 403 200 200 200",
        at("/v1/jobs/{}", own("job")),
        send(priority=-3),
    ),
    Case("PATCH /v1/jobs/{job}", "foreign project", UNSEEN, at("/v1/jobs/{}", foreign("job")), send(priority=-3)),
    Case(
        "POST /v1/jobs/{job}/retry",
        "another's job in the own project, which is not over",
        "401 401 401 404 403 403 409 409 409",
        at("/v1/jobs/{}/retry", own("job")),
        send(),
    ),
    Case(
        "POST /v1/jobs/{job}/retry",
        "foreign project",
        "401 401 401 404 404 404 404 404 409",
        at("/v1/jobs/{}/retry", foreign("job")),
        send(),
    ),
    Case(
        "GET /v1/jobs/{job}/tasks",
        "own project, not an array",
        "401 401 401 404 400 400 400 400 400",
        at("/v1/jobs/{}/tasks", own("job")),
    ),
    Case(
        "GET /v1/jobs/{job}/tasks",
        "foreign project",
        "401 401 401 404 404 404 404 404 400",
        at("/v1/jobs/{}/tasks", foreign("job")),
    ),
    Case(
        "POST /v1/jobs/cancel",
        "nobody's jobs of the own project",
        "401 401 401 403 200 200 200 200 200",
        body=send(selector={"project": "own", "owner": "nobody-at-all"}),
    ),
    Case(
        "POST /v1/jobs/cancel",
        "foreign project",
        ROOT,
        body=send(selector={"project": "foreign", "owner": "nobody-at-all"}),
    ),
    Case("GET /v1/job-actions", "all one may see", USERS, lambda *_: "/v1/job-actions?action=hold"),
    Case(
        "GET /v1/job-actions", "foreign project", ROOT, lambda *_: "/v1/job-actions?action=hold&project=foreign&text=x"
    ),
    Case("POST /v1/job-actions", "a job of nobody's", USERS, body=send(action="hold", jobs=["0" * 26])),
    Case("GET /v1/events", "a user", USERS),
    # A stream has no end; with a number that no event has it ends at once, after it was seen who asks for what.
    Case("GET /v1/events/stream", "own", "401 401 401 403 400 400 400 400 400", endless("project=own")),
    Case("GET /v1/events/stream", "foreign", "401 401 401 403 403 403 403 403 400", endless("project=foreign")),
    Case(
        "GET /v1/events/stream",
        "a job of the foreign project",
        "401 401 401 404 404 404 404 404 400",
        at("/v1/events/stream?after=9000000000000000000&job={}", foreign("job")),
    ),
    Case("GET /v1/clusters", "a user", USERS),
    Case("POST /v1/clusters", "new", ROOT_MAKES, body=lambda town, _: {"name": town.name("made")}),
    Case("GET /v1/clusters/{cluster}", "own", SEES, lambda *_: "/v1/clusters/own"),
    Case("GET /v1/clusters/{cluster}", "foreign", UNSEEN, lambda *_: "/v1/clusters/foreign"),
    Case(
        "PATCH /v1/clusters/{cluster}",
        "cordon, own",
        "401 401 401 404 403 403 200 200 200",
        lambda *_: "/v1/clusters/own",
        send(is_cordoned=False),
    ),
    Case(
        "PATCH /v1/clusters/{cluster}",
        "state, own",
        "401 401 401 404 403 403 200 200 200",
        lambda *_: "/v1/clusters/own",
        send(state={"cost": 3}),
    ),
    Case(
        "POST /v1/clusters/{cluster}/probation",
        "own",
        "401 401 401 404 403 403 200 200 200",
        lambda *_: "/v1/clusters/own/probation",
        send(action="clear"),
    ),
    Case(
        "POST /v1/clusters/{cluster}/probation",
        "foreign",
        UNSEEN,
        lambda *_: "/v1/clusters/foreign/probation",
        send(action="clear"),
    ),
    Case("PATCH /v1/clusters/{cluster}", "labels, own", ADMINS, lambda *_: "/v1/clusters/own", send(labels={})),
    Case("PATCH /v1/clusters/{cluster}", "foreign", UNSEEN, lambda *_: "/v1/clusters/foreign", send(labels={})),
    Case("DELETE /v1/clusters/{cluster}", "own", ADMINS, at("/v1/clusters/{}", fresh_cluster("own"))),
    Case("DELETE /v1/clusters/{cluster}", "foreign", UNSEEN, at("/v1/clusters/{}", fresh_cluster("foreign"))),
    *INVITE_CASES,
    Case("POST /v1/clusters/{cluster}/submit-token", "own", ADMINS_MAKE, lambda *_: "/v1/clusters/own/submit-token"),
    Case(
        "POST /v1/clusters/{cluster}/submit-token",
        "foreign",
        UNSEEN_MAKES,
        lambda *_: "/v1/clusters/foreign/submit-token",
    ),
    Case("PUT /v1/clusters/{cluster}/submit-consent", "own", SEES, lambda *_: "/v1/clusters/own/submit-consent"),
    Case(
        "PUT /v1/clusters/{cluster}/submit-consent", "foreign", UNSEEN, lambda *_: "/v1/clusters/foreign/submit-consent"
    ),
    Case("DELETE /v1/clusters/{cluster}/submit-consent", "own", SEES, lambda *_: "/v1/clusters/own/submit-consent"),
    Case(
        "DELETE /v1/clusters/{cluster}/submit-consent",
        "foreign",
        UNSEEN,
        lambda *_: "/v1/clusters/foreign/submit-consent",
    ),
    Case(
        "POST /v1/cluster-groups/{group}/submit-token",
        "a group of no cluster",
        "401 401 401 403 403 403 403 403 400",
        lambda *_: "/v1/cluster-groups/of-nobody/submit-token",
    ),
    *GRAPH_CASES,
    Case("GET /v1/agents", "all one may see", USERS),
    Case("GET /v1/agents", "own", SEES, lambda *_: "/v1/agents?cluster=own"),
    Case("GET /v1/agents", "foreign", UNSEEN, lambda *_: "/v1/agents?cluster=foreign"),
    Case("DELETE /v1/agents/{agent}", "own", ADMINS, at("/v1/agents/{}", agent_of("own"))),
    Case("DELETE /v1/agents/{agent}", "foreign", UNSEEN, at("/v1/agents/{}", agent_of("foreign"))),
    Case(
        "PATCH /v1/agents/{agent}",
        "own",
        "401 401 401 404 403 403 200 200 200",
        at("/v1/agents/{}", agent_of("own")),
        send(is_paused=False),
    ),
    Case(
        "PATCH /v1/agents/{agent}", "foreign", UNSEEN, at("/v1/agents/{}", agent_of("foreign")), send(is_paused=False)
    ),
    Case("GET /v1/agents/self", "an agent", "401 401 200 401 401 401 401 401 401"),
    Case("POST /v1/agents/rotate", "an agent", "401 401 201 401 401 401 401 401 401", body=send(incarnation="i1")),
    Case(
        "POST /v1/agents/leave",
        "an agent of a cluster that stays",
        "401 401 403 401 401 401 401 401 401",
        body=send(incarnation="i1"),
    ),
    Case(
        "POST /v1/agents/join",
        "with no join token",
        "401 401 401 401 401 401 401 401 401",
        body=send(cluster="own", name="a", journal="j", backend="fake"),
    ),
    Case(
        "POST /v1/agents/poll",
        "an agent",
        "401 401 200 401 401 401 401 401 401",
        body=send(incarnation="i1", inventory=[]),
    ),
    Case("GET /v1/users", "all", ROOT),
    Case("POST /v1/users", "new", ROOT_MAKES, body=lambda town, _: {"name": town.name("made")}),
    Case("GET /v1/users/{user}", "oneself", "401 401 401 403 200 200 200 200 200", me),
    Case("GET /v1/users/{user}", "another", ROOT, at("/v1/users/{}", lambda town: town.user()[0])),
    Case("PATCH /v1/users/{user}", "another", ROOT, at("/v1/users/{}", lambda town: town.user()[0]), send(groups=[])),
    Case("PATCH /v1/users/{user}", "oneself", ROOT, me, send(groups=["group-own"])),
    Case("DELETE /v1/users/{user}", "another", ROOT, at("/v1/users/{}", lambda town: town.user()[0])),
    Case("GET /v1/tokens", "one's own", USERS),
    Case("POST /v1/tokens", "for oneself", "401 401 401 201 201 201 201 201 201", body=send()),
    Case("POST /v1/tokens", "for another", ROOT_MAKES, body=lambda town, _: {"user": town.user()[0]}),
    Case("DELETE /v1/tokens/{token}", "one's own", "401 401 401 404 200 200 200 200 200", my_token),
    Case(
        "DELETE /v1/tokens/{token}",
        "another's",
        UNSEEN,
        at("/v1/tokens/{}", lambda town: town.token_of(town.user()[0])),
    ),
    Case("GET /v1/grants", "on what one administers", USERS),
    Case("POST /v1/grants", "own project", "401 401 401 403 403 403 403 201 201", body=grant_on("project", "own")),
    Case("POST /v1/grants", "foreign project", ROOT_MAKES, body=grant_on("project", "foreign")),
    Case(
        "POST /v1/grants",
        "own group",
        "401 401 401 403 403 403 403 201 201",
        body=grant_on("cluster-group", "group-own"),
    ),
    Case("POST /v1/grants", "foreign group", ROOT_MAKES, body=grant_on("cluster-group", "group-foreign")),
    Case(
        "POST /v1/grants",
        "foreign cluster",
        "401 401 401 400 400 400 400 400 201",
        body=lambda town, _: grant_on("cluster", town.cluster("nobodys"))(town, _),
    ),
    Case(
        "POST /v1/grants",
        "platform",
        ROOT_MAKES,
        body=lambda *_: {"role": "view", "to": "group", "subject": "none", "on": "platform"},
    ),
    Case("DELETE /v1/grants/{grant}", "own project", "401 401 401 404 404 404 404 200 200", grant_id("project", "own")),
    Case("DELETE /v1/grants/{grant}", "foreign project", UNSEEN, grant_id("project", "foreign")),
    Case(
        "DELETE /v1/grants/{grant}",
        "platform",
        UNSEEN,
        lambda town, _: f"/v1/grants/{town.grant(town.user()[0], 'view', 'platform', 'all')}",
    ),
    *(Case(**row) for row in RULES),
    # This server has no templates, which is what those who may hear.
    Case(
        "POST /v1/cluster-resources",
        "own project",
        "401 401 401 403 403 403 403 400 400",
        body=send(project="own", domain="development"),
    ),
    Case(
        "POST /v1/cluster-resources",
        "foreign project",
        "401 401 401 403 403 403 403 403 400",
        body=send(project="foreign", domain="development"),
    ),
    Case(
        "GET /v1/cluster-resources/changes",
        "own project",
        "401 401 401 403 403 403 403 400 400",
        lambda *_: "/v1/cluster-resources/changes?project=own&domain=development",
    ),
    Case(
        "GET /v1/cluster-resources/changes",
        "foreign project",
        "401 401 401 403 403 403 403 403 400",
        lambda *_: "/v1/cluster-resources/changes?project=foreign&domain=development",
    ),
    Case(
        "GET /v1/cluster-resources/status",
        "own project",
        "401 401 401 403 403 403 403 200 200",
        lambda *_: "/v1/cluster-resources/status?project=own",
    ),
    Case(
        "GET /v1/cluster-resources/status",
        "foreign project",
        "401 401 401 403 403 403 403 403 200",
        lambda *_: "/v1/cluster-resources/status?project=foreign",
    ),
    # The agent is none of a Kubernetes cluster.
    *(
        Case(
            f"{method} /v1/agents/cluster-resources{path}",
            "no namespaces",
            "401 401 403 401 401 401 401 401 401",
            at,
            body,
        )
        for method, path, at, body in (
            ("GET", "", None, None),
            ("GET", "/objects", lambda *_: "/v1/agents/cluster-resources/objects?namespace=a-b", None),
            ("POST", "/status", None, send(namespaces=[])),
        )
    ),
    Case("GET /v1/audit", "all", ROOT),
    *LAYOUT_CASES,
    *EXECUTION_CASES,
    *FILE_CASES,
    *TOKEN_CASES,
]


def test_every_route_has_a_row() -> None:
    assert {f"{end.method} {end.path}" for end in ENDPOINTS} == {case.route for case in CASES}


def test_every_route_under_a_project_or_a_cluster_has_a_foreign_row() -> None:
    scoped = {case.route for case in CASES if "{job}" in case.route or "{cluster}" in case.route}
    assert scoped == {case.route for case in CASES if case.what.startswith("foreign") and case.route in scoped}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.route} {case.what}")
def test_who_may(town: Town, case: Case) -> None:
    method, route = case.route.split()
    statuses: dict[str, int] = {}
    for role in ROLES:
        path = case.path(town, role) if case.path else route
        body = case.body(town, role) if case.body else None
        answer = town.ask(method, path, body, token=town.tokens[role], headers=case.headers)
        statuses[role] = answer.status
        if answer.status >= 400:
            problem = answer.json
            assert problem["status"] == answer.status
            assert problem["code"]
            assert problem["detail"]
            assert problem["next_step"]
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
    assert statuses == case.expected


def test_lists_show_to_each_what_is_theirs(town: Town) -> None:
    own, foreign = town.job("own"), town.job("foreign")

    def names(path: str, role: str, key: str = "name") -> set[str]:
        items = town.must("GET", path, token=town.tokens[role] or "")["items"]
        return {item[key] for item in items}

    for role in ("view", "admin"):
        assert names("/v1/jobs?limit=500", role, "project") == {"own"}
        assert {own} <= names("/v1/jobs?limit=500", role, "id")
        assert foreign not in names("/v1/events?limit=500", role, "job")
        assert "foreign" not in names("/v1/clusters?limit=500", role)
        assert "foreign" not in names("/v1/agents?limit=500", role, "cluster")
        assert "foreign" not in names("/v1/projects?limit=500", role)
        assert names("/v1/tokens", role, "user") == {f"the-{role}"}
    assert names("/v1/jobs", "stranger", "id") == set()
    assert not {"own", "foreign"} & names("/v1/clusters?limit=500", "stranger")
    assert names("/v1/grants", "stranger", "id") == set()
    assert {"own", "foreign"} <= names("/v1/clusters?limit=500", "root")


def test_ones_own_job_is_ones_own_to_cancel(town: Town) -> None:
    token = town.tokens["submit"]
    made = town.must("POST", "/v1/jobs", {"spec": SPEC, "project": "own"}, token=token)
    cancelled = town.must("POST", f"/v1/jobs/{made['id']}/cancel", {"reason": "enough"}, token=token)
    assert cancelled["state"] == "CANCELLED"


def test_open_routes_need_no_token(town: Town) -> None:
    for path in ("/healthz", "/readyz", "/v1/openapi.json"):
        assert town.ask("GET", path).status == 200
