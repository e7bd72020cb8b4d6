"""Who may do what, from outside: tokens, grants, groups, private clusters, submit tokens, and the audit of it all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from switchyard.errors import EXIT_DENIED, EXIT_NOT_FOUND, EXIT_OK
from tests.acceptance.stage import SOON_S, Secret, Stage, staged
from tests.processes import until
from tests.programs import isolated_env, yard

CLOCKS_APART_US = 1_000_000  # of two programs on one machine

pytestmark = pytest.mark.xdist_group("access")

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With authentication; two clusters anyone may use, one that is private and in the group `lab`."""
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made:
        made.post("/v1/clusters", {"name": "secret", "is_private": True, "groups": ["lab"]})
        made.post("/v1/projects", {"name": "atlas"})
        with made.agent("open"), made.agent("secret"):
            yield made


@pytest.fixture
def user(stage: Stage) -> tuple[str, Secret]:
    """A user of this test alone, without any grant of their own: name and token."""
    name = f"user-{next(numbers)}"
    return name, new_user(stage, name)


def new_user(stage: Stage, name: str, *groups: str) -> Secret:
    stage.post("/v1/users", {"name": name, "groups": list(groups)})
    return new_token(stage, name)


def new_token(stage: Stage, name: str, **fields: object) -> Secret:
    return Secret(stage.post("/v1/tokens", {"user": name, **fields})["token"])


def grant(stage: Stage, role: str, to: str, on: str) -> str:
    """`yard grant add`, and the grant's id."""
    return str(stage.read("grant", "add", role, "--to", to, "--on", on)["id"])


def status(stage: Stage, method: str, path: str, body: object = None, *, token: str) -> int:
    return stage.call(method, path, body, token=token).status


def try_submit(stage: Stage, token: str, **fields: object) -> tuple[int, str]:
    """The answer's status, and the job's state or the problem's code."""
    answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, **fields}, token=token)
    return answer.status, answer.json.get("state") or answer.json["code"]


def test_the_first_token_is_in_a_file_and_serves_the_local_cli_without_any_setting(stage: Stage) -> None:
    assert "yard_" not in stage.server.log, "what goes to a log is kept"
    file = stage.folder / "server-data" / "first-admin-token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in stage.server.log
    bare = isolated_env(stage.folder)  # neither YARD_URL nor YARD_TOKEN
    me = yard("whoami", "-o", "json", env=bare, check=True)
    assert yaml.safe_load(me.stdout)["is_platform_admin"] is True
    kept = Path(bare["YARD_CONFIG"])
    assert kept.stat().st_mode & 0o777 == 0o600
    stage.server.restart()
    assert stage.server.log.count("token_file=") == 1, "a second start makes none"
    assert yard("whoami", env=bare).returncode == EXIT_OK


def test_without_a_token_there_is_nothing(stage: Stage) -> None:
    env = {**isolated_env(stage.folder, url=stage.url), "YARD_CONFIG": "/nonexistent/yard.yaml"}
    assert yard("ls", env=env).returncode == EXIT_DENIED
    assert yard("submit", "--", "true", env=env).returncode == EXIT_DENIED
    assert yard("ls", env={**env, "YARD_TOKEN": f"yard_{'0' * 26}_wrong"}).returncode == EXIT_DENIED


def test_a_new_user_may_use_what_is_open_to_everyone_and_no_more(stage: Stage, user: tuple[str, Secret]) -> None:
    name, token = user
    assert try_submit(stage, token) == (201, "ASSIGNED")
    assert try_submit(stage, token, project="atlas") == (403, "denied")
    assert [cluster["name"] for cluster in stage.walk("/v1/clusters", limit=50, token=token)] == ["open"]
    assert [project["name"] for project in stage.walk("/v1/projects", limit=50, token=token)] == ["default"]
    assert {job["owner"] for job in stage.walk("/v1/jobs?project=default", limit=500, token=token)} >= {name}
    for method, path, body in (
        ("GET", "/v1/users", None),
        ("POST", "/v1/users", {"name": "mallory"}),
        ("POST", "/v1/tokens", {"user": "admin"}),
        ("POST", "/v1/projects", {"name": "mine"}),
        ("POST", "/v1/clusters", {"name": "mine"}),
        ("POST", "/v1/clusters/open/invites", {}),
        ("POST", "/v1/clusters/brand-new/invites", {}),
        ("PATCH", "/v1/clusters/open", {"is_cordoned": True}),
        ("DELETE", "/v1/clusters/open", None),
        ("POST", "/v1/clusters/open/submit-token", None),
        ("POST", "/v1/grants", {"role": "admin", "to": "user", "subject": name, "on": "platform"}),
        ("GET", "/v1/jobs?project=atlas", None),
        ("GET", "/v1/audit", None),
    ):
        assert status(stage, method, path, body, token=token) == 403, f"{method} {path}"


