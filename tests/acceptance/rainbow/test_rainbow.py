"""Rainbow's door from outside: credentials, leases, ends, and everything that once crashed or fooled it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.acceptance.stage import Secret
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import START_S, YARD, Server, call, isolated_env, start_server, yard
from tests.server.rainbow_clusters import GRAPH, SUBSYSTEMS, newest, own, registered, submitted
from tests.server.rainbow_door import JOB, SECRET, Door, rainbow
from tests.soak import SOAKED

DEMAND = {"version": 1, "resources": {"a": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1}]}}}
HONEST = frozenset(code.name for code in grpc.StatusCode) - {"OK", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED"}
LEASE_S = 5  # long enough to accept what was received, on a busy machine


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Door]]:
    with rainbow(tmp_path_factory.mktemp("rainbow"), receive_lease=LEASE_S) as both:
        yield both


def test_what_is_not_accepted_comes_back_under_a_new_number(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "leases")
    number = submitted(door, mine).jobid
    assert list(door("ReceiveJobs", **own(mine), maxJobs=1).jobs) == [number]
    assert door("ReceiveJobs", **own(mine)).status == "REQUEST_JOBS_NORESULTS"
    fresh = until(lambda: list(door("ReceiveJobs", **own(mine)).jobs), 20 * LEASE_S, "the lease has run out")
    assert fresh != [number]
    assert door("AcceptJobs", **own(mine), jobids=[number]).status == "RESULT_TYPE_PARTIAL"
    assert door("AcceptJobs", **own(mine), jobids=[fresh[0], fresh[0]]).status == "RESULT_TYPE_PARTIAL"
    assert newest(server, "leases")["state"] == "SUBMITTED"
    assert newest(server, "leases")["attempt"] == 2


def test_numbers_of_another_cluster_are_not_accepted(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine, other = registered(door, "mine"), registered(door, "other")
    submitted(door, mine)
    given = list(door("ReceiveJobs", **own(mine)).jobs)
    for numbers in (given, [2**31 - 1], [-1, 0]):
        assert door("AcceptJobs", **own(other), jobids=numbers).status == "RESULT_TYPE_PARTIAL"
    assert newest(server, "mine")["state"] == "ASSIGNED"
    assert door("AcceptJobs", **own(mine), jobids=given).status == "RESULT_TYPE_SUCCESS"


def test_a_cluster_that_only_polls_may_tell_the_end(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "tells")
    for _ in range(3):
        submitted(door, mine)
    one, two, three = sorted(door("ReceiveJobs", **own(mine)).jobs)
    early = door("ReportJobs", **own(mine), reports=[{"jobid": one, "seen": "SEEN_SUCCEEDED"}])
    assert (list(early.taken), list(early.refused)) == ([], [one])
    door("AcceptJobs", **own(mine), jobids=[one, two, three])
    ids = sorted(each["id"] for each in call("GET", f"{server.url}/v1/jobs?cluster=tells").json["items"])
    assert call("POST", f"{server.url}/v1/jobs/{ids[2]}/cancel", {}).status == 200
    told = [
        {"jobid": one, "seen": "SEEN_SUCCEEDED"},
        {"jobid": two, "seen": "SEEN_FAILED", "exit_code": 3, "reason": "no disk"},
        {"jobid": three, "seen": "SEEN_RUNNING"},
    ]
    said = door("ReportJobs", **own(mine), reports=told)
    assert (list(said.taken), list(said.refused), list(said.cancelled)) == ([one, two, three], [], [three])
    door("ReportJobs", **own(mine), reports=[{"jobid": three, "seen": "SEEN_CANCELLED"}])
    jobs = [call("GET", f"{server.url}/v1/jobs/{each}").json for each in ids]
    assert [(each["state"], each.get("exit_code")) for each in jobs[:2]] == [("SUCCEEDED", 0), ("FAILED", 3)]
    assert (jobs[1]["reason"], jobs[2]["state"]) == ("no disk", "CANCELLED")


def test_a_plain_job_reaches_a_cluster_that_only_polls(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "plain")
    body = {"spec": {"command": ["echo", "a b"], "env": {"X": "1"}, "resources": {"tasks": 4, "cores": 2, "nodes": 2}}}
    assert call("POST", f"{server.url}/v1/jobs", {**body, "cluster": "plain", "name": "p"}).status == 201
    (text,) = door("ReceiveJobs", **own(mine)).jobs.values()
    got = json.loads(text)
    assert (got["name"], got["cluster"], got["command"]) == ("p", "plain", "echo 'a b'")
    spec = json.loads(got["jobspec"])
    assert spec["resources"] == {"job": {"type": "node", "replicas": 2, "with": [{"type": "core", "count": 4}]}}
    assert spec["tasks"] == [{"command": ["echo", "a b"], "resources": "job"}]
    assert spec["attributes"]["system"]["environment"] == {"X": "1"}
    refused = call("POST", f"{server.url}/v1/plan", {**body, "cluster": "plain", "array": "0-3"}).json
    assert "only polls" in refused["reason"]


def test_who_matches_without_a_credential_sees_only_what_everybody_may(opened: tuple[Server, Door]) -> None:
    server, door = opened
    registered(door, "hidden")
    before = door("Satisfy", payload=DEMAND, matcher="match")
    assert "hidden" in before.clusters
    assert call("PATCH", f"{server.url}/v1/clusters/hidden", {"is_private": True}).status == 200
    after = door("Satisfy", payload=DEMAND, matcher="match")
    assert "hidden" not in after.clusters
    assert after.total_clusters == before.total_clusters - 1
    assert after.total_matches + after.total_mismatches == after.total_clusters


def test_a_new_token_ends_the_old_one_and_a_group_has_one_for_all(opened: tuple[Server, Door]) -> None:
    server, door = opened
    first, second = registered(door, "g1"), registered(door, "g2")
    newer = call("POST", f"{server.url}/v1/clusters/g1/submit-token").json["token"]
    assert submitted(door, first).code == "PERMISSION_DENIED"
    assert submitted(door, {**first, "token": newer}).status == "SUBMIT_SUCCESS"
    assert call("POST", f"{server.url}/v1/users", {"name": "alice"}).status == 201
    for name in ("g1", "g2"):
        call("PATCH", f"{server.url}/v1/clusters/{name}", {"groups": ["both"]})
    shared = call("POST", f"{server.url}/v1/cluster-groups/both/submit-token?account=alice").json["token"]
    for each in (first, second):
        assert submitted(door, {**each, "token": shared}).status == "SUBMIT_SUCCESS"
    assert newest(server, "g2")["owner"] == "alice"
    # One that does not hold denies the whole.
    clusters = [{"name": "g1", "token": shared}, {"name": "g2", "token": newer}]
    assert door("SubmitJob", name="j", jobspec=JOB, clusters=clusters).code == "PERMISSION_DENIED"


def test_a_join_token_registers_one_cluster_once(opened: tuple[Server, Door]) -> None:
    server, door = opened
    env = isolated_env(server.folder, url=server.url)
    token = yard("cluster", "invite", "invited", env=env).stdout.split()[-1]
    assert door("Register", name="another", secret=token, nodes=GRAPH).code == "PERMISSION_DENIED"
    assert door("Register", name="invited", secret=token, nodes=GRAPH).status == "REGISTER_SUCCESS"
    assert door("Register", name="invited", secret=token, nodes=GRAPH).status == "REGISTER_EXISTS"
    assert yard("cluster", "ls", env=env).stdout.count("invited") == 1


LAUGHS = "version: 1\na: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CYCLE = {
    "graph": {
        "nodes": {name: {"metadata": {"type": "node"}} for name in "012"},
        "edges": [{"source": a, "target": b, "relation": "contains"} for a, b in ("01", "12", "21")],
    }
}
FAR = '{"graph":{"nodes":{"0":{"metadata":{"type":"cluster","size":1e400}}}}}'
ODD = {"graph": {"nodes": {"0": {"metadata": {"type": 7, "size": "x"}}}, "edges": []}}
BIG = {"graph": {"nodes": {str(n): {"metadata": {"type": "core", "x": "y" * 600}} for n in range(9000)}, "edges": []}}
DENIED = ("PERMISSION_DENIED",)
INVALID = ("INVALID_ARGUMENT",)


@pytest.mark.parametrize("name", ["", "a b", "%", "x" * 300, 'x" OR "1"="1', "a\nb", "../x", "fit"])
def test_a_name_that_is_none_is_not_registered(opened: tuple[Server, Door], name: str) -> None:
    said = opened[1]("Register", name=name, secret=SECRET, nodes=GRAPH)
    assert said.code in HONEST or said.status == "REGISTER_EXISTS"  # `fit` is a word of the API


@pytest.mark.parametrize(
    "nodes",
    ["", "{}", "[]", "null", "nope", '{"graph": 3}', CYCLE, ODD, FAR, BIG, '{"graph":' * 3000],
    ids=lambda nodes: repr(nodes)[:40],  # a whole one is megabytes, in every line about its test
)
def test_a_bad_graph_is_refused_and_burns_no_name(opened: tuple[Server, Door], nodes: Any, request: Any) -> None:
    name = f"graph{abs(hash(request.node.name)) % 10**9}"
    said = opened[1]("Register", name=name, secret=SECRET, nodes=nodes)
    assert said.code in HONEST, said
    assert opened[1]("Register", name=name, secret=SECRET, nodes=GRAPH).status == "REGISTER_SUCCESS"


@pytest.mark.parametrize("subsystem", ["nodes", "cluster", "containment", ""])
def test_a_graph_under_the_name_of_a_subsystem_is_the_clusters_graph(
    opened: tuple[Server, Door], subsystem: str
) -> None:
    _, door = opened
    mine = registered(door, f"named-{subsystem or 'none'}", subsystem=subsystem)
    assert submitted(door, mine).cluster == mine["cluster"]
    io = {"subsystem": "io", "nodes": SUBSYSTEMS["io"]}
    assert door("RegisterSubsystem", name=mine["cluster"], secret=mine["secret"], **io).code == "OK"


def test_a_graph_under_a_name_that_is_none_is_refused(opened: tuple[Server, Door]) -> None:
    _, door = opened
    said = door("Register", name="unnamed", secret=SECRET, nodes=GRAPH, subsystem="no name!")
    assert (said.code, "cannot be the name of a subsystem" in said.words) == ("INVALID_ARGUMENT", True), said


def test_nobody_passes_for_another(opened: tuple[Server, Door]) -> None:
    _, door = opened
    mine = registered(door, "Sly")
    submitted(door, mine)
    for name in ("%", "_ly", "sly", "SLY", 'zz" UNION SELECT "k","t","s" --', "Sly ", "", "S%"):
        for secret in (mine["secret"], "s", "", mine["token"]):
            assert door("ReceiveJobs", cluster=name, secret=secret).code == "PERMISSION_DENIED"
            assert door("Delete", name=name, secret=secret).code == "PERMISSION_DENIED"
            assert door("UpdateState", cluster=name, secret=secret, payload="{}").code == "PERMISSION_DENIED"
            assert submitted(door, {"cluster": name, "token": mine["token"]}).code in HONEST
    for secret in ("", "x", mine["token"], mine["secret"] + "x", mine["secret"][:-1]):
        assert door("ReceiveJobs", cluster="Sly", secret=secret).code == "PERMISSION_DENIED"
    for secret in ("", "x", "rainbow", "join_x_y"):
        assert door("Register", name="new", secret=secret, nodes=GRAPH).code in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    assert len(door("ReceiveJobs", **own(mine)).jobs) == 1


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ({"jobspec": "garbage"}, INVALID),
        ({"jobspec": ""}, INVALID),
        ({"jobspec": "a: [1"}, INVALID),
        ({"jobspec": JOB + "x: !!timestamp foo\n"}, INVALID),
        ({"jobspec": LAUGHS}, INVALID),
        ({"jobspec": "version: 1\n" + "[" * 5000}, INVALID),
        ({"jobspec": JOB.replace("version: 1", "version: 9")}, INVALID),
        ({"jobspec": JOB + "attributes:\n  parameter: 3\n", "select_algorithm": "constraint"}, INVALID),
        ({"select_algorithm": "nobody-knows"}, INVALID),
        ({"select_algorithm": "constraint"}, INVALID),
        ({"select_algorithm": "constraint", "select_options": {"priorities": "- priority: 1\n  steps: 3"}}, INVALID),
        (
            {
                "select_algorithm": "constraint",
                "select_options": {"priorities": "- priority: 1\n  steps:\n  - filter: min(x)\n  - select: first\n"},
            },
            ("INVALID_ARGUMENT", "FAILED_PRECONDITION"),
        ),
        ({"jobspec": JOB.replace("replicas: 1", "replicas: 4000")}, ("FAILED_PRECONDITION",)),
        ({"jobspec": JOB.replace("replicas: 1", "replicas: -1")}, INVALID),
        ({"clusters": []}, INVALID),
        ({"clusters": [{"name": "", "token": ""}]}, INVALID),
        ({"clusters": [{"name": "nowhere", "token": "x"}]}, DENIED),
        ({"name": "x" * 1000}, INVALID),
        ({"name": "a\x1b[31mb"}, INVALID),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_bad_submit_is_refused_and_stores_nothing(
    opened: tuple[Server, Door], bad: dict[str, str], more: dict[str, Any], codes: tuple[str, ...]
) -> None:
    said = submitted(opened[1], bad, **more)
    assert said.code in codes, said
    assert said.words
    assert door_is_empty(opened[1], bad)


@pytest.fixture(scope="module")
def bad(opened: tuple[Server, Door]) -> dict[str, str]:
    return registered(opened[1], "bad")


def door_is_empty(door: Door, cluster: dict[str, str]) -> bool:
    return bool(door("ReceiveJobs", **own(cluster)).status == "REQUEST_JOBS_NORESULTS")


@pytest.mark.parametrize("name", ['j","b","evil") --', "quo'te", "ünïcode", "j%_"])
def test_a_name_with_signs_in_it_is_only_a_name(opened: tuple[Server, Door], bad: dict[str, str], name: str) -> None:
    assert submitted(opened[1], bad, name=name).status == "SUBMIT_SUCCESS"
    (text,) = opened[1]("ReceiveJobs", **own(bad)).jobs.values()
    got = json.loads(text)
    assert (got["name"], got["jobspec"]) == (name, JOB)
    opened[1]("AcceptJobs", **own(bad), jobids=[got["id"]])


@pytest.mark.parametrize("payload", ["", "[]", "3", "nope", '"nope"', "null", '{"a":' * 2000, json.dumps({"a b": 1})])
def test_a_bad_state_is_refused(opened: tuple[Server, Door], bad: dict[str, str], payload: str) -> None:
    assert opened[1]("UpdateState", **own(bad), payload=payload).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "payload", ["", "[]", "nope", "{}", '{"resources": 3}', '{"resources": {"a": 3}}', '{"a":' * 2000]
)
def test_a_bad_question_is_refused(opened: tuple[Server, Door], payload: str) -> None:
    said = opened[1]("Satisfy", payload=payload, matcher="match")
    assert said.code == "INVALID_ARGUMENT"
    assert opened[1]("Satisfy", payload=DEMAND, matcher="nobody").code == "INVALID_ARGUMENT"


def test_metadata_of_other_types_harms_nobody(opened: tuple[Server, Door]) -> None:
    _, door = opened
    mine = registered(door, "typed")
    typed = {
        "graph": {
            "nodes": {"io1": {"metadata": {"type": "shm", "fast": True, "version": 3, "tags": [1]}}},
            "edges": [{"source": "2", "target": "io1", "relation": "contains"}],
        }
    }
    said = door("RegisterSubsystem", name="typed", secret=mine["secret"], subsystem="io", nodes=typed)
    assert said.code in ("OK", "INVALID_ARGUMENT")
    for field, value in (("fast", "true"), ("version", "3"), ("tags", "1")):
        need = {"name": "io", "field": field, "match": value}
        group = {"type": "node", "replicas": 1, "requires": [need], "with": [{"type": "core", "count": 1}]}
        assert door("Satisfy", payload={"version": 1, "resources": {"a": group}}).code == "OK"


def test_strangers_are_not_answered_unless_they_may_be(tmp_path: Path) -> None:
    with rainbow(tmp_path, anonymous_match=False) as (_, door):
        mine = registered(door, "k")
        said = door("Satisfy", payload=DEMAND)
        assert (said.code, "anonymous_match" in said.words) == ("UNIMPLEMENTED", True)
        assert submitted(door, mine).status == "SUBMIT_SUCCESS"


def test_the_section_needs_a_secret_and_without_it_there_is_no_door(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("rainbow:\n", encoding="utf-8")
    argv = ["server", "--data", str(tmp_path / "d"), "--http", f"127.0.0.1:{free_port()}", "--config", str(config)]
    done = yard(*argv, env=isolated_env(tmp_path))
    assert done.returncode == 2
    assert "registration_secret" in done.stderr
    port = free_port()
    with start_server(tmp_path, extra=("--grpc", f"127.0.0.1:{port}")):
        door = Door(f"127.0.0.1:{port}")
        assert door("Register", name="k", secret="x", nodes=GRAPH).code == "UNIMPLEMENTED"
        door.close()


def test_registered_here_is_a_cluster_everywhere_also_with_authentication(tmp_path: Path) -> None:
    with rainbow(tmp_path, auth=True) as (server, door):
        mine = registered(door, "k")
        assert submitted(door, mine).status == "SUBMIT_SUCCESS"
        admin = Secret(server.admin_token)
        assert call("GET", f"{server.url}/v1/clusters/k", token=admin).json["health"] == "up"
        assert call("GET", f"{server.url}/v1/jobs", token=admin).json["items"][0]["owner"] == "rainbow"
        door("Delete", name="k", secret=mine["secret"])
        assert call("GET", f"{server.url}/v1/clusters/k", token=admin).status == 404
        assert submitted(door, mine).code == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("database_url", "load_s"),
    [("sqlite", 1), SOAKED("sqlite", 10), SOAKED("postgresql", 10)],
    indirect=["database_url"],
)
def test_256_submitters_at_once_lose_nothing(tmp_path: Path, database_url: str, load_s: int) -> None:
    """Acknowledged = stored = received: what was answered with a number is handed out under that number."""
    with rainbow(tmp_path, database=database_url) as (_, door):
        mine = registered(door, "k")
        from switchyard.features.rainbow.server.messages import message

        request = message("convergedcomputing.org.grpc.v1.SubmitJobRequest")(
            name="j", jobspec=JOB, clusters=[{"name": "k", "token": mine["token"]}]
        )
        argv = [sys.executable, "-m", "bench.rainbow_load", door.address, "SubmitJob", "256", str(load_s)]
        bodies = json.dumps([request.SerializeToString().hex()])
        done = subprocess.run(argv, input=bodies, capture_output=True, text=True, timeout=120, check=True)
        found = json.loads(done.stdout)
        assert found["refused"] == 0
        acknowledged = set(found["numbers"])
        assert len(acknowledged) == found["done"]
        received: set[int] = set()
        while more := list(door("ReceiveJobs", **own(mine)).jobs):
            assert received.isdisjoint(more)
            received |= set(more)
            assert door("AcceptJobs", **own(mine), jobids=more).status == "RESULT_TYPE_SUCCESS"
        assert received == acknowledged


def made_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", *curve, *named, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)
    return cert, key


@pytest.mark.parametrize("with_clients", [False, True])
def test_tls_with_and_without_certificates_of_clients(tmp_path: Path, with_clients: bool) -> None:
    cert, key = made_certificate(tmp_path, "server")
    mine, mine_key = made_certificate(tmp_path, "client")
    http, port = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    config = tmp_path / "rainbow.yaml"
    config.write_text(f"rainbow: {{registration_secret: {SECRET}}}\n", encoding="utf-8")
    argv = ["server", "--data", str(tmp_path / "data"), "--http", http, "--grpc", port, "--config", str(config)]
    argv += ["--tls-cert", str(cert), "--tls-key", str(key), "--no-auth"]
    argv += ["--tls-client-ca", str(mine)] if with_clients else []
    trusting = {**isolated_env(tmp_path, url=f"https://{http}"), "SSL_CERT_FILE": str(cert)}
    with Server([*YARD, *argv], tmp_path, name="server", env=isolated_env(tmp_path)) as server:
        server.wait_for(lambda: yard("whoami", env=trusting).returncode == 0, START_S, "the server answers")
        pair = (mine_key.read_bytes(), mine.read_bytes())
        doors = {
            "stranger": Door(port, credentials=grpc.ssl_channel_credentials(cert.read_bytes())),
            "known": Door(port, credentials=grpc.ssl_channel_credentials(cert.read_bytes(), *pair)),
        }
        said = {name: door("Register", name=name, secret=SECRET, nodes=GRAPH).code for name, door in doors.items()}
        for door in doors.values():
            door.close()
    assert said["known"] == "OK"
    assert said["stranger"] == ("UNAVAILABLE" if with_clients else "OK")


def test_a_job_whose_end_nobody_tells_gives_its_place_up_after_a_while(tmp_path: Path) -> None:
    with rainbow(tmp_path, handover_ttl=2) as (server, door):
        mine = registered(door, "k")
        queue = {"attributes": ["few"], "limits": {"running": 1}}
        assert call("PUT", f"{server.url}/v1/queues/few", queue, headers={"If-None-Match": "*"}).status in (200, 201)
        body = {"spec": {"command": ["x"]}, "cluster": "k", "tags": ["few"]}
        ids = [call("POST", f"{server.url}/v1/jobs", body).json["id"] for _ in range(2)]
        first = until(lambda: list(door("ReceiveJobs", **own(mine)).jobs), PATIENCE_S, "the first has its place")
        assert door("AcceptJobs", **own(mine), jobids=first).status == "RESULT_TYPE_SUCCESS"
        assert door_is_empty(door, mine)
        second = until(lambda: list(door("ReceiveJobs", **own(mine)).jobs), PATIENCE_S, "the place is given up")
        assert len(second) == 1
        kept = call("GET", f"{server.url}/v1/jobs/{ids[0]}").json
        assert (kept["state"], kept["reason"]) == ("SUBMITTED", "handed over, end not reported")
