"""Rainbow's own Python client, as it is installed by anybody, against our port: it needs no change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.rainbow.rainbow_machines import (
    CLIENT,
    GRAPH,
    SUBSYSTEMS,
    Client,
    documented_loop,
    job,
    submit_token,
    write_config,
)
from tests.processes import PATIENCE_S, until
from tests.programs import Server, call, isolated_env, start_agent, yard
from tests.server.rainbow_door import SECRET, rainbow


def test_a_cluster_lives_its_whole_life_through_the_client(tmp_path: Path) -> None:
    with rainbow(tmp_path) as (server, door):
        client = Client(tmp_path / "keebler", door)
        assert client.register("keebler") == {"status": 1, "has_secret": True, "has_token": True}
        again = Client(tmp_path / "another", door).register("keebler")
        assert again == {"status": 4, "has_secret": False, "has_token": False}
        assert_known(client, server)
        assert_submits(client, server)
        assert_receives(client, server)


def assert_known(client: Client, server: Server) -> None:
    io = client.file("io.json", SUBSYSTEMS["io"])
    assert client("subsystem", subsystem="io", nodes=io) == {"status": 1}
    assert client("state", state={"nodes_free": 3}) == {"status": 2}
    assert client("state", state=client.file("state.json", {"cost_per_node_hour": 7.5})) == {"status": 2}
    shown = call("GET", f"{server.url}/v1/clusters/keebler").json
    assert (shown["health"], shown["backend"], shown["totals"]["core"]) == ("up", "rainbow", 36)
    assert {each["name"]: each["value"] for each in shown["state"]} == {"nodes_free": 3, "cost_per_node_hour": 7.5}


def assert_submits(client: Client, server: Server) -> None:
    said = client("submit", command=["hostname", "-f"], nodes=2, tasks=4)
    assert said == {"cluster": "keebler", "clusters": [], "status": 1, "matches": 1, "asked": 1}
    seen = job(server, "keebler")
    assert (seen["state"], seen["owner"]) == ("ASSIGNED", "rainbow")
    assert seen["spec"]["command"] == ["hostname", "-f"]
    assert "keebler" in yard("explain", seen["id"], env=isolated_env(client.folder, url=server.url)).stdout
    assert client("submit", command=["x"], satisfy_only=True)["clusters"] == ["keebler"]
    by_steps = {"priorities": "- priority: 1\n  steps:\n  - filter: nodes_free > 2\n  - select: first\n"}
    spec = {"version": 1, "resources": {"a": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1}]}}}
    spec |= {"tasks": [{"command": ["bash", "-c", 'echo "hi, there"'], "resources": "a"}]}
    asked = {"jobspec": spec, "name": "with steps", "select_algo": "constraint"}
    assert client("submit_jobspec", **asked, select_options=by_steps)["cluster"] == "keebler"
    nobody = {"priorities": "- priority: 1\n  steps:\n  - filter: nodes_free > 3\n  - select: first\n"}
    refused = client("submit_jobspec", **asked, select_options=nobody)
    assert (refused["code"], "no clusters passed selection" in refused["words"]) == ("FAILED_PRECONDITION", True)
    assert client("submit", command=["x"], nodes=4000)["matches"] == 0


def assert_receives(client: Client, server: Server) -> None:
    first = client("receive", max_jobs=1)
    assert [(each["id"], each["cluster"], each["command"]) for each in first] == [(1, "keebler", "hostname -f")]
    second = client("receive")
    assert [each["name"] for each in second] == ["with steps"]
    assert 'echo "hi, there"' in second[0]["jobspec"]
    assert client("receive") == []
    seen = job(server, "keebler")
    assert (seen["state"], seen["reason"]) == ("SUBMITTED", "handed over, end not reported")


def test_any_instance_submits_to_any_other(tmp_path: Path) -> None:
    """Two clusters and a client that is none: A submits to B, B to A, the client to both."""
    with rainbow(tmp_path) as (server, door):
        a, b, alone = (Client(tmp_path / name, door) for name in ("a", "b", "alone"))
        assert (a.register("a")["status"], b.register("b")["status"]) == (1, 1)
        tokens = {name: submit_token(server, name) for name in ("a", "b")}
        for client, others in ((a, "b"), (b, "a"), (alone, "ab")):
            write_config(client, {name: tokens[name] for name in others})
        assert a("submit", command=["from-a"])["cluster"] == "b"
        assert b("submit", command=["from-b"])["cluster"] == "a"
        went = {alone("submit", command=[f"alone-{number}"])["cluster"] for number in range(6)}
        assert went <= {"a", "b"}
        got = {name: [each["command"] for each in c("receive")] for name, c in (("a", a), ("b", b))}
        assert "from-b" in got["a"]
        assert "from-a" in got["b"]
        assert sum(len(each) for each in got.values()) == 8


def test_a_switchyard_agent_runs_what_the_client_submits(tmp_path: Path) -> None:
    with (
        rainbow(tmp_path) as (server, door),
        start_agent(tmp_path, server.url, "ours", graph={"nodes": 2, "each": {"core": 4}}),
    ):
        client = Client(tmp_path / "client", door)
        write_config(client, {"ours": submit_token(server, "ours")})
        spec = {
            "version": 1,
            "resources": {"a": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1}]}},
        }
        spec["tasks"] = [{"command": ["echo", "through the rainbow"], "resources": "a"}]
        assert client("submit_jobspec", jobspec=spec, name="ours")["cluster"] == "ours"
        until(lambda: job(server, "ours")["state"] == "SUCCEEDED", PATIENCE_S, "the job has run")
        shown = yard("logs", job(server, "ours")["id"], env=isolated_env(tmp_path, url=server.url)).stdout
        assert shown == "through the rainbow\n"


def test_the_go_clients_requests(tmp_path: Path) -> None:
    """As its command line sends them: with `sent`, each job called app, one rack slot called as the command is."""
    go: dict[str, Any] = {"type": "rack", "replicas": 1, "label": "hostname"}
    go["with"] = [{"type": "node", "count": 2, "with": [{"type": "core", "count": 24}]}]
    spec: dict[str, Any] = {"version": 1, "resources": {"task-resources": go}}
    spec["tasks"] = [{"command": ["hostname"], "resources": "task-resources"}]
    sent = "2026-01-02T03:04:05Z"
    with rainbow(tmp_path) as (server, door):
        made = door("Register", name="g", secret=SECRET, nodes=GRAPH, sent=sent)
        assert door("Satisfy", payload=spec, matcher="match").clusters == []  # 24 cores on one node of 12
        go["with"][0]["with"][0]["count"] = 12
        assert list(door("Satisfy", payload=spec, matcher="match").clusters) == ["g"]
        clusters = [{"name": "g", "token": made.token}]
        said = door("SubmitJob", name="app", jobspec=json.dumps(spec), clusters=clusters, sent=sent)
        assert (said.status, said.cluster, said.jobid) == ("SUBMIT_SUCCESS", "g", 1)
        got = door("ReceiveJobs", cluster="g", secret=made.secret, maxJobs=5, sent=sent)
        assert json.loads(got.jobs[1])["name"] == "app"
        accepted = door("AcceptJobs", cluster="g", secret=made.secret, jobids=[1], sent=sent)
        assert accepted.status == "RESULT_TYPE_SUCCESS"
        assert door("Delete", name="g", secret=made.secret).status == "DELETE_SUCCESS"
        assert call("GET", f"{server.url}/v1/clusters").json["items"] == []


def stand_in_for_flux(client: Client) -> Path:
    """A folder with a command `flux` of ours, which runs what is submitted right here."""
    folder = client.folder / "flux"
    folder.mkdir()
    program = folder / "flux"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CLIENT.parents[1] / "flux" / "a_flux.py"}" "$@"\n')
    program.chmod(0o755)
    return folder


def test_the_documented_loop_runs_jobs_tells_their_ends_and_acts_on_cancels(tmp_path: Path) -> None:
    with rainbow(tmp_path) as (server, door):
        client = Client(tmp_path / "inst", door)
        client.register("inst")
        ids = {}
        for name, command in (
            ("good", ["true"]),
            ("bad", ["false"]),
            ("none", ["unsatisfiable"]),
            ("long", ["sleep", "600"]),
        ):
            client("submit", command=command, nodes=2, tasks=3)
            ids[name] = job(server, "inst")["id"]
        flux = stand_in_for_flux(client)
        path = f"{flux}:{isolated_env(client.folder)['PATH']}"
        with documented_loop(client, {"PATH": path, "FLUX_FOLDER": str(flux)}):

            def seen(name: str) -> tuple[str, str]:
                found = call("GET", f"{server.url}/v1/jobs/{ids[name]}").json
                return found["state"], found.get("reason", "")

            until(lambda: seen("long")[0] == "RUNNING", PATIENCE_S, "the loop tells that it runs")
            until(
                lambda: seen("good")[0] == "SUCCEEDED" and seen("bad")[0] == "FAILED", PATIENCE_S, "the ends are told"
            )
            assert call("GET", f"{server.url}/v1/jobs/{ids['bad']}").json["exit_code"] == 1
            assert seen("none") == ("FAILED", "unsatisfiable request ")
            options = (flux / "f0.options").read_text().split()
            assert options[-4:] == ["--nodes=2", "--ntasks=2", "--cores-per-task=3", "true"]
            assert call("POST", f"{server.url}/v1/jobs/{ids['long']}/cancel", {}).status == 200
            until(lambda: seen("long")[0] == "CANCELLED", PATIENCE_S, "the loop hears of the cancel, and ends it")
            assert seen("long")[1].startswith("cancelled by ")
