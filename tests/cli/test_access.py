"""Clusters, users, tokens, grants, projects, signing in: what is sent, what is shown once, what is asked first."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.sdk.transport.config import load_user_file
from tests.cli.conftest import Done
from tests.sdk.peer import Peer, Say, problem

CLUSTER: dict[str, Any] = {
    "id": "01C",
    "name": "alpha",
    "health": "up",
    "backend": "local",
    "totals": {"core": 8, "gpu": 2, "memory": 16 << 30, "node": 2},
    "load": {"free_cores": 3, "running": 5},
    "labels": {"site": "north", "old": "x"},
}
INVITE_INFO = {"id": "01I", "cluster": "alpha", "is_reusable": False, "expires_us": 1}
INVITE = {"token": "join_01X_secret", "info": INVITE_INFO}


def page(*items: Any) -> Say:
    return Say({"items": list(items), "next": None})


def test_the_join_token_is_the_last_word(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("POST", "/v1/clusters/alpha/invites", Say(INVITE, 201))
    done = yard("cluster", "invite", "alpha", "--reusable", "--expires", "7d", "--private", "--group", "g")
    assert done.out.split()[-1] == "join_01X_secret"
    assert f"yard agent --server {peer.url} --cluster alpha --backend local --token join_01X_secret" in done.out
    assert peer.asked[0].body == {"is_reusable": True, "expires_s": 604800, "is_private": True, "groups": ["g"]}
    assert yard("cluster", "invite", "alpha", "-o", "name").out == "join_01X_secret\n"
    given = yard("cluster", "invite", "alpha", "--server", peer.url.replace("127.0.0.1", "localhost"))
    assert "--server http://localhost" in given.out
    assert peer.asked[-1].body == {"expires_s": 86400}


def test_the_join_token_of_a_group(yard: Callable[..., Done], peer: Peer) -> None:
    info = {"id": "01G", "group": "pilots", "uses_max": 20, "expires_us": 2**60, "uses": 3, "created_us": 1}
    peer.on("POST", "/v1/cluster-groups/pilots/invites", Say({"token": "join_01G_secret", "info": info}, 201))
    peer.on("GET", "/v1/cluster-groups/pilots/invites", page(info, {**info, "id": "02G", "is_revoked": True}))
    peer.on("GET", "/v1/clusters/alpha/invites", page({**INVITE_INFO, "uses": 1}))
    peer.on("DELETE", "/v1/cluster-groups/pilots/invites/01G", Say({"deleted": "01G"}))
    done = yard("cluster", "invite-group", "pilots", "--agents", "20", "--expires", "2d", "--ephemeral")
    assert done.out.split()[-1] == "join_01G_secret"
    assert peer.asked[0].body == {"uses_max": 20, "expires_s": 172800, "is_ephemeral": True}
    rows = [line.split() for line in yard("cluster", "invites", "pilots", "--group").out.splitlines()[1:]]
    assert [(row[0], row[1:3], row[-1]) for row in rows] == [
        ("01G", ["3", "20"], "valid"),
        ("02G", ["3", "20"], "revoked"),
    ]
    assert yard("cluster", "invites", "alpha").out.splitlines()[1].split()[1] == "1"
    assert "lets in nobody" in yard("cluster", "revoke-invite", "01G", "--group", "pilots").out


def test_clusters_are_listed_and_shown(yard: Callable[..., Done], peer: Peer) -> None:
    down = {"id": "02C", "name": "beta", "health": "down", "reason": "no agent has joined"}
    peer.on("GET", "/v1/clusters", page(CLUSTER, down))
    peer.on("GET", "/v1/clusters/alpha", Say(CLUSTER))
    peer.on("GET", "/v1/agents", page({"id": "01A", "name": "one", "cluster": "alpha", "backend": "local"}))
    lines = yard("cluster", "ls").out.splitlines()
    assert lines[1].split() == ["alpha", "up", "local", "2", "8", "3", "2", "16GiB", "5"]
    assert lines[2].split() == ["beta", "down", "no", "agent", "has", "joined"]
    assert yard("cluster", "ls", "-o", "name").out == "alpha\nbeta\n"
    shown = yard("cluster", "show", "alpha").out
    assert "site=north" in shown
    assert "one" in shown


@pytest.mark.parametrize(
    ("load", "free"),
    [
        ({"free_cores": 0, "free_gpus": 0, "free_memory_bytes": 0}, "0 cores, 0 gpus, 0B memory"),
        ({"free_cores": 3}, "3 cores, gpus unknown, memory unknown"),
        ({"free_cores": 3, "free_gpus": 1, "silent_s": 9}, "3 cores, 1 gpus, memory unknown, when it last answered"),
    ],
)
def test_what_is_free_is_told_from_what_nobody_counts(
    yard: Callable[..., Done], peer: Peer, load: dict[str, int], free: str
) -> None:
    peer.on("GET", "/v1/clusters/alpha", Say({**CLUSTER, "load": load}))
    peer.on("GET", "/v1/agents", page())
    (line,) = [line for line in yard("cluster", "show", "alpha").out.splitlines() if line.startswith("free ")]
    assert line.split(maxsplit=1)[1] == free


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["cordon", "alpha", "--reason", "repair"], {"is_cordoned": True, "reason": "repair"}),
        (["uncordon", "alpha"], {"is_cordoned": False}),
        (["edit", "alpha", "--private"], {"is_private": True}),
        (["edit", "alpha", "--public", "--group", "a", "--group", "b"], {"is_private": False, "groups": ["a", "b"]}),
        (["edit", "alpha", "--no-groups"], {"groups": []}),
        (["edit", "alpha", "-l", "new=1", "--unlabel", "old"], {"labels": {"site": "north", "new": "1"}}),
    ],
)
def test_changes_of_a_cluster(yard: Callable[..., Done], peer: Peer, argv: list[str], body: dict[str, Any]) -> None:
    peer.on("GET", "/v1/clusters/alpha", Say(CLUSTER))
    peer.on("PATCH", "/v1/clusters/alpha", Say(CLUSTER))
    assert yard("cluster", *argv).code == 0
    assert peer.asked[-1].body == body


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["cluster", "rm", "alpha"], "/v1/clusters/alpha"),
        (["user", "rm", "bob"], "/v1/users/bob"),
        (["grant", "rm", "01G"], "/v1/grants/01G"),
    ],
)
def test_removing_needs_force_where_nobody_can_be_asked(
    yard: Callable[..., Done], peer: Peer, argv: list[str], path: str
) -> None:
    peer.on("DELETE", path, Say({"deleted": "x"}))
    refused = yard(*argv)
    assert (refused.code, peer.asked) == (2, [])
    assert "--force" in refused.err
    assert yard(*argv, "--force").code == 0
    assert [request.path for request in peer.asked] == [path]


def test_a_submit_token_can_be_kept(yard: Callable[..., Done], peer: Peer, tmp_path: Path) -> None:
    peer.on("POST", "/v1/clusters/alpha/submit-token", Say({"cluster": "alpha", "token": "submit_1"}))
    assert yard("cluster", "token", "alpha", "--save").out.split()[-1] == "submit_1"
    assert [(cluster.name, cluster.token) for cluster in load_user_file(tmp_path / "yard.yaml").clusters] == [
        ("alpha", "submit_1")
    ]


def test_users_and_tokens(yard: Callable[..., Done], peer: Peer) -> None:
    bob = {"id": "01U", "name": "bob", "groups": ["g"]}
    peer.on("POST", "/v1/users", Say(bob, 201))
    peer.on("PATCH", "/v1/users/bob", Say(bob))
    peer.on("GET", "/v1/users", page(bob))
    peer.on("POST", "/v1/tokens", Say({"token": "yard_01T_s", "info": {"id": "01T", "user": "bob"}}, 201))
    peer.on("GET", "/v1/tokens", page({"id": "01T", "user": "bob", "is_revoked": True}))
    peer.on("DELETE", "/v1/tokens/01T", Say({"deleted": "01T"}))
    assert "yard token create --user bob" in yard("user", "add", "bob", "--group", "g").out
    assert peer.asked[-1].body == {"name": "bob", "full_name": "", "groups": ["g"]}
    yard("user", "edit", "bob", "--disable")
    assert peer.asked[-1].body == {"full_name": None, "groups": None, "is_enabled": False}
    assert yard("user", "ls").out.splitlines()[1].split() == ["bob", "g", "yes"]
    assert yard("token", "create", "--user", "bob", "--expires", "30d").out.split()[-1] == "yard_01T_s"
    assert peer.asked[-1].body == {"user": "bob", "note": "", "expires_s": 2592000}
    assert yard("token", "ls").out.splitlines()[1].split() == ["01T", "bob", "revoked"]
    assert yard("token", "revoke", "01T").code == 0


@pytest.mark.parametrize(
    ("to", "on", "body"),
    [
        ("user:alice", "project:p", {"to": "user", "subject": "alice", "on": "project", "object": "p"}),
        ("group:g", "cluster-group:gpu", {"to": "group", "subject": "g", "on": "cluster-group", "object": "gpu"}),
        ("everyone", "platform", {"to": "everyone", "subject": "everyone", "on": "platform", "object": "all"}),
    ],
)
def test_grants_read_as_they_are_said(
    yard: Callable[..., Done], peer: Peer, to: str, on: str, body: dict[str, str]
) -> None:
    peer.on("POST", "/v1/grants", Say({"id": "01G", "role": "submit", **body}, 201))
    done = yard("grant", "add", "submit", "--to", to, "--on", on)
    assert done.out == f"Granted: submit to {to} on {on}  (01G)\n"
    assert peer.asked[0].body == {"role": "submit", **body}


@pytest.mark.parametrize(
    "argv",
    [
        ["own", "--to", "user:a", "--on", "platform"],
        ["view", "--to", "alice", "--on", "platform"],
        ["view", "--to", "everyone:x", "--on", "platform"],
        ["view", "--to", "user:a", "--on", "project:"],
        ["view", "--to", "user:a"],
    ],
)
def test_grants_that_make_no_sense(yard: Callable[..., Done], peer: Peer, argv: list[str]) -> None:
    assert yard("grant", "add", *argv).code == 2
    assert peer.asked == []


def test_projects_and_audit(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("POST", "/v1/projects", Say({"name": "vision"}, 201))
    peer.on("GET", "/v1/projects", page({"name": "vision", "description": "Images"}))
    entry = {
        "id": "01E",
        "at_us": 1,
        "actor": "root",
        "action": "user.create",
        "object": "bob",
        "after": {"name": "bob"},
    }
    peer.on("GET", "/v1/audit", page(entry))
    assert yard("project", "create", "vision", "--description", "Images").code == 0
    assert yard("project", "ls", "-o", "name").out == "vision\n"
    assert yard("audit").out.splitlines()[1].split()[1:] == ["root", "user.create", "bob", "01E"]
    assert json.loads(yard("audit", "-o", "json").out)[0]["after"] == {"name": "bob"}


def test_login_checks_the_token_and_keeps_it(
    yard: Callable[..., Done], peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.on("GET", "/v1/whoami", Say({"name": "alice", "groups": ["g"], "grants": ["submit on project:p"]}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("yard_01_secret\n"))
    done = yard("login", "--token-stdin")
    assert (done.code, "yard_01_secret" in done.out + done.err) == (0, False)
    file = tmp_path / "yard.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (load_user_file(file).url, load_user_file(file).tokens) == (peer.url, {peer.url: "yard_01_secret"})
    assert "submit on project:p" in yard("whoami").out
    assert {request.headers["authorization"] for request in peer.asked} == {"Bearer yard_01_secret"}
    assert yard("whoami", "-o", "name").out == "alice\n"
    assert "forgotten" in yard("logout").out
    assert load_user_file(file).tokens == {}
    assert "No token" in yard("logout").out


def test_login_keeps_nothing_that_does_not_hold(
    yard: Callable[..., Done], peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.on("GET", "/v1/whoami", problem(401, "unauthenticated", "Unknown token."))
    monkeypatch.setattr(sys, "stdin", io.StringIO("wrong\n"))
    assert yard("login", "--token-stdin").code == 4
    assert not (tmp_path / "yard.yaml").exists()
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert yard("login", "--token-stdin").code == 2


def test_login_without_a_terminal_asks_nothing(yard: Callable[..., Done], peer: Peer) -> None:
    done = yard("login")
    assert (done.code, peer.asked) == (2, [])
    assert "--token-stdin" in done.err
