"""What a viewer of a job is not shown: the environment of another's, and the names of clusters hidden from them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.files.job_files import upload_tree
from tests.acceptance.stage import END_S, Secret, Stage, staged
from tests.programs import yard

pytestmark = pytest.mark.xdist_group("hidden")

PASSWORD = "hunter2-hunter2"
NAME = "vault-cluster"  # of the private cluster
GONE = "vault-gone"  # of one that was deleted
# What the security context of ann's jobs names.
SITE = f"secrets: [{{key: {PASSWORD}, env: PATH}}, {{group: oauth2_tokens, key: {PASSWORD}, env: PATH}}]\n"


class Town:
    """A project that everyone may view, a job of ann's on a cluster that only ann may see, and people who look."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.post("/v1/projects", {"name": "open-project"})
        stage.post("/v1/grants", {"role": "view", "to": "everyone", "on": "project", "object": "open-project"})
        for name in (NAME, GONE):
            stage.post("/v1/clusters", {"name": name, "is_private": True})
        self.ann = self.user("ann", "submit")
        self.viewer = self.user("viewer", "view")
        self.fellow = self.user("fellow", "submit")
        self.operator = self.user("operator", "operate")
        self.tree = upload_tree(stage, {}, token=self.ann)
        for name in (NAME, GONE):
            grant = {"role": "submit", "to": "user", "subject": "ann", "on": "cluster", "object": name}
            stage.post("/v1/grants", grant)

    def user(self, name: str, role: str) -> Secret:
        self.stage.post("/v1/users", {"name": name})
        grant = {"role": role, "to": "user", "subject": name, "on": "project", "object": "open-project"}
        self.stage.post("/v1/grants", grant)
        return Secret(self.stage.post("/v1/tokens", {"user": name})["token"])

    def job(self, cluster: str | None = NAME, *command: str, **fields: Any) -> str:
        client = {"client_id": "ann", "client_secret": {"key": PASSWORD}}
        context = {"run_as": {"oauth2_client": client}, "secrets": [{"key": PASSWORD}], "tokens": [{"name": PASSWORD}]}
        spec = {
            "env": {"DB_PASSWORD": PASSWORD},
            "execution": {"envs": {"DB_PASSWORD_2": PASSWORD}, "security_context": context},
            "files": {"tree": self.tree},
            "native": {"qos": "low", "options": [f"--comment={PASSWORD}"]},
        }
        words = command or ("true",)
        pin = {} if cluster is None else {"cluster": cluster}
        return self.stage.submit(*words, spec=spec, project="open-project", token=self.ann, **pin, **fields)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with staged(tmp_path_factory.mktemp("hidden"), auth=True) as stage:
        made = Town(stage)
        extra = stage.site("secrets", SITE)
        with stage.agent(NAME, extra=extra), stage.agent(GONE, extra=extra), stage.agent("open", extra=extra):
            yield made


DOORS = (
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/wait?timeout_s=0",
    "/v1/jobs/{job}/explain",
    "/v1/jobs/{job}/events?limit=500",
    "/v1/jobs/{job}/output",
    "/v1/jobs?spec=true&limit=500",
    "/v1/jobs?project=open-project&spec=true&limit=500",
    "/v1/jobs?id={job}&spec=true",
    "/v1/events?limit=500",
    "/v1/stats/routes",
    "/v1/executions",
    "/v1/clusters",
    "/v1/agents",
    "/v1/layout",
    "/v1/pools",
    "/v1/cluster-labels",
    "/v1/queues",
    "/v1/policy?project=open-project&domain=development",
    "/v1/grants",
    "/v1/whoami",
)


@pytest.fixture(scope="module")
def over(town: Town) -> str:
    """A job of ann's that has ended. Nothing changes it."""
    job = town.job()
    assert town.stage.ended(job)["state"] == "SUCCEEDED"
    return job


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("reader", ["viewer", "fellow"])
def test_no_door_shows_a_viewer_anothers_environment_or_a_hidden_cluster(
    town: Town, over: str, door: str, reader: str
) -> None:
    answer = town.stage.call("GET", door.format(job=over), token=getattr(town, reader))
    assert answer.status == 200, answer.body
    for secret in (PASSWORD, NAME):
        assert secret.encode() not in answer.body, secret


def test_a_follower_of_events_learns_no_hidden_cluster(town: Town) -> None:
    job = town.job()
    town.stage.ended(job)
    told = {}
    for token in (town.viewer, town.ann):
        asked = urllib.request.Request(
            f"{town.stage.url}/v1/events/stream?after=0&job={job}", headers={"Authorization": f"Bearer {token}"}
        )
        lines: list[bytes] = []
        with urllib.request.urlopen(asked, timeout=END_S) as stream:
            while not any(line.startswith(b": here") for line in lines):  # after all that has happened
                lines.append(stream.readline())
        told[token] = b"".join(lines)
    assert job.encode() in told[town.viewer]
    assert NAME.encode() not in told[town.viewer]
    assert NAME.encode() in told[town.ann]