def test_each_role_on_a_project_allows_what_it_says(stage: Stage, user: tuple[str, Secret]) -> None:
    name, token = user
    theirs = stage.submit("sleep", "600", project="atlas", cluster="open")
    path = f"/v1/jobs/{theirs}"
    assert status(stage, "GET", path, token=token) == 404, "not even that it exists"
    assert status(stage, "GET", f"{path}/output", token=token) == 404
    assert status(stage, "POST", f"{path}/cancel", {}, token=token) == 404

    grant(stage, "view", f"user:{name}", "project:atlas")
    assert status(stage, "GET", path, token=token) == 200
    assert status(stage, "GET", f"{path}/explain", token=token) == 200
    assert try_submit(stage, token, project="atlas") == (403, "denied")
    assert status(stage, "POST", f"{path}/cancel", {}, token=token) == 403

    grant(stage, "submit", f"user:{name}", "project:atlas")
    assert try_submit(stage, token, project="atlas") == (201, "ASSIGNED")
    assert status(stage, "POST", f"{path}/cancel", {}, token=token) == 403, "only one's own"
    own = stage.submit("sleep", "600", project="atlas", cluster="open", token=token)
    assert status(stage, "POST", f"/v1/jobs/{own}/cancel", {}, token=token) == 200

    operate = grant(stage, "operate", f"user:{name}", "project:atlas")
    share = {"role": "view", "to": "everyone", "on": "project", "object": "atlas"}
    assert status(stage, "POST", "/v1/grants", share, token=token) == 403
    assert status(stage, "POST", f"{path}/cancel", {}, token=token) == 200

    grant(stage, "admin", f"user:{name}", "project:atlas")
    made = stage.call("POST", "/v1/grants", share, token=token)
    assert made.status == 201, "an administrator of the project gives it to others"
    for given in (made.json["id"], operate):
        stage.yard("grant", "rm", "--force", given, check=True)
    elsewhere = {**share, "object": "default"}
    assert status(stage, "POST", "/v1/grants", elsewhere, token=token) == 403


def test_each_role_on_a_private_cluster_allows_what_it_says(stage: Stage, user: tuple[str, Secret]) -> None:
    name, token = user
    path = "/v1/clusters/secret"
    assert status(stage, "GET", path, token=token) == 404
    assert try_submit(stage, token, cluster="secret") == (400, "unknown-name"), "as if it were not there"

    grant(stage, "view", f"user:{name}", "cluster:secret")
    assert status(stage, "GET", path, token=token) == 200
    assert try_submit(stage, token, cluster="secret") == (403, "denied")

    grant(stage, "submit", f"user:{name}", "cluster:secret")
    assert try_submit(stage, token, cluster="secret") == (201, "ASSIGNED")
    assert status(stage, "PATCH", path, {"is_cordoned": True}, token=token) == 403

    grant(stage, "operate", f"user:{name}", "cluster:secret")
    for cordoned in (True, False):
        assert status(stage, "PATCH", path, {"is_cordoned": cordoned}, token=token) == 200
    assert status(stage, "PATCH", path, {"is_private": False}, token=token) == 403

    grant(stage, "admin", f"user:{name}", "cluster:secret")
    assert status(stage, "PATCH", path, {"labels": {"site": "north"}}, token=token) == 200
    assert status(stage, "POST", f"{path}/invites", {}, token=token) == 201
    assert status(stage, "PATCH", "/v1/clusters/open", {"labels": {"site": "north"}}, token=token) == 403


