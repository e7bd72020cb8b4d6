"""Commands on many jobs: what is sent, what is asked, what a dry run says; and the forms of bulk files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.jobs.job_selector import JobTarget, parse_target
from switchyard.cli.terminal.progress import format_progress_bar
from switchyard.errors import BadRequest, Malformed
from tests.cli.conftest import Done, Terminal
from tests.sdk.peer import Asked, Peer, Say, a_job, problem

ID = a_job()["id"]
OTHER = f"{ID[:-1]}C"


def jobs(*ids: str, **fields: Any) -> Say:
    return Say({"items": [a_job(id=job, **fields) for job in ids], "next": None})


@pytest.mark.parametrize(
    ("text", "tasks", "target"),
    [
        ("01JCQ0V7", None, JobTarget("01JCQ0V7")),
        ("01JCQ0V7[3,5-7]", None, JobTarget("01JCQ0V7", "3,5-7")),
        ("01JCQ0V7", "5-7,3", JobTarget("01JCQ0V7", "3,5-7")),
        ("01JCQ0V7[0-10:5]", None, JobTarget("01JCQ0V7", "0-10:5")),
        ("what[ever", None, JobTarget("what[ever")),
    ],
)
def test_targets(text: str, tasks: str | None, target: JobTarget) -> None:
    assert parse_target(text, tasks) == target


@pytest.mark.parametrize(
    ("text", "tasks", "error"),
    [
        ("01JCQ0V7[]", None, Malformed),
        ("01JCQ0V7[7-3]", None, Malformed),
        ("01JCQ0V7[1,1]", None, Malformed),
        ("01JCQ0V7", "", Malformed),
        ("01JCQ0V7[1]", "2", BadRequest),
    ],
)
def test_bad_targets(text: str, tasks: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_target(text, tasks)


@pytest.mark.parametrize(
    ("argv", "method", "path", "body"),
    [
        (["cancel", f"{ID}[3,5-7]"], "POST", "cancel", {"tasks": "3,5-7"}),
        (["cancel", ID, "--tasks", "1", "--reason", "x"], "POST", "cancel", {"reason": "x", "tasks": "1"}),
        (["hold", ID], "PATCH", "", {"hold": True}),
        (["release", ID], "PATCH", "", {"hold": False}),
        (["priority", ID, "100"], "PATCH", "", {"priority": 100}),
        (["priority", ID, "-5"], "PATCH", "", {"priority": -5}),
        (["retry", ID, "--elsewhere"], "POST", "retry", {"elsewhere": True}),
        (["retry", f"{ID}[2]"], "POST", "retry", {"tasks": "2"}),
    ],
)
def test_what_is_typed_is_what_is_sent(
    yard: Callable[..., Done], peer: Peer, argv: list[str], method: str, path: str, body: dict[str, Any]
) -> None:
    peer.on("PATCH", "/v1/jobs/*", Say(a_job()))
    peer.on("POST", "/v1/jobs/*/cancel", Say(a_job()))
    peer.on("POST", "/v1/jobs/*/retry", Say({"id": OTHER, "state": "PENDING", "reason": "waits"}, 201))
    done = yard(*argv)
    assert (done.code, done.err) == (0, "")
    (asked,) = peer.asked
    assert (asked.method, asked.path, asked.body) == (method, f"/v1/jobs/{ID}/{path}".rstrip("/"), body)


def test_a_selector_is_walked_and_each_job_changed(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs", jobs(ID, OTHER, state="PENDING", is_held=True))
    peer.on("GET", "/v1/whoami", Say({"name": "alice"}))
    peer.on("PATCH", "/v1/jobs/*", Say(a_job(state="PENDING")))
    dry = yard("release", "--owner", "me", "-l", "run=7", "--since", "2h", "--dry-run")
    assert dry.out == f"Would release 2 jobs:\n  {ID}\n  {OTHER}\n"
    query = peer.asked_for("GET", "/v1/jobs")[0].query
    assert query == {
        "limit": ["200"],
        "state": ["PENDING", "RUNNING"],  # a held array may have tasks that run
        "owner": ["alice"],
        "label": ["run=7"],
        "since_s": ["7200"],
    }
    assert yard("release", "-l", "run=7").code == 2
    assert not peer.asked_for("PATCH", f"/v1/jobs/{ID}")
    assert yard("release", "-l", "run=7", "--force").out == "Released: 2 jobs.\n"
    assert len([asked for asked in peer.asked if asked.method == "PATCH"]) == 2


def test_one_refusal_keeps_no_other_from_it(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("GET", "/v1/jobs", jobs(ID, OTHER, state="PENDING"))
    peer.on("PATCH", f"/v1/jobs/{ID}", problem(409, "conflict", "It has been handed over."))
    peer.on("PATCH", f"/v1/jobs/{OTHER}", Say(a_job(id=OTHER, state="PENDING")))
    done = yard("hold", "--all", "--force")
    assert (done.code, done.out, done.err) == (6, "Held: 1 job.\n", f"error: {ID}: It has been handed over.\n")


def test_cancel_by_selector_goes_round_by_round(yard: Callable[..., Done], peer: Peer) -> None:
    def rounds(asked: Asked) -> Say:
        is_first = "cursor" not in asked.body
        ids = [f"{ID[:-1]}{n}" for n in (range(5) if is_first else range(5, 9))]
        return Say({"asked": len(ids), "refused": 0 if is_first else 2, "ids": ids, "next": ID if is_first else None})

    peer.on("POST", "/v1/jobs/cancel", rounds)
    done = yard("cancel", "-l", "run=7", "--state", "running", "--cluster", "alpha", "--force", "--reason", "enough")
    assert done.out == "Asked for the end of 9 jobs.\n"
    assert (done.code, "2 jobs of others" in done.err) == (1, True)
    first, second = (asked.body for asked in peer.asked)
    selector = {"states": ["RUNNING"], "cluster": "alpha", "labels": {"run": "7"}}
    assert first == {"selector": selector, "reason": "enough"}
    assert second == {**first, "cursor": ID}
    assert yard("cancel", "--all", "--dry-run").out.startswith("Would cancel 9 jobs:\n")
    assert peer.asked[-1].body == {"selector": {}, "everything": True, "dry_run": True, "cursor": ID}
    assert yard("cancel", "--all", "--force", "-o", "name").out.split()[0] == f"{ID[:-1]}0"


def test_on_a_terminal_it_is_asked(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", "/v1/jobs", jobs(ID, state="FAILED"))
    peer.on("POST", "/v1/jobs/*/retry", Say({"id": OTHER, "state": "ASSIGNED", "cluster": "alpha"}, 201))
    for answer, code, calls in (("n\n", 1, 0), ("y\n", 0, 1)):
        asking = terminal("retry", "--label", "run=7")
        asking.until("Retry 1 job?")
        asking.press(answer)
        assert asking.end() == code
        assert len([asked for asked in peer.asked if asked.method == "POST"]) == calls


def test_an_array_is_waited_for_with_a_bar(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    array = a_job(array="0-9", tasks={"total": 10, "ok": 4, "failed": 1, "live": 5})
    ended = a_job(state="FAILED", array="0-9", tasks={"total": 10, "ok": 9, "failed": 1})
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "ASSIGNED", "cluster": "alpha"}, 201))
    peer.on("GET", "/v1/jobs/*", Say(array))
    peer.on("GET", "/v1/jobs/*/wait", Say(array), Say(array), Say(array), Say(ended))
    peer.on("GET", "/v1/jobs/*/tasks", Say({"items": [{"index": 7, "state": "FAILED"}], "next": None}))
    waiting = terminal("submit", "--wait", "--array", "0-9", "x", columns=200)
    assert waiting.end() == 1
    assert "5/10, 1 failed" in waiting.shown
    assert "10 tasks: 9 ok, 1 failed" in waiting.shown
    assert "Failed: 7." in waiting.shown
    assert peer.asked[0].body["array"] == "0-9"


def test_bar() -> None:
    assert format_progress_bar(0, 10, width=4) == "▕░░░░▏ 0/10"
    assert format_progress_bar(5, 10, width=4) == "▕██░░▏ 5/10"
    assert format_progress_bar(10, 10, width=4) == "▕████▏ 10/10"
    assert format_progress_bar(12, 10, width=4) == "▕████▏ 12/10"
    assert format_progress_bar(3, 0) == "3"


def test_bulk_sends_what_the_file_says_with_the_flags_over_it(
    yard: Callable[..., Done], peer: Peer, tmp_path: Path
) -> None:
    def made(asked: Asked) -> Say:
        items = [{"job": {"id": f"{ID[:-2]}{n:02}", "state": "PENDING"}} for n in range(len(asked.body["jobs"]))]
        return Say({"items": items, "made": len(items), "refused": 0}, 201)

    peer.on("POST", "/v1/jobs/bulk", made)
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        "".join(json.dumps({"command": ["echo", str(n)], "labels": {"n": str(n)}}) + "\n" for n in range(5))
    )
    done = yard("submit", "--bulk", str(file), "-l", "run=7", "--batch", "2", "--key", "k", "-o", "name")
    assert (done.code, len(done.out.split())) == (0, 5)
    assert [len(asked.body["jobs"]) for asked in peer.asked] == [2, 2, 1]
    assert [asked.headers["idempotency-key"] for asked in peer.asked] == ["k.0", "k.1", "k.2"]
    assert peer.asked[0].body == {
        "each": False,
        "jobs": [
            {"spec": {"command": ["echo", "0"]}, "labels": {"n": "0", "run": "7"}},
            {"spec": {"command": ["echo", "1"]}, "labels": {"n": "1", "run": "7"}},
        ],
    }


def test_flags_of_again_and_when(yard: Callable[..., Done], peer: Peer) -> None:
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "PENDING"}, 201))
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    argv = ["--array", "0-9%2", "--hold", "--expires-after", "1h", "--after", f"{ID[:10]}:any", "--after", OTHER]
    retry = ["--retry", "3", "--retry-on", "cluster,lost", "--retry-exit-codes", "1,75", "--backoff", "10s"]
    assert yard("submit", *argv, *retry, "--backoff-max", "1h", "x").code == 0
    assert peer.asked[-1].body == {
        "spec": {
            "command": ["x"],
            "retry": {
                **{"limit": 3, "causes": ["cluster", "lost"], "exit_codes": "1,75"},
                **{"backoff": "10s", "backoff_max": "1h"},
            },
        },
        "array": "0-9%2",
        "after": [f"{ID}:any", OTHER],
        "hold": True,
        "expires_after": "1h",
    }
