"""Bad input, row by row: a 4xx with a reason and a next step, nothing stored, and the server is as well as before."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from typing import Any

import pytest

from tests.server.cases import JOB, refused
from tests.server.town import Town

pytestmark = pytest.mark.xdist_group("bad-input")
MIB = 2**20


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def town(town_on: Any, request: pytest.FixtureRequest) -> Town:
    return town_on(request.param)


def job(**fields: Any) -> dict[str, Any]:
    return JOB | fields


def spec(**fields: Any) -> dict[str, Any]:
    return job(spec=JOB["spec"] | fields)  # type: ignore[operator]


def asks(**fields: Any) -> dict[str, Any]:
    return spec(resources=fields)


DEEP = b'{"spec":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
BODIES: list[tuple[str, Any, str]] = [
    ("no JSON", b"{not json", "malformed"),
    ("empty", b"", "malformed"),
    ("cut off", b'{"spec":{"command":["true"]}', "malformed"),
    ("two documents", b'{"spec":{"command":["true"]}}{}', "malformed"),
    ("no UTF-8", b'{"spec":{"command":["\xff\xfe"]}}', "malformed"),
    ("half a surrogate", b'{"spec":{"command":["\\ud800"]}}', "malformed"),
    ("a list", [], "malformed"),
    ("a number", 7, "malformed"),
    ("unknown field", job(colour="red"), "malformed"),
    ("unknown field within", asks(core=1), "malformed"),
    ("duplicate field", b'{"spec":{"command":["a"]},"project":"own","project":"foreign"}', "malformed"),
    ("duplicate field, escaped", b'{"spec":{"command":["a"]},"project":"own","proj\\u0065ct":"own"}', "malformed"),
    ("duplicate field within", b'{"spec":{"command":["a"],"env":{"A":"1","A":"2"}},"project":"own"}', "malformed"),
    ("ten thousand levels", DEEP, "malformed"),
    ("ten thousand lists", b"[" * 10_000, "malformed"),
    ("no command", spec(command=[]), "malformed"),
    ("an empty command", spec(command=[""]), "malformed"),
    ("NUL in the command", spec(command=["a\x00b"]), "malformed"),
    ("NUL in the environment", spec(env={"A": "\x00"}), "malformed"),
    ("a variable with =", spec(env={"A=B": "1"}), "malformed"),
    ("zero tasks", asks(tasks=0), "malformed"),
    ("negative tasks", asks(tasks=-1), "malformed"),
    ("negative gpus", asks(gpus=-1), "malformed"),
    ("zero cores", asks(cores=0), "malformed"),
    ("half a node", asks(nodes=1.5), "malformed"),
    ("a trillion nodes", asks(nodes=10**12), "malformed"),
    ("a number of 400 digits", asks(tasks=int("9" * 400)), "malformed"),
    ("a memory that is none", asks(memory="lots"), "malformed"),
    ("negative memory", asks(memory=-1), "malformed"),
    ("absurd memory", asks(memory="99999Ei"), "bad-value"),
    ("more nodes than tasks", asks(nodes=2, tasks=1), "bad-value"),
    ("a limit below the request", asks(memory="2GiB", limits={"memory": "1GiB"}), "bad-value"),
    ("no time at all", asks(time_limit=0), "malformed"),
    ("a bad time", asks(time_limit="soon"), "malformed"),
    ("an unknown on_lost", spec(on_lost="panic"), "malformed"),
    ("a priority beyond the bounds", job(priority=10**9), "malformed"),
    ("a name with a newline", job(name="a\nb"), "malformed"),
    ("a name with NUL", job(name="\x00"), "malformed"),
    ("a name with an escape", job(name="\x1b[31m"), "malformed"),
    ("a label with a newline", job(labels={"a": "b\n"}), "malformed"),
    ("a label without a name", job(labels={"": "b"}), "malformed"),
    ("too many labels", job(labels={f"l{n}": "" for n in range(65)}), "malformed"),
    ("a project with a newline", job(project="own\n"), "malformed"),
    ("a cluster with NUL", job(cluster="own\x00"), "malformed"),
    ("an unknown project", job(project="nowhere"), "unknown-name"),
    ("an unknown domain", job(domain="nowhere"), "unknown-name"),
    ("an unknown cluster", job(cluster="nowhere"), "unknown-name"),
    ("a wrong submit token", job(clusters=[{"name": "own", "token": "wrong"}]), "denied"),
    ("a submit token with NUL", job(clusters=[{"name": "own", "token": "\x00"}]), "denied"),
    ("a submit token of no cluster", job(clusters=[{"name": "nowhere", "token": "submit_x"}]), "denied"),
]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plan"])
def test_a_bad_job_is_refused_and_nothing_stored(town: Town, path: str) -> None:
    before = town.jobs()
    for name, body, code in BODIES:
        answer = town.ask("POST", path, body, token=town.root)
        assert refused(answer)["code"] == code, name
    assert town.jobs() == before
    assert town.is_healthy()


QUOTED_NUL, QUOTED_NEWLINE = "%00", "%0A"
REQUESTS: list[tuple[str, str, Any, int]] = [
    # names that are taken
    ("POST", "/v1/clusters", {"name": "own"}, 409),
    ("POST", "/v1/projects", {"name": "own"}, 409),
    ("POST", "/v1/users", {"name": "the-view"}, 409),
    # names that are none
    *(
        ("POST", path, {"name": name}, 400)
        for path in ("/v1/clusters", "/v1/projects", "/v1/users")
        for name in ("", "a\n", "a\x00", "a b", "-a", "é", "a" * 129, 7, None)
    ),
    ("POST", f"/v1/clusters/a{QUOTED_NEWLINE}/invites", {}, 404),
    ("POST", "/v1/clusters/a%20b/invites", {}, 400),
    ("POST", "/v1/grants", {"role": "view", "to": "user", "on": "platform", "subject": "nobody-here"}, 400),
    ("POST", "/v1/grants", {"role": "owner", "to": "everyone", "on": "platform"}, 400),
    ("POST", "/v1/grants", {"role": "view", "to": "everyone", "on": "project", "object": "nowhere"}, 400),
    ("POST", "/v1/tokens", {"user": "nobody-here"}, 400),
    ("POST", "/v1/tokens", {"expires_s": 0}, 400),
    ("POST", "/v1/tokens", {"note": "a\nb"}, 400),
    ("POST", "/v1/clusters/own/invites", {"expires_s": -1}, 400),
    ("PATCH", "/v1/clusters/own", {"reason": "\x00"}, 400),
    ("PATCH", "/v1/clusters/own", {"groups": ["a\n"]}, 400),
    ("PATCH", "/v1/clusters/own", {"colour": "red"}, 400),
    ("DELETE", "/v1/users/admin", None, 400),
    # things that are not there, in paths of every sort
    *(
        (method, f"{path}{word}", None, 404)
        for method, path in (
            ("GET", "/v1/jobs/"),
            ("GET", "/v1/clusters/"),
            ("GET", "/v1/users/"),
            ("DELETE", "/v1/users/"),
            ("DELETE", "/v1/clusters/"),
            ("DELETE", "/v1/invites/"),
            ("DELETE", "/v1/tokens/"),
            ("DELETE", "/v1/grants/"),
            ("DELETE", "/v1/agents/"),
        )
        for word in (
            "nothing",
            QUOTED_NUL,
            f"own{QUOTED_NEWLINE}",
            "%FF",
            "%1B",
            "a%2Fb",
            "..%2F..",
            "0" * 26,
            "x" * 4000,
        )
    ),
    ("GET", f"/v1/jobs{QUOTED_NEWLINE}", None, 404),
    ("GET", f"/v1/users{QUOTED_NEWLINE}", None, 404),
    ("GET", "/v1/jobs/", None, 404),
    ("GET", "/v1", None, 404),
    ("GET", "/nothing", None, 404),
    ("GET", "/v2/jobs", None, 404),
    # parameters
    ("GET", "/v1/jobs?colour=red", None, 400),
    ("GET", "/v1/jobs?State=RUNNING", None, 400),
    ("GET", "/v1/jobs?state=WALKING", None, 400),
    ("GET", "/v1/jobs?project=a&project=b", None, 400),
    ("GET", "/v1/jobs?limit=0", None, 400),
    ("GET", "/v1/jobs?limit=501", None, 400),
    ("GET", "/v1/jobs?limit=-1", None, 400),
    ("GET", "/v1/jobs?limit=ten", None, 400),
    ("GET", "/v1/jobs?limit=%D9%A3", None, 400),
    ("GET", f"/v1/jobs?limit={'9' * 400}", None, 400),
    ("GET", "/v1/jobs?cursor=nonsense", None, 400),
    ("GET", f"/v1/jobs?cursor={'0' * 25}{QUOTED_NEWLINE}", None, 400),
    ("GET", "/v1/jobs?spec=maybe", None, 400),
    ("GET", "/v1/jobs?label=novalue", None, 400),
    ("GET", "/v1/jobs?label=a=1&label=a=2", None, 400),
    ("GET", f"/v1/jobs?label=a={QUOTED_NUL}", None, 400),
    ("GET", f"/v1/jobs?owner={QUOTED_NUL}", None, 400),
    ("GET", f"/v1/jobs?cluster=a{QUOTED_NEWLINE}", None, 400),
    ("GET", "/v1/jobs?owner=%FF", None, 400),
    ("GET", f"/v1/jobs?owner={'x' * 600}", None, 400),
    ("GET", "/v1/jobs?" + "&".join(["label=a=b"] * 150), None, 400),
    ("GET", "/v1/events?after=x", None, 400),
    ("GET", f"/v1/events?after={2**63}", None, 400),
    ("GET", "/v1/events?cursor=-1", None, 400),
    ("GET", f"/v1/users?cursor={QUOTED_NUL}", None, 400),
    ("GET", f"/v1/tokens?cursor={QUOTED_NUL}", None, 400),
    ("GET", f"/v1/audit?cursor={QUOTED_NUL}", None, 400),
    ("GET", f"/v1/clusters/own/invites?cursor={QUOTED_NUL}", None, 400),
    ("GET", "/v1/agents?cluster=nowhere", None, 404),
    ("GET", "/v1/whoami?verbose=1", None, 400),
    ("POST", "/v1/jobs?dry_run=true", JOB, 400),
    ("POST", "/v1/jobs/bulk?dry_run=true", {"jobs": [JOB]}, 400),
    ("GET", "/v1/jobs?state=Running", None, 400),
    ("GET", "/v1/jobs?" + "&".join(["state=RUNNING"] * 101), None, 400),
    ("GET", "/v1/jobs/0/wait?timeout_s=nan", None, 400),
    ("GET", "/v1/jobs/0/wait?timeout_s=1_0", None, 400),
    ("GET", "/v1/jobs/0/wait?timeout_s=1000001", None, 400),
    ("GET", "/v1/jobs/0/output?stream=stdin", None, 400),
    ("GET", "/v1/token-pools/none/holders?after=%C2%B2", None, 400),
    ("GET", "/v1/cluster-resources/changes?project=own", None, 400),
    ("GET", "/v1/policy?domain=a%20b", None, 400),
    ("GET", "/v1/policy?workflow=w", None, 400),
    # methods
    *((method, path, None, 405) for path in ("/v1/jobs", "/v1/users", "/v1/whoami") for method in ("PUT", "TRACE")),
    ("DELETE", "/v1/jobs", None, 405),
    ("OPTIONS", "/v1/jobs", None, 405),
    ("GET", "/v1/agents/poll", None, 405),
    ("GET", "/v1/agents/join", None, 405),
    ("POST", "/v1/version", None, 405),
    *(
        (method, path, None, 405)
        for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json", "/v1/version", "/v1/events/stream")
        for method in ("DELETE", "POST", "PUT", "PATCH", "OPTIONS", "TRACE")
    ),
]


def test_bad_requests_are_refused_and_nothing_stored(town: Town) -> None:
    before = (
        town.jobs(),
        *(len(town.must("GET", f"/v1/{what}?limit=500")["items"]) for what in ("users", "clusters", "projects")),
    )
    wrong = []
    for method, path, body, status in REQUESTS:
        answer = town.ask(method, path, body, token=town.root)
        if answer.status != status:
            wrong.append((method, path[:60], str(body)[:40], status, answer.status, answer.body[:120]))
            continue
        if answer.body:
            refused(answer, status)
    assert wrong == []
    after = (
        town.jobs(),
        *(len(town.must("GET", f"/v1/{what}?limit=500")["items"]) for what in ("users", "clusters", "projects")),
    )
    assert after == before
    assert town.is_healthy()


def test_a_wrong_method_is_told_the_right_ones(town: Town) -> None:
    answer = town.ask("DELETE", "/v1/jobs", token=town.root)
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert town.ask("DELETE", "/healthz").headers["allow"] == "GET, HEAD"
    assert town.ask("PUT", "/v1/agents/poll").headers["allow"] == "POST"


def test_head_is_answered_wherever_get_is(town: Town) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json", "/v1/jobs", "/v1/clusters/own", "/nothing"):
        head, got = (town.ask(method, path, token=town.root) for method in ("HEAD", "GET"))
        assert (head.status, head.body, head.headers["content-type"]) == (got.status, b"", got.headers["content-type"])
    assert town.ask("HEAD", "/v1/jobs").status == 401
    stream = town.ask("HEAD", "/v1/events/stream", token=town.root)
    assert (stream.status, stream.headers["content-type"], stream.body) == (200, "text/event-stream", b"")


# --- bodies beyond the bound


@pytest.mark.parametrize(
    ("path", "bound"),
    [("/v1/jobs", 8 * MIB), ("/v1/plan", 8 * MIB), ("/v1/users", MIB), ("/v1/clusters/own/invites", MIB)],
)
def test_a_body_over_the_bound_is_refused_before_it_is_read(town: Town, path: str, bound: int) -> None:
    parts = urllib.parse.urlsplit(town.url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=20)
    line.putrequest("POST", path)
    line.putheader("Authorization", f"Bearer {town.root}")
    line.putheader("Content-Length", str(bound + 1))
    line.endheaders()
    answer = line.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "too-large")
    line.close()


def test_a_body_without_a_length_is_bounded_too(town: Town) -> None:
    parts = urllib.parse.urlsplit(town.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as line:
        head = f"POST /v1/users HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {town.root}\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        part = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(64):
                line.sendall(part)
        except OSError:
            pass  # it hung up, which is its right
        said = line.recv(4096)
    assert b" 413 " in said.split(b"\r\n")[0]
    assert town.is_healthy()


def test_the_largest_body_within_the_bound_is_taken(town: Town) -> None:
    words = ["x" * 130_000] * 60
    assert town.ask("POST", "/v1/plan", spec(command=["a", *words]), token=town.root).status == 200


# --- credentials


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YWRtaW46eA==",
        "bearer  x",
        "Bearer \xff\xfe",
        "Bearer yard_",
        "Bearer " + "x" * 9000,
    ],
)
def test_a_header_that_is_no_credential_is_refused(town: Town, header: str) -> None:
    answer = town.ask("GET", "/v1/whoami", headers={"Authorization": header})
    refused(answer, 401)


def test_expired_revoked_and_foreign_tokens_do_not_hold(town: Town) -> None:
    name, token = town.user()
    assert town.ask("GET", "/v1/whoami", token=token).json["name"] == name
    (listed,) = [t for t in town.must("GET", "/v1/tokens?limit=500")["items"] if t["user"] == name]
    town.must("DELETE", f"/v1/tokens/{listed['id']}")
    refused(town.ask("GET", "/v1/whoami", token=token), 401)
    cut = town.user()[1]
    for bad in (cut[:-1], cut + "x", cut.replace("yard_", "agent_"), cut.upper(), cut.split("_", 2)[2]):
        refused(town.ask("GET", "/v1/whoami", token=bad), 401)
    town.must("PATCH", f"/v1/users/{name}", {"is_enabled": False})
    refused(town.ask("GET", "/v1/whoami", token=town.must("POST", "/v1/tokens", {"user": name})["token"]), 401)


@pytest.mark.parametrize("key", ["", "a b", "\x7f", "\x01", "é", "k" * 201])
def test_a_bad_idempotency_key_is_refused(town: Town, key: str) -> None:
    before = town.jobs()
    parts = urllib.parse.urlsplit(town.url)
    body = json.dumps(JOB).encode()
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as line:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {town.root}\r\nIdempotency-Key: {key}\r\n"
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)
        said = line.recv(4096)
    assert b" 400 " in said.split(b"\r\n")[0]
    assert town.jobs() == before