def test_a_grant_to_a_group_on_a_cluster_group_comes_and_goes_with_both(stage: Stage) -> None:
    token = new_user(stage, "gina", "vision")
    given = grant(stage, "submit", "group:vision", "cluster-group:lab")
    assert try_submit(stage, token, cluster="secret") == (201, "ASSIGNED")
    stage.yard("user", "edit", "gina", "--no-groups", check=True)
    assert try_submit(stage, token, cluster="secret") == (400, "unknown-name")
    stage.yard("user", "edit", "gina", "--group", "vision", check=True)
    assert try_submit(stage, token, cluster="secret") == (201, "ASSIGNED")
    stage.yard("grant", "rm", "--force", given, check=True)
    assert try_submit(stage, token, cluster="secret") == (400, "unknown-name")


def test_a_user_without_a_grant_sees_no_verdict_of_a_private_cluster(stage: Stage, user: tuple[str, Secret]) -> None:
    _, token = user
    plan = stage.post("/v1/plan", {"spec": {"command": ["true"]}}, token=token)
    assert [verdict["cluster"] for verdict in plan["verdicts"]] == ["open"]
    rejected = stage.submitted("true", spec={"resources": {"cores": 100}}, token=token)
    assert "secret" not in stage.call("GET", f"/v1/jobs/{rejected['id']}/explain", token=token).body.decode()


def test_tokens_end_by_revocation_expiry_and_with_their_user(stage: Stage) -> None:
    first = new_user(stage, "rita")
    brief = new_token(stage, "rita", expires_s=1)
    tokens = {row["id"]: row for row in stage.read("token", "ls")}
    assert [token.split("_")[1] in tokens for token in (first, brief)] == [True, True]
    assert status(stage, "GET", "/v1/whoami", token=first) == 200
    until(lambda: status(stage, "GET", "/v1/whoami", token=brief) == 401, SOON_S, "the second of it is over")
    stage.yard("token", "revoke", first.split("_")[1], check=True)
    assert status(stage, "GET", "/v1/whoami", token=first) == 401

    third = new_token(stage, "rita")
    stage.yard("user", "edit", "rita", "--disable", check=True)
    assert status(stage, "GET", "/v1/whoami", token=third) == 401
    stage.yard("user", "edit", "rita", "--enable", check=True)
    assert status(stage, "GET", "/v1/whoami", token=third) == 200
    stage.yard("user", "rm", "--force", "rita", check=True)
    assert status(stage, "GET", "/v1/whoami", token=third) == 401
    assert stage.yard("user", "show", "rita").returncode == EXIT_NOT_FOUND


def test_the_last_use_of_a_token_is_shown(stage: Stage, user: tuple[str, Secret]) -> None:
    _, token = user
    key = token.split("_")[1]

    def used() -> int:
        row = next(row for row in stage.walk("/v1/tokens", limit=100) if row["id"] == key)
        return int(row.get("last_used_us", 0))

    assert used() == 0
    begun = time.time_ns() // 1000
    stage.get("/v1/whoami", token=token)
    # The server reads its own clock, which runs on beside the machine's.
    assert until(used, SOON_S, "the use is written down") >= begun - CLOCKS_APART_US


def test_a_submit_token_opens_its_cluster_to_whoever_shows_it(stage: Stage, user: tuple[str, Secret]) -> None:
    name, token = user
    env = isolated_env(stage.folder, token=token)
    file = stage.folder / f"{name}.yaml"
    submit = ["submit", "--clusters", str(file)]
    key = stage.yard("cluster", "token", "secret", check=True).stdout.split()[-1]

    def carrying(*clusters: tuple[str, str]) -> None:
        listed = [{"name": cluster, "token": secret} for cluster, secret in clusters]
        file.write_text(yaml.safe_dump({"clusters": listed}))

    carrying(("secret", key))
    for _ in range(5):  # they are the candidates, so it is never the open one
        done = yard(*submit, "--wait", "--timeout", "30", "--", "sh", "-c", "echo $SWITCHYARD_CLUSTER", env=env)
        assert (done.returncode, done.stdout) == (EXIT_OK, "secret\n"), done.stderr
    before = len(stage.walk("/v1/jobs", limit=500))
    carrying(("secret", key), ("open", "submit_wrong"))
    denied = yard(*submit, "--", "true", env=env)
    assert denied.returncode == EXIT_DENIED, "one that does not hold denies all"
    assert "open" in denied.stderr
    newer = stage.yard("cluster", "token", "secret", check=True).stdout.split()[-1]
    carrying(("secret", key))
    assert yard(*submit, "--", "true", env=env).returncode == EXIT_DENIED, "a new one ends the old"
    assert len(stage.walk("/v1/jobs", limit=500)) == before, "nothing was stored"
    carrying(("secret", newer))
    assert yard(*submit, "--", "true", env=env).returncode == EXIT_OK


