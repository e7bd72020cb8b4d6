"""Looking at jobs: ls, show, wait, logs, cancel, events, explain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Done
from tests.sdk.peer import Asked, HangUp, Peer, Say, a_job

ID = a_job()["id"]
FAILED = a_job(
    id="01JCQ0V7K3E8R5T9W1X2Y4Z6AC",
    name="second",
    state="FAILED",
    exit_code=3,
    started_us=10_000_000,
    ended_us=75_000_000,
)


def test_ls_is_an_aligned_table_without_colour_when_piped(yard: Callable[..., Done], peer: Peer) -> None:
    long = "why " * 60
    peer.on(
        "GET", "/v1/jobs", Say({"items": [FAILED, a_job(state="PENDING", cluster=None, reason=long)], "next": None})
    )
    lines = yard("ls").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "CLUSTER", "PROJECT", "AGE", "TIME", "EXIT", "REASON"]
    assert lines[1].split()[1:5] == ["second", "FAILED", "alpha", "default"]
    assert lines[1].split()[6:] == ["1m5s", "3"]
    assert lines[2].endswith(long.strip())
    assert {line.index(word) for line, word in zip(lines, ["STATE", "FAILED", "PENDING"], strict=True)} == {
        lines[0].index("STATE")
    }
    assert "\x1b" not in "".join(lines)
    assert peer.asked[0].query == {"limit": ["21"]}


def test_ls_filters_and_forms(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs", Say({"items": [a_job(), FAILED], "next": None}))
    done = yard("ls", "--all", "--state", "failed", "--state", "RUNNING", "-l", "a=b", "--owner", "ann", "-o", "name")
    assert done.out == f"{ID}\n{FAILED['id']}\n"
    assert peer.asked[0].query == {"limit": ["200"], "state": ["FAILED", "RUNNING"], "label": ["a=b"], "owner": ["ann"]}
    jobs = json.loads(yard("ls", "-o", "json").out)
    assert [job["id"] for job in jobs] == [ID, FAILED["id"]]
    assert (jobs[0]["exit_code"], jobs[0]["labels"], jobs[1]["exit_code"]) == (None, {}, 3)
    assert yaml.safe_load(yard("ls", "-o", "yaml").out) == jobs
    assert peer.asked[-1].query["spec"] == ["true"]
    assert yard("ls", "--limit", "1", "-o", "name").out == f"{ID}\n"


def test_ls_refuses_what_is_no_state(yard: Callable[..., Done], peer: Peer) -> None:
    done = yard("ls", "--state", "sleeping")
    assert done.code == 2
    assert "States are: pending," in done.err


def test_text_from_elsewhere_cannot_move_the_cursor(yard: Callable[..., Done], peer: Peer) -> None:
    evil = "a\x1b[2Jb\nfake line\u202e"
    peer.on("GET", "/v1/jobs", Say({"items": [a_job(reason=evil)], "next": None}))
    peer.on("GET", "/v1/jobs/*", Say(a_job(reason=evil)))
    for command in (["ls"], ["show", ID]):
        out = yard(*command).out
        assert "a [2Jb fake line" in out
        assert not {"\x1b", "\u202e"} & set(out)


def test_show_says_all_of_it(yard: Callable[..., Done], peer: Peer) -> None:
    spec = {
        "command": ["sh", "-c", "echo hi"],
        "env": {"A": "b c"},
        "resources": {"tasks": 4, "nodes": 2, "cores": 2, "memory": "8GiB"},
    }
    peer.on("GET", "/v1/jobs/*", Say(a_job(spec=spec, labels={"k": "v"}, state="FAILED", signal=9, reason="killed")))
    out = yard("show", ID).out
    for text in (
        "sh -c 'echo hi'",
        "A='b c'",
        "4 tasks on 2 nodes, each: 2 cores, 8GiB memory",
        "k=v",
        "SIGKILL",
        "killed",
        "alice",
    ):
        assert text in out
    assert json.loads(yard("show", ID, "-o", "json").out)["spec"]["resources"]["memory"] == "8GiB"
    assert len(json.loads(yard("show", ID, ID, "-o", "json").out)) == 2


def test_wait_exits_with_the_first_code_that_is_not_0(yard: Callable[..., Done], peer: Peer) -> None:
    ends: dict[str, dict[str, Any]] = {
        "good": {"state": "SUCCEEDED", "exit_code": 0},
        "bad": {"state": "FAILED", "exit_code": 9},
        "ugly": {"state": "REJECTED"},
    }

    def job(asked: Asked) -> Say:
        name = asked.path.split("/")[3]
        return Say(a_job(id=name, **ends[name]))

    peer.on("GET", "/v1/jobs/*", job)
    assert yard("wait", "good").code == 0
    assert yard("wait", "ugly").code == 5
    done = yard("wait", "good", "bad", "ugly")
    assert (done.code, done.err) == (9, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["good", "SUCCEEDED"],
        ["bad", "FAILED"],
        ["ugly", "REJECTED"],
    ]
    quiet = yard("wait", "-q", "bad")
    assert (quiet.code, quiet.out, quiet.err) == (9, "", "")
    assert json.loads(yard("wait", "bad", "-o", "json").out)["exit_code"] == 9


def test_wait_outlasts_a_restart_of_the_server(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", *[HangUp()] * 4, Say(a_job(state="SUCCEEDED")))
    assert yard("wait", ID).code == 0


def test_wait_has_one_time_for_all(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", Say(a_job()))
    done = yard("wait", ID, ID, "--timeout", "1")
    assert (done.code, done.out) == (7, "")
    assert "Not all ended within 1 s." in done.err
    assert re.search(r"is still RUNNING after \d(\.\d)? s\.", done.err), done.err


def test_cancel_asks_for_each_and_may_wait(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("POST", "/v1/jobs/*/cancel", Say(a_job(cancel_requested=True)))
    done = yard("cancel", "01JCQ0AA", "01JCQ0BB", "--reason", "enough")
    assert (done.code, done.out.count("RUNNING on alpha: cancel requested")) == (0, 2)
    assert [(request.path, request.body) for request in peer.asked] == [
        ("/v1/jobs/01JCQ0AA/cancel", {"reason": "enough"}),
        ("/v1/jobs/01JCQ0BB/cancel", {"reason": "enough"}),
    ]
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", Say(a_job(state="CANCELLED", signal=15)))
    waited = yard("cancel", ID, "--wait")
    assert (waited.code, waited.err) == (0, "")
    assert "CANCELLED on alpha, exit SIGTERM" in waited.out


def test_events_of_one_and_of_all(yard: Callable[..., Done], peer: Peer) -> None:
    event = {"seq": 7, "at_us": 1, "job": ID, "kind": "assigned", "state": "ASSIGNED", "attempt": 1, "cluster": "alpha"}
    peer.on("GET", "/v1/jobs/*/events", Say({"items": [event], "next": None}))
    peer.on("GET", "/v1/events", Say({"items": [event, {**event, "seq": 8}], "next": None}))
    assert yard("events", ID).out.splitlines()[1].split()[3:] == ["assigned", "ASSIGNED", "alpha", "1"]
    assert [event["seq"] for event in json.loads(yard("events", "-o", "json").out)] == [7, 8]
    assert [event["seq"] for event in json.loads(yard("events", "--after", "7", "-o", "json").out)] == [8]


def test_events_follow_a_job_to_its_end(yard: Callable[..., Done], peer: Peer) -> None:
    event = {"seq": 1, "at_us": 1, "job": ID, "kind": "running", "state": "RUNNING"}
    more = {**event, "seq": 2, "kind": "succeeded", "state": "SUCCEEDED"}
    peer.on("GET", "/v1/jobs/*", Say(a_job()), Say(a_job(state="SUCCEEDED")))
    peer.on(
        "GET", "/v1/jobs/*/events", Say({"items": [event], "next": None}), Say({"items": [event, more], "next": None})
    )
    lines = yard("events", "-f", ID, "-o", "json").out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def explanation(**changes: Any) -> dict[str, Any]:
    verdicts = [
        {"cluster": "alpha", "say": "no", "step": "match", "reason": "asks 8 cores per task; its largest node has 2"},
        {"cluster": "gamma", "say": "yes", "step": "match"},
    ]
    plan = {"chosen": "gamma", "verdicts": verdicts, "algorithm": "weighted", "seed": "s", "outcome": "assign"}
    base = {
        "job": ID,
        "state": "RUNNING",
        "plan": plan,
        "now": verdicts,
        "hints": [],
        "notes": ["limits.gpu=8 ← domain=prod"],
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("ran_us", "text"),
    [(0, "0ms"), (7_400, "7ms"), (999_999, "999ms"), (1_020_000, "1.0s"), (9_990_000, "9.9s"), (10_400_000, "10s")],
)
def test_a_short_run_is_told_in_parts_of_a_second(
    yard: Callable[..., Done], peer: Peer, ran_us: int, text: str
) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job(state="SUCCEEDED", started_us=10**6, ended_us=10**6 + ran_us)))
    assert f"SUCCEEDED on alpha after {text}\n" in yard("wait", ID).out


def test_explain_shows_verdicts_and_policy(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job(cluster="gamma")))
    peer.on("GET", "/v1/jobs/*/explain", Say(explanation()))
    lines = yard("explain", ID).out.splitlines()
    assert lines[0] == f"Job {ID}  hello  RUNNING on gamma"
    assert re.fullmatch(r"submitted .* ago by alice; project default, domain development, priority 0", lines[1])
    assert lines[2:] == [
        "CLUSTER  VERDICT  STEP   WHY",
        "✔ gamma  yes      match  chosen: fits",
        "  alpha  no       match  asks 8 cores per task; its largest node has 2",
        "Selected by weighted, drawn on the job's id.",
        "Notes:  limits.gpu=8 ← domain=prod",
    ]
    assert json.loads(yard("explain", ID, "-o", "json").out)["plan"]["chosen"] == "gamma"


def test_explain_and_wait_name_the_clusters_that_have_the_tasks_of_an_array(
    yard: Callable[..., Done], peer: Peer
) -> None:
    counts = {"total": 6, "ok": 6, "failed": 0, "cancelled": 0, "live": 0, "waiting": 0}
    ended = a_job(state="SUCCEEDED", cluster="gamma", array="0-5", tasks=counts, tasks_by_cluster={"beta": 6})
    peer.on("GET", "/v1/jobs/*", Say(ended))
    peer.on("GET", "/v1/jobs/*/explain", Say(explanation(state="SUCCEEDED")))
    lines = yard("explain", ID).out.splitlines()
    assert lines[0] == f"Job {ID}  hello  SUCCEEDED on beta"
    assert "✔ gamma" not in "".join(lines)
    assert "gamma was selected by weighted, drawn on the job's id." in lines
    assert yard("wait", ID).out.startswith(f"{ID}  SUCCEEDED on beta")
    peer.on("GET", "/v1/jobs/*", Say({**ended, "tasks_by_cluster": {"alpha": 1, "beta": 5}}))
    lines = yard("explain", ID).out.splitlines()
    assert lines[0] == f"Job {ID}  hello  SUCCEEDED on beta 5, alpha 1"
    assert "✔" not in "".join(lines), "the column TASKS says which clusters have tasks, whatever their verdict is"
    assert lines[2].split()[:5] == ["CLUSTER", "VERDICT", "STEP", "TASKS", "WHY"]
    assert "alpha    no       match      1  asks 8 cores per task; its largest node has 2" in lines
    assert yard("wait", ID).out.startswith(f"{ID}  SUCCEEDED on beta 5, alpha 1")


def test_explain_shows_what_changed_since_and_what_would_help(yard: Callable[..., Done], peer: Peer) -> None:
    now = [{"cluster": "alpha", "say": "wait", "step": "health", "reason": "down"}]
    peer.on("GET", "/v1/jobs/*", Say(a_job(state="PENDING")))
    peer.on(
        "GET", "/v1/jobs/*/explain", Say(explanation(state="PENDING", now=now, hints=["bring the agent of alpha back"]))
    )
    out = yard("explain", ID).out
    assert "\nNow:\nCLUSTER  VERDICT  STEP    WHY\nalpha    wait     health  down\n" in out
    assert "Would run if:  bring the agent of alpha back" in out
