"""What one user may have: each limit is reached, says so, leaves others alone, and lets go again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from switchyard.errors import EXIT_CONFLICT
from tests.acceptance.clients.followers import Followers, median
from tests.acceptance.stage import SOON_S, Secret, Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import Answer, isolated_env, start_server, yard
from tests.services import Postgres
from tests.soak import SOAKED
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("limits")

CONFIG = {
    "retention": {"jobs": "1s", "logs": "1s"},
    "limits": {
        "waits": 2,
        "users": {
            "waits-user": {},
            "wide-user": {"waits": 4},
            "streams-user": {"streams": 1},
            "requests-user": {"requests": 1, "burst": 10},
            "jobs-user": {"jobs": 2},
            "tasks-user": {"tasks": 10},
            "bytes-user": {"bytes": "24KiB"},
            "printing-user": {"bytes": "64KiB"},
            "bulk-user": {"jobs": 5},
            "crowd-user": {"waits": 1000},
        },
    },
}
FOLLOWERS = 150
FREED_S = PATIENCE_S  # a job that is over is removed within seconds here


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    config = folder / "server.yaml"
    config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    with staged(folder, auth=True, extra=("--config", str(config))) as made, made.agent("alpha"):
        yield made


_tokens: dict[tuple[str, str], Secret] = {}


def token_of(stage: Stage, name: str) -> Secret:
    if (stage.url, name) not in _tokens:
        stage.post("/v1/users", {"name": name})
        _tokens[stage.url, name] = Secret(stage.post("/v1/tokens", {"user": name})["token"])
    return _tokens[stage.url, name]


def submit(stage: Stage, token: str, *, spec: dict[str, Any] | None = None, **fields: Any) -> Answer:
    """A job that waits until somebody releases it."""
    body = {"spec": {"command": ["true"], **(spec or {})}, "hold": True, **fields}
    return stage.call("POST", "/v1/jobs", body, token=token)


def held(stage: Stage, token: str, **fields: Any) -> str:
    answer = submit(stage, token, **fields)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def jobs_of(stage: Stage, token: str) -> list[dict[str, Any]]:
    owner = stage.get("/v1/whoami", token=token)["name"]
    return stage.walk(f"/v1/jobs?owner={owner}", limit=100, token=token)


def cancel_all(stage: Stage, token: str) -> None:
    for job in jobs_of(stage, token):
        stage.call("POST", f"/v1/jobs/{job['id']}/cancel", {}, token=token)


@dataclass(frozen=True)
class Case:
    """How a user comes to the limit (`fill`, left at the end of its context), and the call that is one too many."""

    name: str
    fill: Callable[[Stage, str], Any]
    ask: Callable[[Stage, str], Answer]
    release: Callable[[Stage, str], None] = lambda _stage, _token: None
    code: str = "throttled"


@contextmanager
def following(stage: Stage, token: str, path: str, count: int) -> Iterator[None]:
    """So many followers who have asked; streams are open."""
    with Followers(stage.url, token, [path] * count, again=False) as opened:
        opened.wait_sent(count)
        if "stream" in path:
            until(lambda: opened.begun[200] == count, SOON_S, "the streams are open")
        yield


def fill_waits(stage: Stage, token: str) -> Any:
    return following(stage, token, f"/v1/jobs/{held(stage, token)}/wait?timeout_s=60", 2)


def ask_wait(stage: Stage, token: str) -> Answer:
    job = next(job["id"] for job in stage.walk("/v1/jobs", limit=100, token=token) if job["state"] == "PENDING")
    return stage.call("GET", f"/v1/jobs/{job}/wait?timeout_s=0.2", token=token)


def fill_requests(stage: Stage, token: str) -> Any:
    for _ in range(10):
        stage.call("GET", "/v1/whoami", token=token)
    return nullcontext()


def ask_stream(stage: Stage, token: str) -> Answer:
    """A stream has no end: its headers are the answer."""
    with Followers(stage.url, token, ["/v1/events/stream"], again=False) as opened:
        until(lambda: opened.begun[200] or opened.statuses, SOON_S, "an answer")
        refused = opened.statuses[429]
        return Answer(429 if refused else 200, opened.headers, opened.bodies[0] if refused else b"{}")


def fill_jobs(stage: Stage, token: str) -> Any:
    for _ in range(2):
        held(stage, token)
    return nullcontext()


def fill_tasks(stage: Stage, token: str) -> Any:
    held(stage, token, array="0-9")
    return nullcontext()


def fill_bytes(stage: Stage, token: str) -> Any:
    for _ in range(2):
        held(stage, token, spec={"env": {"FILLER": "x" * 10_000}})
    return nullcontext()


CASES = (
    Case("waits", fill_waits, ask_wait),
    Case("streams", lambda stage, token: following(stage, token, "/v1/events/stream", 1), ask_stream),
    Case("requests", fill_requests, lambda stage, token: stage.call("GET", "/v1/whoami", token=token)),
    Case("jobs", fill_jobs, submit, cancel_all, code="limit-reached"),
    Case(
        "tasks",
        fill_tasks,
        lambda stage, token: submit(stage, token, array="0-1"),
        cancel_all,
        code="limit-reached",
    ),
    Case(
        "bytes",
        fill_bytes,
        lambda stage, token: submit(stage, token, spec={"env": {"FILLER": "x" * 10_000}}),
        cancel_all,
        code="limit-reached",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_limit_is_reached_says_so_and_lets_go(stage: Stage, case: Case) -> None:
    mine, other = token_of(stage, f"{case.name}-user"), token_of(stage, "other-user")
    held(stage, other)
    with case.fill(stage, mine):
        refused: Answer = until(lambda: _if_refused(case.ask(stage, mine)), SOON_S, f"the limit {case.name} refuses")
        assert refused.status == 429
        problem = refused.json
        assert (problem["code"], problem["limit"]) == (case.code, case.name)
        assert f"`{case.name}`" in problem["detail"]
        assert f"limits.{case.name}" in problem["detail"], "it says where it is set"
        assert problem["next_step"]
        assert ("retry-after" in refused.headers) == (case.code == "throttled")
        assert case.ask(stage, other).status < 300, "another user is as free as before"
        assert case.ask(stage, str(stage.token)).status < 300, "and an administrator"
    case.release(stage, mine)
    until(lambda: case.ask(stage, mine).status < 300, FREED_S, f"the limit {case.name} lets go")


def _if_refused(answer: Answer) -> Answer | None:
    return answer if answer.status == 429 else None


def test_a_user_of_the_list_has_limits_of_their_own(stage: Stage) -> None:
    mine = token_of(stage, "wide-user")
    with following(stage, mine, f"/v1/jobs/{held(stage, mine)}/wait?timeout_s=60", 3):
        assert ask_wait(stage, mine).status == 200, "four may wait, where two may by default"


def test_many_jobs_in_one_request_are_refused_together_and_an_accepted_request_may_be_repeated(stage: Stage) -> None:
    mine = token_of(stage, "bulk-user")
    job = {"spec": {"command": ["true"]}, "hold": True}
    over = stage.call("POST", "/v1/jobs/bulk", {"jobs": [job] * 6}, token=mine)
    assert (over.status, over.json["limit"]) == (429, "jobs")
    assert jobs_of(stage, mine) == []
    key = {"Idempotency-Key": "limits-bulk"}
    made = stage.call("POST", "/v1/jobs/bulk", {"jobs": [job] * 5}, token=mine, headers=key)
    assert (made.status, made.json["made"]) == (201, 5)
    again = stage.call("POST", "/v1/jobs/bulk", {"jobs": [job] * 5}, token=mine, headers=key)
    assert (again.status, again.json["made"]) == (200, 5), "it was accepted before there were too many"


def test_a_submit_that_was_accepted_is_answered_again_at_the_limit(stage: Stage) -> None:
    mine = token_of(stage, "jobs-user")
    cancel_all(stage, mine)
    body, key = {"spec": {"command": ["true"]}, "hold": True}, {"Idempotency-Key": "limits-one"}
    until(lambda: stage.call("POST", "/v1/jobs", body, token=mine, headers=key).status == 201, FREED_S, "there is room")
    until(lambda: submit(stage, mine).status == 429, FREED_S, "there is no more room")
    assert stage.call("POST", "/v1/jobs", body, token=mine, headers=key).status == 200


def test_output_beyond_the_limit_is_left_out_and_the_job_goes_on(stage: Stage) -> None:
    mine = token_of(stage, "printing-user")
    program = "for i in $(seq 40); do head -c 8192 /dev/zero | tr '\\0' x; echo; sleep 0.05; done; exit 7"
    made = stage.submitted("sh", "-c", program, token=mine)
    job = until(lambda: _if_over(stage, made["id"]), PATIENCE_S, "the job is over")
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    refused = until(lambda: _if_refused(submit(stage, mine)), SOON_S, "the limit `bytes` refuses")
    assert refused.json["limit"] == "bytes"


def _if_over(stage: Stage, job: str) -> dict[str, Any] | None:
    """Told by the end itself: a second later the job is removed."""
    answer = stage.call("GET", f"/v1/jobs/{job}/wait?timeout_s=60")
    return answer.json if answer.json.get("state") in ("SUCCEEDED", "FAILED") else None


def test_the_command_line_says_which_limit(stage: Stage) -> None:
    mine = token_of(stage, "tasks-user")
    env = isolated_env(stage.folder, url=stage.url, token=mine)
    done = yard("submit", "--array", "0-99", "--hold", "--", "true", env=env)
    assert done.returncode == EXIT_CONFLICT
    assert "`tasks`" in done.stderr


@pytest.mark.parametrize("path", ["wait?timeout_s=60", SOAKED("output?wait_s=60")])
def test_many_followers_of_one_user_make_nobody_else_wait(stage: Stage, path: str) -> None:
    """They used to read the database one by one, over and over, before anybody who came after them."""
    crowd, other = token_of(stage, "crowd-user"), token_of(stage, "quick-user")
    followed, mine = held(stage, crowd), held(stage, other)

    def look() -> None:
        stage.get(f"/v1/jobs/{mine}", token=other)

    calm = median(look, times=20)
    with Followers(stage.url, crowd, [f"/v1/jobs/{followed}/{path}"] * FOLLOWERS) as followers:
        followers.wait_sent(FOLLOWERS)
        coming = median(look, times=10)
        parked = min(median(look, times=10) for _ in range(3))  # the best: the machine may be busy
        assert not followers.statuses, "they all wait"
        stage.call("POST", f"/v1/jobs/{followed}/cancel", {}, token=crowd)
        until(lambda: followers.statuses[200] >= FOLLOWERS, SOON_S, "all have been told")
    bound = 10 * calm + 0.1
    assert (coming < bound, parked < bound) == (True, True), (
        f"calm {calm:.3f}, coming {coming:.3f}, parked {parked:.3f}"
    )


def test_slow_uploads_of_one_user_leave_places_for_others(stage: Stage) -> None:
    stage.post("/v1/clusters", {"name": "drawn"})
    other = token_of(stage, "operating-user")
    stage.post("/v1/grants", {"role": "admin", "to": "user", "subject": "operating-user", "on": "platform"})
    graph = {"nodes": 1, "each": {"core": 1}}
    path, url = "/v1/clusters/drawn/graph", urlsplit(stage.url)
    place = (str(url.hostname), int(url.port or 0))

    def put(token: str | None) -> int:
        return stage.call("PUT", path, graph, token=token).status

    with ExitStack() as slow:
        for _ in range(2):
            line = slow.enter_context(socket.create_connection(place))
            fields = ("Host: x", f"Authorization: Bearer {stage.token}", "Content-Length: 99")
            line.sendall("\r\n".join((f"PUT {path} HTTP/1.1", *fields, "", "{")).encode())
        until(lambda: put(None) == 429, SOON_S, "the same user has no further place")
        assert put(other) == 200
    until(lambda: put(None) == 200, SOON_S, "the places are free again")


def test_live_jobs_count_over_all_servers_and_waits_at_each(tmp_path: Path, postgres: Postgres) -> None:
    config, database = tmp_path / "server.yaml", migrated(postgres)
    config.write_text(yaml.safe_dump({"limits": {"jobs": 3, "waits": 1}}), encoding="utf-8")
    extra = ("--config", str(config))
    with (
        start_server(tmp_path, database=database, auth=True, extra=extra, name="one") as one,
        start_server(tmp_path, database=database, auth=True, extra=extra, name="two") as two,
    ):
        here = Stage(tmp_path, one, Secret(one.admin_token))
        there = Stage(tmp_path, two, here.token)
        mine = token_of(here, "ann")
        with here.agent("alpha"):
            jobs = [held(here, mine) for _ in range(3)]
            # The other server may accept a few until it has asked the database.
            until(lambda: submit(there, mine).status == 429, SOON_S, "the limit holds at the other server")
            with following(here, mine, f"/v1/jobs/{jobs[0]}/wait?timeout_s=60", 1):
                path = f"/v1/jobs/{jobs[0]}/wait?timeout_s=0.1"
                until(lambda: here.call("GET", path, token=mine).status == 429, SOON_S, "one wait here")
                assert there.call("GET", path, token=mine).status == 200, "and one there"


def test_mistakes_in_the_section_are_listed_with_their_places(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("limits:\n  waits: -1\n  users:\n    ann: {wait: 3}\n", encoding="utf-8")
    env = isolated_env(tmp_path)
    done = yard("server", "--data", str(tmp_path / "data"), "--config", str(config), env=env)
    assert "limits.waits: Expected `int` >= 0 (line 2, column 3)" in done.stderr
    assert "limits.users.ann.wait: unknown key" in done.stderr
    assert "(line 4, column 11)" in done.stderr
