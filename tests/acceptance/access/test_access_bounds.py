"""What a credential cannot do: outlive its parent, act for another, reach jobs it was not shown, inherit by a name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.stage import SOON_S, Secret, Stage, staged
from tests.match.known_cases import forms_of
from tests.processes import free_port, until
from tests.programs import call, yard
from tests.server.rainbow_door import JOB, SECRET, Door, rainbow

pytestmark = pytest.mark.xdist_group("access_bounds")

numbers = itertools.count(1)
GRAPH, _ = forms_of({"graph": "keebler-3x12", "subsystems": {}})
CONFIG = f"""\
rainbow: {{registration_secret: {SECRET}, anonymous_match: true}}
resourcemanager: {{type: memory}}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("bounds")
    config, port = folder / "yard.yaml", free_port()
    config.write_text(CONFIG, encoding="utf-8")
    with staged(folder, auth=True, extra=("--config", str(config), "--grpc", f"127.0.0.1:{port}")) as made:
        (folder / "grpc").write_text(f"127.0.0.1:{port}")
        made.post("/v1/projects", {"name": "atlas"})
        with made.agent("open"):
            yield made


@pytest.fixture
def door(stage: Stage) -> Iterator[Door]:
    made = Door((stage.folder / "grpc").read_text())
    yield made
    made.close()


def new_user(stage: Stage, *grants: dict[str, str]) -> tuple[str, Secret]:
    """A user of this test alone, with these grants: name and token."""
    name = f"user-{next(numbers)}"
    return name, user_named(stage, name, *grants)


def user_named(stage: Stage, name: str, *grants: dict[str, str]) -> Secret:
    stage.post("/v1/users", {"name": name})
    for grant in grants:
        stage.post("/v1/grants", {"to": "user", "subject": name, **grant})
    return Secret(stage.post("/v1/tokens", {"user": name})["token"])


def made_with(stage: Stage, token: str, **fields: object) -> tuple[Secret, dict[str, Any]]:
    """A token that a token makes, and what is shown of it."""
    made = stage.post("/v1/tokens", fields, token=token)
    return Secret(made["token"]), made["info"]


def token_id(token: str) -> str:
    return token.split("_")[1]


def whoami(stage: Stage, token: str) -> int:
    return stage.call("GET", "/v1/whoami", token=token).status


# --- tokens of tokens


@pytest.mark.parametrize("wanted", [{}, {"expires_s": 3600}, {"expires_s": 10 * 366 * 86_400}])
def test_a_token_ends_no_later_than_the_one_it_was_made_with(stage: Stage, wanted: dict[str, int]) -> None:
    name, _ = new_user(stage)
    parent = stage.post("/v1/tokens", {"user": name, "expires_s": 600})
    _, child = made_with(stage, parent["token"], **wanted)
    assert child["parent"] == parent["info"]["id"]
    assert child["expires_us"] == parent["info"]["expires_us"]
    _, sooner = made_with(stage, parent["token"], expires_s=60)
    assert sooner["expires_us"] < parent["info"]["expires_us"]


def test_an_expired_token_leaves_none_behind(stage: Stage) -> None:
    name, _ = new_user(stage)
    parent = stage.post("/v1/tokens", {"user": name, "expires_s": 5})["token"]
    child, _ = made_with(stage, parent)
    grandchild, _ = made_with(stage, child, expires_s=86_400)
    for token in (parent, child, grandchild):
        until(lambda token=token: whoami(stage, token) == 401, SOON_S, "the token has expired")


def test_tokens_are_revoked_together_with_the_one_they_were_made_with(stage: Stage) -> None:
    _, token = new_user(stage)
    child, _ = made_with(stage, token)
    grandchild, _ = made_with(stage, child)
    _, other = new_user(stage)
    assert [whoami(stage, each) for each in (token, child, grandchild, other)] == [200] * 4
    assert stage.call("DELETE", f"/v1/tokens/{token_id(child)}", token=token).status == 200
    assert [whoami(stage, each) for each in (token, child, grandchild, other)] == [200, 401, 401, 200]
    assert stage.call("POST", "/v1/tokens", {}, token=child).status == 401, "a revoked one makes no more"
    shown = {each["id"]: each for each in stage.walk("/v1/tokens", limit=500)}
    assert shown[token_id(grandchild)]["is_revoked"]
    assert shown[token_id(grandchild)]["parent"] == token_id(child)


def test_a_token_that_an_administrator_makes_for_another_is_bound_too(stage: Stage) -> None:
    name, _ = new_user(stage)
    passing = stage.post("/v1/tokens", {"expires_s": 600})  # the administrator's own, for ten minutes
    made, info = made_with(stage, passing["token"], user=name)
    assert info["expires_us"] <= passing["info"]["expires_us"]
    kept, _ = made_with(stage, passing["token"], user=name)
    refused = stage.call("DELETE", f"/v1/tokens/{token_id(passing['token'])}?only=true", token=made)
    assert refused.status == 403, "to leave some behind is an administrator's"
    stage.yard("token", "revoke", "--only", passing["info"]["id"], check=True)
    assert [whoami(stage, each) for each in (passing["token"], made, kept)] == [401, 200, 200]