def test_the_owner_and_operators_see_the_environment_and_others_that_there_is_one(town: Town) -> None:
    job = town.job()
    for token in (town.ann, town.operator, None):
        seen = town.stage.get(f"/v1/jobs/{job}", token=token)
        assert seen["spec"]["env"] == {"DB_PASSWORD": PASSWORD}
        assert seen["spec"]["execution"]["envs"] == {"DB_PASSWORD_2": PASSWORD}
        assert seen["spec"]["native"]["options"] == [f"--comment={PASSWORD}"]
        assert "is_env_hidden" not in seen
    hidden = town.stage.get(f"/v1/jobs/{job}", token=town.viewer)
    assert (hidden["spec"].get("env"), hidden["is_env_hidden"]) == (None, True)
    env = {"YARD_JOIN_TOKEN": "join_01X_secret", "A": "b"}
    pilot = town.stage.submit("true", project="open-project", token=town.ann, spec={"env": env})
    assert town.stage.get(f"/v1/jobs/{pilot}", token=town.ann)["spec"]["env"] == env, "the owner's own"
    for token in (town.operator, None):
        shown = town.stage.get(f"/v1/jobs/{pilot}", token=token)["spec"]["env"]
        assert shown == {"YARD_JOIN_TOKEN": "(hidden)", "A": "b"}, "who has it joins in the pilot's place"
    plain = town.stage.submit("true", project="open-project", token=town.ann)
    assert "is_env_hidden" not in town.stage.get(f"/v1/jobs/{plain}", token=town.viewer), "there is none to hide"
    env = town.stage.env | {"YARD_TOKEN": town.viewer}
    shown = yard("show", job, env=env, check=True).stdout
    assert "hidden" in shown
    assert PASSWORD not in shown
    assert PASSWORD in yard("show", job, env=env | {"YARD_TOKEN": town.ann}, check=True).stdout


def test_a_retry_by_an_operator_has_the_environment(town: Town) -> None:
    job = town.job("open", "sh", "-c", "echo $DB_PASSWORD; false")
    town.stage.ended(job)
    again = town.stage.post(f"/v1/jobs/{job}/retry", {}, token=town.operator)["id"]
    town.stage.ended(again)
    assert town.stage.get(f"/v1/jobs/{again}", token=town.operator)["spec"]["env"] == {"DB_PASSWORD": PASSWORD}
    output = town.stage.call("GET", f"/v1/jobs/{again}/output", token=town.operator)
    assert PASSWORD.encode() in output.body or b"data" in output.body


def test_the_owner_sees_where_their_job_ran(town: Town) -> None:
    job = town.job()
    town.stage.ended(job)
    assert town.stage.get(f"/v1/jobs/{job}", token=town.ann)["cluster"] == NAME
    assert NAME in json.dumps(town.stage.get(f"/v1/jobs/{job}/events", token=town.ann))
    assert "cluster" not in town.stage.get(f"/v1/jobs/{job}", token=town.viewer)


def test_a_hidden_cluster_is_no_filter(town: Town) -> None:
    town.stage.ended(town.job())
    for name in (NAME, "nothing-here"):
        for path in (f"/v1/jobs?cluster={name}", f"/v1/agents?cluster={name}", f"/v1/clusters/{name}"):
            answer = town.stage.call("GET", path, token=town.viewer)
            known = answer.body.replace(name.encode(), b"NAME")
            other = town.stage.call("GET", path.replace(name, "not-there"), token=town.viewer)
            assert (answer.status, known) == (other.status, other.body.replace(b"not-there", b"NAME")), path
    assert town.stage.get(f"/v1/jobs?cluster={NAME}", token=town.ann)["items"], "one's own"


def test_a_deleted_private_cluster_stays_hidden(town: Town) -> None:
    job = town.job(GONE)
    town.stage.ended(job)
    town.stage.yard("cluster", "rm", "--force", "--abandon", GONE, check=True)
    for door in ("/v1/jobs/{job}", "/v1/jobs/{job}/explain", "/v1/jobs/{job}/events", "/v1/events?limit=500"):
        answer = town.stage.call("GET", door.format(job=job), token=town.viewer)
        assert answer.status == 200
        assert GONE.encode() not in answer.body, door
    assert town.stage.get("/v1/stats/routes", token=town.viewer)
    assert GONE.encode() not in town.stage.call("GET", "/v1/stats/routes", token=town.viewer).body


