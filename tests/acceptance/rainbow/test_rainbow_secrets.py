"""Credentials at Rainbow's door from outside: a secret that is renewed, an invitation, and what strangers learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.stage import Secret
from tests.programs import Server, call, isolated_env, start_agent, yard
from tests.server.rainbow_clusters import GRAPH, own, registered, submitted
from tests.server.rainbow_door import SECRET, Door, rainbow


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Door]]:
    with rainbow(tmp_path_factory.mktemp("secrets")) as both:
        yield both


def invited(server: Server, name: str) -> str:
    return yard("cluster", "invite", name, env=isolated_env(server.folder, url=server.url)).stdout.split()[-1]


def test_a_cluster_renews_its_own_secret_and_the_old_one_holds_until_the_new_one_is_used(
    opened: tuple[Server, Door],
) -> None:
    server, door = opened
    mine = registered(door, "renews")
    made = call("POST", f"{server.url}/v1/agents/rotate", {}, token=Secret(mine["secret"]))
    assert made.status == 201
    newer = {**mine, "secret": made.json["credential"]}
    assert door("ReceiveJobs", **own(mine)).code == "OK"
    assert door("ReceiveJobs", **own(newer)).code == "OK"
    assert door("ReceiveJobs", **own(mine)).code == "PERMISSION_DENIED"
    assert submitted(door, mine).status == "SUBMIT_SUCCESS"


def test_a_new_invitation_gives_a_known_cluster_another_secret_and_it_keeps_what_it_has(
    opened: tuple[Server, Door],
) -> None:
    server, door = opened
    old = registered(door, "lost")
    submitted(door, old)
    (number,) = door("ReceiveJobs", **own(old)).jobs
    door("AcceptJobs", **own(old), jobids=[number])
    said = door("Register", name="lost", secret=invited(server, "lost"), nodes=GRAPH)
    assert said.status == "REGISTER_SUCCESS"
    new = {"cluster": "lost", "secret": said.secret, "token": said.token}
    assert door("ReceiveJobs", **own(old)).code == "PERMISSION_DENIED"
    assert submitted(door, old).code == "PERMISSION_DENIED"
    ended = door("ReportJobs", **own(new), reports=[{"jobid": number, "seen": "SEEN_SUCCEEDED"}])
    assert list(ended.taken) == [number]
    assert submitted(door, new).status == "SUBMIT_SUCCESS"
    assert door("Register", name="lost", secret=SECRET, nodes=GRAPH).status == "REGISTER_EXISTS"


def test_an_invitation_does_not_take_a_cluster_from_its_agent(opened: tuple[Server, Door]) -> None:
    server, door = opened
    with start_agent(server.folder, server.url, "ours", graph={"nodes": 1, "each": {"core": 2}}):
        said = door("Register", name="ours", secret=invited(server, "ours"), nodes=GRAPH)
        assert said.status == "REGISTER_EXISTS"
        assert said.secret == ""


@pytest.mark.parametrize("secret", ["join_01ARZ3NDEKTSV4RRFFQ69G5FAV_x", "join_x_y", "", "x"])
def test_a_stranger_does_not_learn_which_names_are_taken(opened: tuple[Server, Door], secret: str) -> None:
    _, door = opened
    door("Register", name="taken", secret=SECRET, nodes=GRAPH)
    taken, free = (door("Register", name=name, secret=secret, nodes=GRAPH) for name in ("taken", "free"))
    assert (taken.code, free.code) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert taken.words == free.words


def test_a_token_of_somebody_who_is_gone_submits_nothing(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "left")
    assert call("POST", f"{server.url}/v1/users", {"name": "bob"}).status == 201
    token = call("POST", f"{server.url}/v1/clusters/left/submit-token?account=bob").json["token"]
    assert submitted(door, {**mine, "token": token}).status == "SUBMIT_SUCCESS"
    assert call("PATCH", f"{server.url}/v1/users/bob", {"is_enabled": False}).status == 200
    assert submitted(door, {**mine, "token": token}).code == "PERMISSION_DENIED"


def test_who_is_not_let_in_hears_what_would_help_and_of_no_grant(opened: tuple[Server, Door]) -> None:
    _, door = opened
    mine = registered(door, "helped")
    refused = {
        "yard cluster invite": door("Register", name="fresh", secret="wrong", nodes="{}"),
        "the secret that Register returned": door("ReceiveJobs", cluster="helped", secret="wrong"),
        "yard cluster token": submitted(door, {**mine, "token": "wrong"}),
    }
    for help_, said in refused.items():
        assert (said.code, help_ in said.words, "grant" in said.words) == ("PERMISSION_DENIED", True, False), said
    both = [{"name": "helped", "token": token} for token in (mine["token"], "wrong")]
    said = submitted(door, mine, clusters=both)
    assert (said.code, "grant" in said.words) == ("PERMISSION_DENIED", False), said


def test_the_account_of_a_token_is_no_part_of_a_body(opened: tuple[Server, Door]) -> None:
    server, door = opened
    registered(door, "bodied")
    url = f"{server.url}/v1/clusters/bodied/submit-token"
    assert call("POST", url, {"account": "alice"}).status == 400
    assert call("POST", url, {}).status == 201


def test_no_secret_and_no_token_stands_in_the_log(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "quiet")
    submitted(door, mine)
    submitted(door, mine, jobspec="garbage")
    door("ReceiveJobs", cluster="quiet", secret=mine["secret"] + "x")
    door("Delete", name="quiet", secret=mine["secret"])
    said = (server.folder / "server.log").read_text(encoding="utf-8")
    assert "serving" in said
    for word in (mine["secret"], mine["token"], SECRET):
        assert word.split("_", 2)[-1] not in said