# --- submit tokens


def test_a_cluster_administrator_makes_submit_tokens_only_for_those_who_agreed(stage: Stage, door: Door) -> None:
    _, boss = new_user(stage, {"role": "admin", "on": "cluster", "object": "open"})
    boss_name = stage.get("/v1/whoami", token=boss)["name"]
    name, theirs = new_user(stage)
    path = "/v1/clusters/open/submit-token"
    for account in ("admin", name, "nobody-of-that-name"):
        refused = stage.call("POST", f"{path}?account={account}", token=boss)
        assert (refused.status, refused.json["code"]) == (403, "denied"), account
    assert stage.call("POST", f"{path}?account={boss_name}", token=boss).status == 201, "for oneself"
    assert stage.call("POST", f"{path}?account={name}").status == 201, "by a platform administrator"
    env = stage.env | {"YARD_TOKEN": theirs}
    assert "open" in yard("cluster", "agree", "open", env=env, check=True).stdout
    token = stage.post(f"{path}?account={name}", None, token=boss)["token"]
    shown = [{"name": "open", "token": token}]
    assert door("SubmitJob", name="mine", jobspec=JOB, clusters=shown).code == "OK"
    assert stage.get(f"/v1/jobs?owner={name}")["items"][0]["name"] == "mine"
    yard("cluster", "agree", "open", "--withdraw", env=env, check=True)
    assert door("SubmitJob", name="mine", jobspec=JOB, clusters=shown).code == "PERMISSION_DENIED"
    assert stage.call("POST", f"{path}?account={name}", token=boss).status == 403


def test_who_may_not_see_a_cluster_cannot_agree_to_it(stage: Stage) -> None:
    stage.post("/v1/clusters", {"name": "closed", "is_private": True})
    _, token = new_user(stage)
    for name in ("closed", "no-such"):
        assert stage.call("PUT", f"/v1/clusters/{name}/submit-consent", token=token).status == 404


# --- Rainbow


@pytest.mark.parametrize("secret", ["", "short", "eleven-char", " " * 20, "           x"])
def test_a_registration_secret_that_can_be_guessed_stops_the_start(tmp_path: Path, secret: str) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text(f"rainbow: {{registration_secret: '{secret}'}}\n", encoding="utf-8")
    done = yard("server", "--data", str(tmp_path / "d"), "--config", str(config), env={"HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "registration_secret" in done.stderr


def test_guesses_at_the_registration_secret_are_throttled(tmp_path: Path) -> None:
    with rainbow(tmp_path) as (server, door):
        codes = [door("Register", name="guess", secret=f"guess-number-{n}", nodes=GRAPH).code for n in range(30)]
        assert codes[0] == "PERMISSION_DENIED"
        assert codes[-1] == "RESOURCE_EXHAUSTED"
        refused = door("Register", name="guess", secret=SECRET, nodes=GRAPH)
        assert refused.code == "RESOURCE_EXHAUSTED", "the right one neither, or its answer would tell"
        join = call("POST", f"{server.url}/v1/clusters/asked/invites", {}).json["token"]
        invited = door("Register", name="asked", secret=join, nodes=GRAPH)
        assert invited.status == "REGISTER_SUCCESS", "a join token cannot be guessed"
        lines = [line for line in server.log.splitlines() if "level=warning" in line and "call=Register" in line]
        assert ["reason=denied" in line for line in lines] == [True, False], "one line for each reason"
        assert "wrong registration secret" not in server.log.replace("Too many wrong registration secrets", "")
        assert "guess-number" not in server.log


def test_no_job_reaches_a_cluster_of_the_secret_that_does_not_show_its_token(stage: Stage, door: Door) -> None:
    """Twenty jobs of another project: none goes to whoever knows the secret, until an administrator shares it."""
    rogue = door("Register", name="rogue", secret=SECRET, nodes=GRAPH)
    assert rogue.status == "REGISTER_SUCCESS"
    assert "rogue" in door("Satisfy", payload={"version": 1, "resources": [{"type": "core", "count": 1}]}).clusters
    _, token = new_user(stage, {"role": "submit", "on": "project", "object": "atlas"})
    made = [stage.submitted("true", project="atlas", token=token) for _ in range(20)]
    assert {each["cluster"] for each in made} == {"open"}
    pinned = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "cluster": "rogue"}, token=token)
    assert pinned.status == 403
    assert "submit token" in stage.yard("cluster", "show", "rogue", check=True).stdout
    shown = [{"name": "rogue", "token": rogue.token}]
    assert door("SubmitJob", name="mine", jobspec=JOB, clusters=shown).cluster == "rogue"
    carried = stage.submitted("true", project="atlas", token=token, clusters=shown)
    assert carried["cluster"] == "rogue"
    stage.yard("cluster", "edit", "rogue", "--public", check=True)
    assert stage.submitted("true", cluster="rogue", token=token)["cluster"] == "rogue"
    stage.yard("cluster", "rm", "--force", "--abandon", "rogue", check=True)