def test_reasons_name_no_hidden_cluster(town: Town) -> None:
    """A job that waits for a cluster that is cordoned says so, to its owner and to who may see the cluster."""
    town.stage.yard("cluster", "cordon", NAME, "--reason", "noon", check=True)
    try:
        job = town.job()
        assert NAME in json.dumps(town.stage.get(f"/v1/jobs/{job}/explain", token=town.ann))
        for path in ("", "/explain", "/events"):
            answer = town.stage.call("GET", f"/v1/jobs/{job}{path}", token=town.viewer)
            assert NAME.encode() not in answer.body, path
    finally:
        town.stage.yard("cluster", "uncordon", NAME, check=True)
    town.stage.ended(job)
    for path in ("", "/explain", "/events"):
        answer = town.stage.call("GET", f"/v1/jobs/{job}{path}", token=town.viewer)
        assert NAME.encode() not in answer.body, path


def test_tasks_of_an_array_name_no_hidden_cluster(town: Town) -> None:
    job = town.job(NAME, "sh", "-c", "exit 3", array="0-2")
    town.stage.ended(job)
    assert NAME in json.dumps(town.stage.get(f"/v1/jobs/{job}/tasks", token=town.ann))
    assert NAME not in json.dumps(town.stage.get(f"/v1/jobs/{job}/tasks", token=town.viewer))


def test_jobs_one_may_not_view_make_no_prefix_ambiguous(town: Town) -> None:
    town.stage.post("/v1/projects", {"name": "closed-project"})
    for _ in range(50):
        theirs = town.stage.submit("true", project="closed-project", cluster="open")
        mine = town.job("open")
        prefix = mine[: next(size for size in range(26, 0, -1) if theirs.startswith(mine[:size]))]
        seen = [each["id"] for each in town.stage.walk("/v1/jobs", limit=500, token=town.viewer)]
        if sum(each.startswith(prefix) for each in seen) == 1:
            break
    else:
        raise AssertionError("no two jobs were made within a moment")
    told = town.stage.call("GET", f"/v1/jobs/{prefix}", token=town.viewer)
    assert (told.status, told.json.get("id")) == (200, mine), "as if the other were not there"
    assert town.stage.call("GET", f"/v1/jobs/{prefix}").status == 400, "an administrator sees both"
    unseen = theirs[: next(size for size in range(6, 27) if not any(each.startswith(theirs[:size]) for each in seen))]
    assert town.stage.call("GET", f"/v1/jobs/{unseen}", token=town.viewer).status == 404


@pytest.mark.parametrize(
    ("what", "body", "action"),
    [
        ("cancel", {"reason": "too many"}, "job.cancel"),
        ("cancel", {"tasks": "1"}, "job.cancel-tasks"),
        ("PATCH", {"priority": -7}, "job.change"),
        ("PATCH", {"hold": False}, "job.change"),
        ("many", {}, "job.cancel"),
    ],
)
def test_the_audit_names_what_was_done_to_whose_job(town: Town, what: str, body: Any, action: str) -> None:
    stage = town.stage
    more = {"array": "0-3"} if "tasks" in body else {}
    job = town.job("open", "true", hold=True, labels={"one": "x"}, **more)
    before = stage.get("/v1/audit?limit=1")["items"][0]["id"]
    if what == "PATCH":
        assert stage.call("PATCH", f"/v1/jobs/{job}", body, token=town.operator).status == 200
    elif what == "many":
        asked = stage.post("/v1/jobs/cancel", {"selector": {"labels": {"one": "x"}}}, token=town.operator)
        assert job in asked["ids"]
    else:
        stage.post(f"/v1/jobs/{job}/cancel", body, token=town.operator)
    made = [each for each in stage.get("/v1/audit")["items"] if each["id"] > before and each["object"] == job]
    assert [(each["actor"], each["action"], each["after"]["owner"]) for each in made] == [("operator", action, "ann")]


def test_the_audit_names_who_retried_whose_job_and_leaves_ones_own_out(town: Town) -> None:
    stage = town.stage
    job = town.job("open", "false")
    stage.ended(job)
    before = stage.get("/v1/audit?limit=1")["items"][0]["id"]
    again = stage.post(f"/v1/jobs/{job}/retry", {}, token=town.operator)["id"]
    own = stage.post(f"/v1/jobs/{job}/retry", {}, token=town.ann)["id"]
    stage.post(f"/v1/jobs/{own}/cancel", {}, token=town.ann)
    made = [each for each in stage.get("/v1/audit")["items"] if each["id"] > before]
    assert [(each["actor"], each["action"], each["object"], each["after"]) for each in made] == [
        ("operator", "job.retry", job, {"owner": "ann", "job": again})
    ]
