"""What clusters have, from outside: graphs in every form, as large as they come, drawn, replaced, with subsystems."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_USAGE
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until
from tests.programs import YARD, Agent, start_agent, start_server
from tests.soak import SOAKED

pytestmark = pytest.mark.xdist_group("graph")

X = "\N{MULTIPLICATION SIGN}"
SHORT = """\
- nodes: 4
  each: {socket: 2, core: 8, memory: 16GiB}
  hosts: n[0-3]
- nodes: 1
  each: {core: 8, gpu: 2}
  hosts: g0
  properties: {gpu-model: a100}
"""
R = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "0-3", "children": {"core": "0-7"}},
            {"rank": "4", "children": {"core": "0-7", "gpu": "0-1"}},
        ],
        "nodelist": ["n[0-3],g0"],
    },
}


def jgf(nodes: int, cores: int, *, is_list: bool = False) -> dict[str, Any]:
    """A cluster of nodes of cores: as Rainbow writes it, with a map, or as Fluxion does, with a list."""
    vertices: dict[str, Any] = {"root": {"metadata": {"type": "cluster"}}}
    edges: list[dict[str, Any]] = []
    for n in range(nodes):
        vertices[f"n{n}"] = {"metadata": {"type": "node", "name": f"n{n}", "rank": n}}
        edges.append({"source": "root", "target": f"n{n}", "relation": "contains"})
        for c in range(cores):
            vertices[f"n{n}c{c}"] = {"metadata": {"type": "core", "id": c}}
            edges.append({"source": f"n{n}", "target": f"n{n}c{c}", "relation": "contains"})
    if is_list:
        return {"graph": {"nodes": [{"id": name, **held} for name, held in vertices.items()], "edges": edges}}
    return {"graph": {"nodes": vertices, "edges": edges}}


def totals(stage: Stage, cluster: str) -> dict[str, int]:
    found: dict[str, int] = stage.get(f"/v1/clusters/{cluster}").get("totals", {})
    return found


def test_every_form_over_http_and_back(stage: Stage) -> None:
    stage.post("/v1/clusters", {"name": "forms"})
    for body, cores in (
        (SHORT.encode(), 40),
        (json.dumps(R).encode(), 40),
        (json.dumps(jgf(2, 3)).encode(), 6),
        (json.dumps(jgf(3, 3, is_list=True)).encode(), 9),
    ):
        answer = stage.call("PUT", "/v1/clusters/forms/graph", body)
        assert answer.status == 200, answer.body
        assert answer.json["totals"]["core"] == cores
        assert totals(stage, "forms")["core"] == cores
        assert stage.call("GET", "/v1/clusters/forms/graph?form=source").body == body
        compact = stage.get("/v1/clusters/forms/graph")
        assert stage.call("PUT", "/v1/clusters/forms/graph", compact).json["signature"] == answer.json["signature"]


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", lambda body: body)]
)
def test_packed_as_one_likes(stage: Stage, encoding: str, pack: Any) -> None:
    stage.post("/v1/clusters", {"name": f"packed-{encoding}"})
    answer = stage.call(
        "PUT", f"/v1/clusters/packed-{encoding}/graph", pack(SHORT.encode()), headers={"Content-Encoding": encoding}
    )
    assert (answer.status, answer.json["nodes"]) == (200, 5)


def test_twenty_thousand_vertices_by_the_cli(stage: Stage, tmp_path: Path) -> None:
    stage.post("/v1/clusters", {"name": "large"})
    file = tmp_path / "large.json"
    file.write_text(json.dumps(jgf(400, 50)))
    assert file.stat().st_size > 2**20, "it is read in pieces"
    done = stage.read("cluster", "set-graph", "large", str(file))
    assert (done["totals"]["core"], done["totals"]["node"], done["shapes"]) == (20_000, 400, 3)
    shown = stage.yard("cluster", "graph", "large", check=True).stdout
    assert f"node {X}400" in shown
    assert f"core {X}50" in shown


def test_cli_draws_the_tree_and_gives_every_form(stage: Stage, tmp_path: Path) -> None:
    stage.post("/v1/clusters", {"name": "drawn"})
    file = tmp_path / "short.yaml"
    file.write_text(SHORT)
    assert "has 40 core, 2 gpu" in stage.yard("cluster", "set-graph", "drawn", str(file), check=True).stdout.replace(
        "1 cluster, ", ""
    )
    shown = stage.yard("cluster", "graph", "drawn", check=True).stdout
    for words in ("cluster", f"node {X}4", f"socket {X}2", f"core {X}4", "memory 16GiB", f"gpu {X}2", "gpu-model=a100"):
        assert words in shown, shown
    assert stage.read("cluster", "graph", "drawn")["hosts"]
    assert stage.yard("cluster", "graph", "drawn", "--source", check=True).stdout == SHORT
    piped = stage.yard("cluster", "set-graph", "drawn", "-", stdin=json.dumps(R), check=True)
    assert "40 core" in piped.stdout
    row = next(line for line in stage.yard("cluster", "ls", check=True).stdout.splitlines() if line.startswith("drawn"))
    assert " 5 " in row
    assert " 40 " in row


def test_sdk(stage: Stage, client: Client) -> None:
    client.create_cluster("by-sdk")
    seen: list[tuple[int, int]] = []
    made = client.set_graph("by-sdk", {"nodes": 3, "each": {"core": 2}}, on_progress=lambda *step: seen.append(step))
    assert (made.nodes, made.totals["core"]) == (3, 6)
    assert seen[-1][0] == seen[-1][1] > 0
    assert client.graph("by-sdk").nodes == 3
    client.set_subsystem("by-sdk", "io", {"attach": {"node[0-1]": [{"type": "shm"}]}})
    assert [each.name for each in client.subsystems("by-sdk")] == ["io"]
    client.delete_subsystem("by-sdk", "io")
    client.delete_graph("by-sdk")
    assert client.cluster("by-sdk").totals == {}


def test_what_is_set_goes_before_the_agents_word_until_it_is_taken_back(stage: Stage) -> None:
    with stage.agent("told", cores=4):
        assert totals(stage, "told")["core"] == 4
        stage.call("PUT", "/v1/clusters/told/graph", b"nodes: 1\neach: {core: 3}")
        assert totals(stage, "told")["core"] == 3
        stage.yard("cluster", "set-graph", "told", "--agent", check=True)
        assert totals(stage, "told")["core"] == 4
        again = stage.yard("cluster", "set-graph", "told", "--agent")
        assert again.returncode == EXIT_NOT_FOUND


def test_an_agent_reads_every_form(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "jgf.json"
    file.write_text(json.dumps(jgf(2, 3)))
    with start_agent(tmp_path, stage.url, "by-jgf", graph=file):
        assert totals(stage, "by-jgf")["core"] == 6
        # Its graph came compact; subsystems find its hosts all the same.
        put = stage.call("PUT", "/v1/clusters/by-jgf/subsystems/io", {"attach": {"n1": [{"type": "shm"}]}})
        assert put.status == 200, put.body
        assert "io:" in stage.yard("cluster", "graph", "by-jgf", check=True).stdout


@pytest.mark.parametrize("database_url", [SOAKED("sqlite"), "postgresql"], indirect=True)
def test_subsystems_over_their_whole_life(tmp_path: Path, database_url: str) -> None:
    server = start_server(tmp_path, database=database_url)
    stage = Stage(tmp_path, server, None)
    with server:
        stage.post("/v1/clusters", {"name": "alpha"})
        early = stage.call("PUT", "/v1/clusters/alpha/subsystems/io", {"attach": {"n0": [{"type": "shm"}]}})
        assert (early.status, early.json["code"]) == (409, "conflict")
        stage.call("PUT", "/v1/clusters/alpha/graph", SHORT.encode())
        file = tmp_path / "io.yaml"
        file.write_text('attach: {"n[0-1]": [{type: shm, size: 4, fast: true}]}')
        stage.yard("cluster", "subsystem", "set", "alpha", "io", str(file), check=True)
        assert "io:  fast size=4 type=shm" in stage.yard("cluster", "graph", "alpha", check=True).stdout
        assert [each["name"] for each in stage.read("cluster", "subsystem", "ls", "alpha")] == ["io"]
        assert stage.yard("cluster", "subsystem", "show", "alpha", "io", check=True).stdout == file.read_text()

        file.write_text('attach: {"n3": [{type: nvme}]}')
        stage.yard("cluster", "subsystem", "set", "alpha", "io", str(file), check=True)
        shown = stage.yard("cluster", "graph", "alpha", check=True).stdout
        assert "shm" not in shown, "what was replaced left something behind"
        assert "io:  type=nvme" in shown

        lost = stage.call("PUT", "/v1/clusters/alpha/graph", b"nodes: 2\neach: {core: 8}\nhosts: n[0-1]")
        assert lost.status == 400
        assert "'n3' is no vertex" in lost.json["detail"]
        assert stage.call("DELETE", "/v1/clusters/alpha/graph").status == 409
        assert totals(stage, "alpha")["core"] == 40, "a refusal changed something"

        server.restart()
        assert [each["name"] for each in stage.read("cluster", "subsystem", "ls", "alpha")] == ["io"]
        stage.yard("cluster", "subsystem", "rm", "alpha", "io", "--force", check=True)
        assert "io:" not in stage.yard("cluster", "graph", "alpha", check=True).stdout
        assert stage.call("GET", "/v1/clusters/alpha/subsystems/io").status == 404
        assert stage.call("DELETE", "/v1/clusters/alpha/subsystems/io").status == 404

        actions = [entry["action"] for entry in stage.walk("/v1/audit", limit=100)]
        for action, count in (("graph.set", 1), ("subsystem.set", 2), ("subsystem.delete", 1)):
            assert actions.count(action) == count, actions

        stage.call("PUT", "/v1/clusters/alpha/subsystems/io", file.read_bytes())
        stage.yard("cluster", "rm", "alpha", "--force", check=True)
        stage.post("/v1/clusters", {"name": "alpha"})
        assert totals(stage, "alpha") == {}
        assert stage.get("/v1/clusters/alpha/subsystems")["items"] == []


def test_an_agent_may_set_its_own_clusters_graph_and_no_others(tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage:
        joined = stage.call(
            "POST",
            "/v1/agents/join",
            {"cluster": "mine", "name": "a", "journal": "j1", "backend": "fake"},
            token=stage.invite("mine"),
        ).json
        stage.post("/v1/clusters", {"name": "other"})
        body = {"nodes": 1, "each": {"core": 2}}
        assert stage.call("PUT", "/v1/clusters/mine/graph", body, token=joined["credential"]).status == 200
        assert stage.call("PUT", "/v1/clusters/other/graph", body, token=joined["credential"]).status == 403
        audit = stage.walk("/v1/audit", limit=100)
        assert next(entry["actor"] for entry in audit if entry["action"] == "graph.set") == "agent:a"


def test_words_of_the_api_are_no_names(stage: Stage) -> None:
    answer = stage.call("POST", "/v1/clusters", {"name": "fit"})
    assert (answer.status, answer.json["code"]) == (409, "name-taken")
    stage.post("/v1/clusters", {"name": "words"})
    stage.call("PUT", "/v1/clusters/words/graph", SHORT.encode())
    for name in ("containment", "cluster"):
        taken = stage.call("PUT", f"/v1/clusters/words/subsystems/{name}", {"attach": {"n0": [{"type": "a"}]}})
        assert taken.status == 400
    assert stage.yard("cluster", "subsystem", "set", "words").returncode == EXIT_USAGE
    assert stage.yard("cluster", "subsystem", "rm", "words", "none", "--force").returncode == EXIT_NOT_FOUND
    bare = stage.post("/v1/clusters", {"name": "bare"})
    assert stage.yard("cluster", "graph", bare["name"]).returncode == EXIT_NOT_FOUND
    early = stage.yard("cluster", "subsystem", "set", "bare", "io", "-", stdin="attach: {n0: []}")
    assert early.returncode == EXIT_CONFLICT


def test_the_local_agent_finds_its_machine_and_tells_what_changed(stage: Stage, tmp_path: Path) -> None:
    """A driver is installed while the agent runs: the subsystem `system` follows."""
    programs = tmp_path / "bin"
    programs.mkdir()
    smi = programs / "nvidia-smi"

    def say(version: str) -> None:
        text = f"#!/bin/sh\necho '| NVIDIA-SMI 1  Driver Version: {version}  CUDA Version: 12.2 |'\n"
        fresh = programs / "fresh"
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(smi)

    say("535.10.1")
    env = {**stage.env, "PATH": f"{programs}:{stage.env['PATH']}"}
    words = ["--server", stage.url, "--cluster", "found", "--backend", "local", "--look-every", "1s"]
    agent = Agent([*YARD, "agent", *words, "--data", str(tmp_path / "found")], tmp_path, name="found", env=env)
    with agent:
        agent.wait_for(lambda: _drivers(stage) == ["535.10.1"], SOON_S, "the first driver is known")
        shown = stage.yard("cluster", "graph", "found", check=True).stdout
        for words_shown in ("socket", "core", "memory", "storage", "system:", "architecture="):
            assert words_shown in shown, shown
        say("550.2")
        until(lambda: _drivers(stage) == ["550.2"], SOON_S, "the second driver is known")


def _drivers(stage: Stage) -> list[str]:
    answer = stage.call("GET", "/v1/clusters/found/graph")
    if answer.status != 200:
        return []
    held = [one for shape in answer.json["shapes"] for one in shape.get("attached", [])]
    return [one["metadata"]["gpu-driver"] for one in held if one["subsystem"] == "system"]


def test_discover_prints_what_graph_and_subsystem_read(stage: Stage, tmp_path: Path) -> None:
    for words, name in (((), "graph.yaml"), (("--per-node",), "system.yaml")):
        (tmp_path / name).write_text(stage.yard("agent", "discover", *words, check=True).stdout)
    stage.post("/v1/clusters", {"name": "printed"})
    stage.yard("cluster", "set-graph", "printed", str(tmp_path / "graph.yaml"), check=True)
    stage.yard("cluster", "subsystem", "set", "printed", "system", str(tmp_path / "system.yaml"), check=True)
    assert "system:" in stage.yard("cluster", "graph", "printed", check=True).stdout
    checked = stage.yard("agent", "discover", "--graph", str(tmp_path / "graph.yaml"), check=True).stdout
    assert "nodes: 1" in checked