def test_a_name_that_the_file_promises_is_no_way_in_either(tmp_path: Path) -> None:
    """A cluster that the server's file names waits for whoever knows the secret, and is shared by nobody else."""
    config, port = tmp_path / "yard.yaml", free_port()
    clusters = "clusters: {clusterConfigs: [{name: promised, enabled: true}]}\n"
    file = f"rainbow: {{registration_secret: {SECRET}}}\n{clusters}"
    config.write_text(file, encoding="utf-8")
    with staged(tmp_path, auth=True, extra=("--config", str(config), "--grpc", f"127.0.0.1:{port}")) as made:
        door = Door(f"127.0.0.1:{port}")
        assert door("Register", name="promised", secret=SECRET, nodes=GRAPH).status == "REGISTER_SUCCESS"
        door.close()
        token = user_named(made, "ann")
        answer = made.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}}, token=token)
        assert answer.json.get("cluster") is None


# --- token pools


def pool_call(stage: Stage, what: str, caller: str, **fields: object) -> Any:
    body = {"token": "lease-1", "project": "atlas", **fields}
    return call("POST", f"{stage.url}/v1/token-pools/licences/{what}", body, token=caller)


def test_a_lease_of_a_token_pool_is_its_owners(stage: Stage) -> None:
    stage.call("PUT", "/v1/token-pools/licences", {"quota": 1})
    role = {"role": "submit", "on": "project", "object": "atlas"}
    name, mine = new_user(stage, role)
    _, other = new_user(stage, role)
    _, operator = new_user(stage, {**role, "role": "operate"})
    assert pool_call(stage, "allocate", mine).json["status"] == 1
    assert stage.get("/v1/token-pools/licences/holders")["items"][0]["owner"] == name
    for what in ("release", "allocate"):
        assert pool_call(stage, what, other).status == 403, what
    assert pool_call(stage, "renew", other).json == {"renewed": False}
    assert pool_call(stage, "allocate", other, token="other").json["status"] == 2
    assert pool_call(stage, "renew", mine).json == {"renewed": True}
    assert pool_call(stage, "release", mine).json == {"released": True}
    assert pool_call(stage, "allocate", mine).json["status"] == 1
    assert pool_call(stage, "release", operator).json == {"released": True}


# --- names


def test_a_user_name_that_is_given_away_again_inherits_nothing(stage: Stage, door: Door) -> None:
    name = f"user-{next(numbers)}"
    stage.post("/v1/projects", {"name": f"p-{name}"})
    role = {"role": "submit", "on": "project", "object": f"p-{name}"}
    token = user_named(stage, name, role)
    body = {"spec": {"command": ["sleep", "600"]}, "project": f"p-{name}", "cluster": "open", "hold": True}
    job = stage.call("POST", "/v1/jobs", body, token=token, headers={"Idempotency-Key": "k"}).json["id"]
    submit = stage.post(f"/v1/clusters/open/submit-token?account={name}", None)["token"]
    stage.call("PUT", "/v1/clusters/open/submit-consent", token=token)
    stage.call("PUT", "/v1/token-pools/left", {"quota": 1})
    lease = {"token": "t", "project": f"p-{name}"}
    left = f"{stage.url}/v1/token-pools/left"
    assert call("POST", f"{left}/allocate", lease, token=token).json["status"] == 1

    stage.yard("user", "rm", "--force", name, check=True)
    again = user_named(stage, name)
    assert whoami(stage, token) == 401
    assert len(stage.get("/v1/tokens", token=again)["items"]) == 1
    assert stage.call("GET", f"/v1/jobs/{job}", token=again).status == 404
    assert job not in {each["id"] for each in stage.walk("/v1/jobs", limit=500, token=again)}
    assert not [each for each in stage.get("/v1/events?limit=500", token=again)["items"] if each["job"] == job]
    assert not [each for each in stage.get("/v1/whoami", token=again)["grants"] if name in each]
    assert door("SubmitJob", name="x", jobspec=JOB, clusters=[{"name": "open", "token": submit}]).code != "OK"
    boss = user_named(stage, f"boss-{name}", {"role": "admin", "on": "cluster", "object": "open"})
    path = f"/v1/clusters/open/submit-token?account={name}"
    assert stage.call("POST", path, token=boss).status == 403, "who agreed is gone"

    stage.post("/v1/grants", {"to": "user", "subject": name, **role})
    assert call("POST", f"{left}/release", lease, token=again).status == 403
    assert stage.call("POST", f"/v1/jobs/{job}/cancel", {}, token=again).status == 403
    mine = stage.call("POST", "/v1/jobs", body, token=again, headers={"Idempotency-Key": "k"})
    assert (mine.status, mine.json["id"] != job) == (201, True), "keys are one's own"
    assert [each["id"] for each in stage.get(f"/v1/jobs?owner={name}", token=again)["items"]] == [mine.json["id"]]
    cancelled = stage.post("/v1/jobs/cancel", {"selector": {"owner": name}}, token=again)
    assert cancelled["ids"] == [mine.json["id"]]
    assert {each["id"] for each in stage.get(f"/v1/jobs?owner={name}")["items"]} == {job, mine.json["id"]}