def test_a_private_cluster_opens_and_closes(stage: Stage, user: tuple[str, Secret]) -> None:
    _, token = user
    stage.post("/v1/clusters", {"name": "shy", "is_private": True})
    stage.yard("cluster", "edit", "shy", "--public", check=True)
    assert status(stage, "GET", "/v1/clusters/shy", token=token) == 200
    stage.yard("cluster", "edit", "shy", "--private", check=True)
    assert status(stage, "GET", "/v1/clusters/shy", token=token) == 404
    stage.yard("cluster", "rm", "--force", "shy", check=True)


def test_a_new_cluster_of_an_old_name_inherits_no_grant(stage: Stage, user: tuple[str, Secret]) -> None:
    name, token = user
    stage.post("/v1/clusters", {"name": "phoenix", "is_private": True})
    grant(stage, "admin", f"user:{name}", "cluster:phoenix")
    assert status(stage, "GET", "/v1/clusters/phoenix", token=token) == 200
    stage.yard("cluster", "rm", "--force", "phoenix", check=True)
    stage.post("/v1/clusters", {"name": "phoenix", "is_private": True})
    assert status(stage, "GET", "/v1/clusters/phoenix", token=token) == 404
    stage.yard("cluster", "rm", "--force", "phoenix", check=True)


def test_the_audit_names_who_changed_what(stage: Stage) -> None:
    before = stage.read("audit", "--limit", "1")[0]["id"]
    stage.yard("project", "create", "minutes", check=True)
    token = new_user(stage, "ada")
    given = grant(stage, "admin", "user:ada", "cluster:open")
    stage.call("PATCH", "/v1/clusters/open", {"is_cordoned": True, "reason": "noon"}, token=token)
    stage.call("PATCH", "/v1/clusters/open", {"is_cordoned": False}, token=token)
    stage.yard("grant", "rm", "--force", given, check=True)
    stage.yard("token", "revoke", token.split("_")[1], check=True)
    stage.yard("user", "edit", "ada", "--full-name", "Ada", check=True)
    stage.yard("user", "rm", "--force", "ada", check=True)
    stage.yard("cluster", "invite", "open", check=True)
    entries = [entry for entry in stage.read("audit", "--all") if entry["id"] > before]
    assert [(entry["actor"], entry["action"]) for entry in reversed(entries)] == [
        ("admin", "project.create"),
        ("admin", "user.create"),
        ("admin", "token.create"),
        ("admin", "grant.create"),
        ("ada", "cluster.change"),
        ("ada", "cluster.change"),
        ("admin", "grant.delete"),
        ("admin", "token.revoke"),
        ("admin", "user.change"),
        ("admin", "user.delete"),
        ("admin", "cluster.invite"),
    ]
    cordon = entries[-5]
    assert (cordon["object"], cordon["after"]["is_cordoned"], cordon["after"]["reason"]) == ("open", True, "noon")


def test_no_secret_is_kept_in_clear(stage: Stage, user: tuple[str, Secret]) -> None:
    """After all the tests above: every token that was made, used or refused; in the log and on the disk."""
    _, token = user
    stage.get("/v1/whoami", token=token)
    stage.call("GET", "/v1/whoami", token=token + "x")
    join, submit = stage.invite("open"), stage.post("/v1/clusters/open/submit-token", None)["token"]
    try_submit(stage, token, clusters=[{"name": "open", "token": submit + "x"}])
    assert stage.token is not None
    credential = next(stage.folder.glob("*-agent/credential.json")).read_text().split('"credential":"')[1].split('"')[0]
    secrets = [each.split("_", 2)[2].encode() for each in (token, stage.token, join, submit, credential)]
    assert all(len(secret) > 30 for secret in secrets)
    data = [each for each in (stage.folder / "server-data").rglob("*") if each.name != "first-admin-token"]
    assert any(file.name.endswith(".db") for file in data)
    for file in filter(Path.is_file, data):
        kept = file.read_bytes()
        assert not [secret for secret in secrets if secret in kept], file
    assert not [secret for secret in secrets if secret in stage.server.log.encode()]
