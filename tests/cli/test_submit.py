"""`yard submit`: what is typed against what is sent, and how it ends."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Done
from tests.sdk.peer import Peer, Say, a_job, problem

ID = a_job()["id"]
PLAN = {
    "chosen": "beta",
    "verdicts": [
        {"cluster": "alpha", "say": "no", "step": "match", "reason": "asks 4 cores, node has 2"},
        {"cluster": "beta", "say": "yes", "step": "match"},
        {"cluster": "gamma", "say": "wait", "step": "health", "reason": "cordoned"},
    ],
    "algorithm": "weighted",
    "seed": "x",
    "outcome": "assign",
}
NOWHERE = {
    **PLAN,
    "chosen": None,
    "verdicts": [
        {"cluster": "alpha", "say": "no", "step": "match", "reason": "asks 64 cores, node has 2"},
        {"cluster": "beta", "say": "no", "step": "match", "reason": "asks 64 cores, node has 4"},
    ],
    "outcome": "reject",
    "reason": "no cluster fits",
}


@pytest.fixture
def server(peer: Peer) -> Peer:
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "ASSIGNED", "cluster": "beta"}, 201))
    peer.on("POST", "/v1/plan", Say(PLAN))
    return peer


@pytest.mark.parametrize(
    ("argv", "spec", "rest"),
    [
        (["--", "hostname"], {"command": ["hostname"]}, {}),
        (["hostname", "-f"], {"command": ["hostname", "-f"]}, {}),
        (["sh", "-c", "echo a -- b", "--", "-n", "3"], {"command": ["sh", "-c", "echo a -- b", "--", "-n", "3"]}, {}),
        (["-n", "3", "--", "--odd", "--"], {"command": ["--odd", "--"], "resources": {"tasks": 3}}, {}),
        (["-c", "500m", "x"], {"command": ["x"], "resources": {"cores": "500m"}}, {}),
        (
            [
                "-n8",
                "-N2",
                "-c",
                "2",
                "-g",
                "1",
                "-m",
                "8GiB",
                "--ephemeral-storage",
                "1GiB",
                "-t",
                "1:30:00",
                "--",
                "x",
            ],
            {
                "command": ["x"],
                "resources": {
                    **{"nodes": 2, "tasks": 8, "cores": 2, "gpus": 1, "memory": "8GiB"},
                    **{"ephemeral_storage": "1GiB", "time_limit": "1:30:00"},
                },
            },
            {},
        ),
        (
            ["--limit", "cores=2", "--limit", "ephemeral-storage=5GiB", "x"],
            {"command": ["x"], "resources": {"limits": {"cores": 2, "ephemeral_storage": "5GiB"}}},
            {},
        ),
        (
            ["--env", "A=b=c", "-e", "EMPTY=", "-e", "HERE", "--cwd", "/tmp", "--image", "img:1", "x"],
            {"command": ["x"], "env": {"A": "b=c", "EMPTY": "", "HERE": "of mine"}, "cwd": "/tmp", "image": "img:1"},
            {},
        ),
        (
            ["--on-lost", "requeue", "--lost-after", "5m", "x"],
            {"command": ["x"], "on_lost": "requeue", "lost_after": "5m"},
            {},
        ),
        (
            [
                "--name",
                "a b",
                "--project",
                "p",
                "--domain",
                "d",
                "--priority",
                "-5",
                "-l",
                "k=v",
                "--cluster",
                "beta",
                "x",
            ],
            {"command": ["x"]},
            {"name": "a b", "project": "p", "domain": "d", "priority": -5, "labels": {"k": "v"}, "cluster": "beta"},
        ),
    ],
)
def test_what_is_typed_is_what_is_sent(
    yard: Callable[..., Done],
    server: Peer,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    spec: dict[str, Any],
    rest: dict[str, Any],
) -> None:
    monkeypatch.setenv("HERE", "of mine")
    assert yard("submit", *argv).code == 0
    assert server.asked[0].body == {"spec": spec, **rest}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "has no command"),
        (["--"], "has no command"),
        (["-c", "many", "x"], "'many' is not an amount"),
        (["-n", "0", "x"], "`tasks`"),
        (["--label", "novalue", "x"], "'novalue' is not KEY=VALUE"),
        (["--env", "NOT_SET_HERE", "x"], "is not set here"),
        (["--on-lost", "panic", "x"], "invalid choice"),
        (["--plan", "--wait", "x"], "not allowed with"),
        (["--limit", "cors=1", "x"], "unknown field `cors`"),
        (["-t", "soon", "x"], "'soon' is not a duration"),
        (["--key", "", "x"], "idempotency key"),
        (["--key", "a b", "x"], "idempotency key"),
        (["-f", "/nonexistent/job.yaml"], "Cannot read /nonexistent/job.yaml"),
        (["--timeout", "0", "--wait", "x"], "is not a duration"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_sent(
    yard: Callable[..., Done], server: Peer, argv: list[str], words: str
) -> None:
    done = yard("submit", *argv)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert server.asked == []


def test_flags_win_over_the_file(yard: Callable[..., Done], server: Peer, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: python train.py\nname: train\nenv: {A: '1'}\ncores: 2\nmemory: 8GiB\ntime_limit: 1:30:00\n"
    )
    assert yard("submit", "-f", str(file), "--cores", "4", "-e", "B=2", "-l", "t=ml").code == 0
    assert server.asked[0].body == {
        "spec": {
            "command": ["python", "train.py"],
            "env": {"A": "1", "B": "2"},
            "resources": {"cores": 4, "memory": "8GiB", "time_limit": 5400},
        },
        "name": "train",
        "labels": {"t": "ml"},
    }
    assert yard("submit", "-f", str(file), "--", "other", "command").code == 0
    assert server.asked[1].body["spec"]["command"] == ["other", "command"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected fields"),
        ("- a\n", "expected fields"),
        ("command: [a\n", "line 2"),
        ("command: a\ncommand: b\n", "given twice"),
        ("command: a\nmem: 1\n", "no field 'mem'"),
    ],
)
def test_a_mistake_in_the_file_names_it(
    yard: Callable[..., Done], server: Peer, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    done = yard("submit", "-f", str(file))
    assert done.code == 2
    assert f"error: {file}: " in done.err
    assert words in done.err


def test_the_answer_names_the_next_commands(yard: Callable[..., Done], server: Peer) -> None:
    done = yard("submit", "x")
    assert done.out.splitlines()[0] == f"Job {ID} goes to beta"
    for verb in ("wait", "logs", "explain", "cancel"):
        assert f"yard {verb} {ID}" in done.out
    assert "\x1b" not in done.out


def test_forms_of_the_answer(yard: Callable[..., Done], server: Peer) -> None:
    expected = {"id": ID, "state": "ASSIGNED", "cluster": "beta", "reason": "", "stale_tokens": []}
    assert yard("submit", "-o", "name", "x").out == f"{ID}\n"
    assert yaml.safe_load(yard("submit", "-o", "json", "x").out) == expected
    assert yaml.safe_load(yard("submit", "-o", "yaml", "x").out) == expected


def test_the_key_is_sent(yard: Callable[..., Done], server: Peer) -> None:
    yard("submit", "--key", "run-7", "x")
    assert server.asked[0].headers["idempotency-key"] == "run-7"
    server.on("POST", "/v1/jobs", problem(409, "key-reused", "Another body."))
    assert yard("submit", "--key", "run-7", "y").code == 6


def test_plan_shows_every_verdict_and_submits_nothing(yard: Callable[..., Done], server: Peer) -> None:
    done = yard("submit", "--plan", "-c", "4", "x")
    assert done.code == 0
    assert done.out == (
        "CLUSTER  VERDICT  STEP    WHY\n"
        "✔ beta   yes      match   chosen: fits\n"
        "  gamma  wait     health  cordoned\n"
        "  alpha  no       match   asks 4 cores, node has 2\n"
        "\n"
        "The job would go to beta (selected by weighted). Nothing was submitted.\n"
    )
    assert [request.path for request in server.asked] == ["/v1/plan"]
    assert yard("submit", "--plan", "-o", "name", "x").out == "beta\n"
    server.on("POST", "/v1/plan", Say(NOWHERE))
    rejected = yard("submit", "--plan", "x")
    assert rejected.code == 5
    assert "would be REJECTED: no cluster fits" in rejected.out


def test_a_rejected_job_shows_every_reason_and_exits_5(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "REJECTED", "reason": "no cluster fits"}, 201))
    explanation = {
        "job": ID,
        "state": "REJECTED",
        "plan": NOWHERE,
        "now": NOWHERE["verdicts"],
        "hints": ["--cores 4 instead of 64 (beta)"],
    }
    peer.on("GET", "/v1/jobs/*/explain", Say(explanation))
    for extra in ([], ["--wait"]):
        done = yard("submit", *extra, "-c", "64", "x")
        assert done.code == 5
        assert "alpha    no       match  asks 64 cores, node has 2" in done.out
        assert "beta     no       match  asks 64 cores, node has 4" in done.out
        assert "Would run if:  --cores 4 instead of 64 (beta)" in done.out
        assert f"error: Job {ID} was REJECTED: no cluster fits" in done.err
    named = yard("submit", "-o", "name", "x")
    assert (named.code, named.out) == (5, f"{ID}\n")


def output(stream: str, data: bytes) -> Say:
    chunks = [{"offset": 0, "data": base64.b64encode(data).decode()}] if data else []
    return Say({"job": ID, "stream": stream, "chunks": chunks, "size": len(data)})


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"state": "SUCCEEDED", "exit_code": 0}, 0),
        ({"state": "FAILED", "exit_code": 3}, 3),
        ({"state": "FAILED", "signal": 9}, 137),
        ({"state": "FAILED", "reason": "lost"}, 1),
        ({"state": "FAILED", "exit_code": 0, "reason": "time limit"}, 1),
        ({"state": "CANCELLED", "signal": 15}, 130),
    ],
)
def test_wait_prints_the_output_and_exits_as_the_job(
    yard: Callable[..., Done], server: Peer, end: dict[str, Any], code: int
) -> None:
    server.on("GET", "/v1/jobs/*", Say(a_job(state="ASSIGNED")))
    server.on("GET", "/v1/jobs/*/wait", Say(a_job()), Say(a_job(**end)))
    server.on(
        "GET", "/v1/jobs/*/output", lambda asked: output(asked.query["stream"][0], asked.query["stream"][0].encode())
    )
    done = yard("submit", "--wait", "x")
    assert (done.code, done.out) == (code, "stdout")
    states = [line.split()[1].rstrip(":,") for line in done.err.splitlines() if line.startswith(ID)]
    assert states == ["ASSIGNED", "RUNNING", end["state"]]
    assert done.err.endswith("stderr")


def test_wait_gives_up_with_7_and_the_job_goes_on(yard: Callable[..., Done], server: Peer) -> None:
    server.on("GET", "/v1/jobs/*", Say(a_job()))
    server.on("GET", "/v1/jobs/*/wait", Say(a_job()))
    done = yard("submit", "--wait", "--timeout", "1", "x")
    assert done.code == 7
    assert "It goes on" in done.err


def test_fit_prints_the_names_of_the_fitting_clusters_one_per_line(
    yard: Callable[..., Done], peer: Peer, tmp_path: Path
) -> None:
    fits = [{"cluster": name, "ever": name != "beta"} for name in ("alpha", "beta", "gamma")]
    peer.on("POST", "/v1/clusters/fit", Say({"engine": "walk", "asked": 3, "fitting": 2, "items": fits}))
    (tmp_path / "job.yaml").write_text("command: [x]\n")
    done = yard("cluster", "fit", str(tmp_path / "job.yaml"), "-o", "name")
    assert (done.code, done.out) == (0, "alpha\ngamma\n")
