"""`yard flyte` and `yard create execution` on a server with two clusters and several users: the commands alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, FlyteSite, host_rule
from tests.acceptance.flyte.shell_flows import (
    HERE,
    INT,
    INTS,
    bound,
    good,
    map_node,
    plan_node,
    task,
    task_node,
    workflow,
)
from tests.acceptance.stage import Secret, Stage, graph, staged
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import isolated_env, start_agent, yard
from tests.server.flyte_doors import Doors

SCOPE = ("-p", PROJECT, "-d", DEV)
AT_ONCE = 4  # commands; each starts an interpreter
FILE = {"workflow": "flow", "version": "v1", "inputs": {"many": [1, 2], "n": 3}}


@dataclass(frozen=True)
class Bed:
    stage: Stage
    site: FlyteSite
    ann: Secret  # may submit to the project
    eve: Secret  # may do nothing

    def run(self, *words: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
        env = isolated_env(self.stage.folder, url=self.stage.url, token=token or self.stage.token)
        return yard(*words, env=env)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, f"yard {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def read(self, *words: str) -> Any:
        return json.loads(self.ok(*words))

    def file(self, name: str, content: Any) -> str:
        path = self.stage.folder / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return str(path)


@contextmanager
def bed(folder: Path) -> Iterator[Bed]:
    """Clusters alpha and beta, of which beta is larger; a private one without an agent; pools of each."""
    port, site_file = free_port(), folder / "site.yaml"
    site_file.write_text(yaml.safe_dump({"images": [host_rule()]}))
    with staged(folder, auth=True, extra=("--grpc", f"127.0.0.1:{port}")) as stage:
        doors = Doors(stage.url, f"127.0.0.1:{port}", stage.token)

        def agent(name: str, cores: int) -> Any:
            invite, more = stage.invite(name, is_reusable=True), ["--config", str(site_file)]
            nodes = graph(cores, memory="16GiB")
            return start_agent(folder, stage.url, name, graph=nodes, token=invite, reader=stage.token, extra=more)

        with agent("alpha", 2) as alpha, agent("beta", 6):
            doors.v1("POST", "/v1/projects", {"name": PROJECT})
            doors.v1("POST", "/v1/clusters", {"name": "vault", "is_private": True})
            for pool, cluster in (("lab", "alpha"), ("big", "beta"), ("secret", "vault")):
                body = {"members": [{"id": cluster, "weight": 1}]}
                doors.v1("PUT", f"/v1/pools/{pool}", body, **{"If-None-Match": "*"})
            site = FlyteSite(folder, stage.server, alpha, doors)
            users = {name: a_user(stage, name) for name in ("ann", "eve")}
            grant = {"role": "submit", "to": "user", "subject": "ann", "on": "project", "object": PROJECT}
            stage.post("/v1/grants", grant)
            yield Bed(stage, site, **users)
        wrong = [line for line in stage.server.log.splitlines() if "level=error" in line or "Traceback" in line]
        assert wrong == [], "a defect behind a refusal shows only in the log"


def a_user(stage: Stage, name: str) -> Secret:
    stage.post("/v1/users", {"name": name})
    return Secret(stage.post("/v1/tokens", {"user": name, "note": "test"})["token"])


def register(site: FlyteSite) -> None:
    """`flow`: a task, a map, a gate and a task behind it. `plain`: one task. `outer`: a launch plan as a node."""
    task(site, "one", "give 5", inputs={"n": INT})
    task(site, "each", "give 1", inputs={"n": INTS}, output=INTS)
    gate = {"id": "n2", "metadata": {}, "upstream_node_ids": ["n0"], "gate_node": {"approve": {"signal_id": "review"}}}
    nodes = [
        task_node("n0", "one", [bound("n", "", "n")]),
        map_node("n1", "each", [bound("n", "", "many")]),
        {**gate, "inputs": [bound("n", "n0", "o0")]},
        task_node("n3", "one", [bound("n", "n2", "n")]),
    ]
    outputs = {"o": (INT, "n3", "o0")}
    good(workflow(site, "flow", nodes, inputs={"n": INT, "many": INTS}, outputs=outputs))
    node = task_node("n0", "one", [bound("n", "", "n")])
    good(workflow(site, "plain", [node], inputs={"n": INT}, outputs={"o": (INT, "n0", "o0")}))
    outer = plan_node("n0", "plain", [bound("n", "", "n")])
    good(workflow(site, "outer", [outer], inputs={"n": INT}, outputs={"o": (INT, "n0", "o")}))


def test_tools_on_good_and_bad_days(tmp_path: Path) -> None:
    with bed(tmp_path) as made:
        register(made.site)
        an_execution_in_a_pool(made)
        the_same_elsewhere(made)
        lists(made)
        bad_commands(made)
        metrics(made)


def an_execution_in_a_pool(made: Bed) -> None:
    file = made.file("flow.yaml", FILE)
    said = made.ok("create", "execution", *SCOPE, "--execFile", file, "--clusterPool", "big", "first")
    assert said == f"Execution {PROJECT}:{DEV}:first\n"
    assert made.ok("create", "execution", *SCOPE, "--execFile", file, "--clusterPool", "big", "first") == said, "again"
    name = f"{PROJECT}:{DEV}:first"
    until(lambda: nodes(made, name)["n1"]["phase"] == "SUCCEEDED", PATIENCE_S, "the map is over")
    until(lambda: nodes(made, name)["n2"]["phase"] == "RUNNING", PATIENCE_S, "the gate waits")
    shown = made.ok("flyte", "show", name)
    for words in ("big", "beta", "RUNNING", "2 of 2 elements succeeded", "waits for the signal review", "many  [1,2]"):
        assert words in shown, shown
    assert "waits for n2" in shown
    job = nodes(made, name)["n0"]["attempts"][0]["job"]
    assert job in shown
    drawn = made.ok("flyte", "graph", "first", *SCOPE)
    assert "● n2  approve review  RUNNING" in drawn, drawn
    assert "○ n3  one  not begun" in drawn, drawn
    dot = made.ok("flyte", "graph", name, "--format", "dot")
    assert '"n0" -> "n2";' in dot
    told = made.ok("flyte", "explain", name)
    for words in (
        "beta is the only cluster that takes all of its tasks",
        "not in pool big",
        "What it waits for",
        "review",
    ):
        assert words in told, told
    read = made.read("flyte", "explain", name, "-o", "json")
    assert [one["cluster"] for one in read["candidates"]] == ["beta"]
    assert {one["cluster"]: one["say"] for one in read["tasks"][0]["verdicts"]}["alpha"] == "no"
    signal = {"id": {"signal_id": "review", "execution_id": {**HERE, "name": "first"}}}
    value = {"scalar": {"primitive": {"boolean": True}}}
    good(made.site.doors.by_grpc("SetSignal", {**signal, "value": value}))
    until(lambda: details(made, name)["execution"]["phase"] == "SUCCEEDED", PATIENCE_S, "it is over")
    assert details(made, name)["outputs"] == {"o": 5}
    assert details(made, name)["execution"]["clusters"] == ["beta"]


def the_same_elsewhere(made: Bed) -> None:
    """A pool is chosen when an execution is created, and again when it runs again."""
    file = made.file("plain.yaml", {"workflow": "plain", "inputs": {"n": 1}})
    done = made.run("create", "execution", *SCOPE, "--execFile", file, "--clusterPool", "lab", "--wait", "second")
    assert (done.returncode, done.stdout) == (0, "second  SUCCEEDED on alpha\n"), done.stderr
    again = ("create", "execution", *SCOPE, "--relaunch", "second", "--clusterPool", "big", "--wait", "third")
    assert made.ok(*again) == "third  SUCCEEDED on beta\n"
    recovered = made.read("create", "execution", *SCOPE, "--recover", "second", "--wait", "fourth", "-o", "json")
    assert (recovered["phase"], recovered["pool"]) == ("SUCCEEDED", "lab")
    assert nodes(made, f"{PROJECT}:{DEV}:fourth")["n0"]["phase"] == "RECOVERED"
    child = made.file("outer.yaml", {"workflow": "outer", "inputs": {"n": 1}})
    made.ok("create", "execution", *SCOPE, "--execFile", child, "--clusterPool", "big", "--wait", "outer")
    inner = nodes(made, f"{PROJECT}:{DEV}:outer")["n0"]["child"]
    assert details(made, f"{PROJECT}:{DEV}:{inner}")["parent"] == "outer/n0"
    dry = made.run("create", "execution", *SCOPE, "--execFile", file, "--dryRun", "never")
    assert (dry.returncode, yaml.safe_load(dry.stdout)["launch_plan"]) == (0, "plain")


def lists(made: Bed) -> None:
    def names(*words: str) -> list[str]:
        return made.ok("flyte", "ls", *words, "-o", "name").split()

    everything = names("--all")
    assert everything[-4:] == ["fourth", "third", "second", "first"]
    assert names("--limit", "2", "--pool", "lab") == ["fourth", "second"]
    assert names("--phase", "failed", "--phase", "running") == []
    assert "second" not in names("--cluster", "beta", "--all")
    assert set(names(*SCOPE, "--launched", "flow")) == {"first"}
    table = made.ok("flyte", "ls", "--all").splitlines()
    assert table[0].split()[:6] == ["NAME", "PHASE", "LAUNCHED", "POOL", "LABEL", "CLUSTER"]
    assert len(table) == len(everything) + 1


def bad_commands(made: Bed) -> None:
    name, plain = f"{PROJECT}:{DEV}:first", made.file("ok.yaml", {"workflow": "plain", "inputs": {"n": 1}})
    create = ("create", "execution", *SCOPE, "--execFile")
    cases: list[tuple[tuple[str, ...], str | None, int, str]] = [
        *(((*verb, f"{PROJECT}:{DEV}:none"), None, 3, "missing entity of type execution") for verb in VERBS),
        *(((*verb, name), made.eve, 4, "error: ") for verb in VERBS),
        (("flyte", "show", "first", "-p", "default"), None, 3, "missing entity of type execution"),
        (("flyte", "show", name, "-p", "default"), None, 2, "is not in project default"),
        (("flyte", "show", "x\x1b[31m"), None, 2, r"'x\x1b[31m' names no execution"),
        (("flyte", "show", "a:b"), None, 2, "names no execution"),
        (("flyte", "ls", "-p", PROJECT), made.eve, 4, "may not view the executions of project"),
        (("flyte", "ls", "--phase", "over"), None, 2, "invalid choice"),
        (("create", "execution"), None, 2, "Give one of --execFile, --relaunch and --recover"),
        (("create", "execution", "--relaunch", "a", "--recover", "b"), None, 2, "Give one of"),
        (("create", "execution", *SCOPE, "--relaunch", "none"), None, 3, "missing entity of type execution"),
        (("create", "execution", *SCOPE, "--relaunch", "first", "--version", "v2"), None, 2, "own project, domain"),
        ((*create, "none.yaml"), None, 3, "There is no file none.yaml"),
        ((*create, made.file("no.yaml", "{")), None, 2, "no.yaml: line"),
        ((*create, made.file("empty.yaml", "{}")), None, 2, "not a map of fields"),
        ((*create, made.file("less.yaml", {"version": "v1"})), None, 2, "names neither a workflow nor a task"),
        ((*create, made.file("typo.yaml", {"worklfow": "plain"})), None, 2, "did you mean workflow?"),
        ((*create, made.file("gone.yaml", {"workflow": "nothing"})), None, 3, "There is no launch plan nothing"),
        ((*create, made.file("v9.yaml", {"workflow": "plain", "version": "v9"})), None, 3, "missing entity"),
        (
            (*create, made.file("input.yaml", {"workflow": "plain", "inputs": {"n": "x"}})),
            None,
            2,
            "n: 'x' is not a whole",
        ),
        (
            (*create, made.file("more.yaml", {"workflow": "plain", "inputs": {"m": 1}})),
            None,
            2,
            "no input 'm'; known: n",
        ),
        ((*create, made.file("few.yaml", {"workflow": "plain"})), None, 2, "expected_inputs n missing"),
        ((*create, plain, "--clusterPool", "nowhere"), None, 2, "nowhere"),
        ((*create, plain, "--clusterPool", "secret"), made.ann, 2, "fits no cluster"),
        ((*create, plain), made.eve, 4, "error: "),
        ((*create, plain, "Not A Name"), None, 2, "is no name of an execution"),
        ((*create, plain, "x\x1b[2J"), None, 2, r"'x\x1b[2J' is no name of an execution"),
        ((*create, plain, "first"), None, 6, "made by another request"),
        ((*create, plain, "--targetProject", "elsewhere"), None, 2, "elsewhere"),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda case: made.run(*case[0], token=case[1]), cases))
    wrong = [
        (words, answer.returncode, answer.stderr)
        for (words, _, code, text), answer in zip(cases, done, strict=True)
        if answer.returncode != code or text not in answer.stderr or "\x1b" in answer.stderr
    ]
    assert wrong == []
    assert "vault" not in "".join(answer.stderr for answer in done)


VERBS = (("flyte", "show"), ("flyte", "graph"), ("flyte", "explain"))


def metrics(made: Bed) -> None:
    text = made.stage.call("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("switchyard_executions_")]
    counts = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    name = "switchyard_executions_total"
    assert counts[f'{name}{{cluster="beta",label="",phase="SUCCEEDED",pool="big"}}'] >= 2
    assert counts[f'{name}{{cluster="alpha",label="",phase="SUCCEEDED",pool="lab"}}'] == 2
    assert not any("switchyard_executions_live{" in line for line in lines), "all are over"


def nodes(made: Bed, name: str) -> dict[str, Any]:
    return {node["id"]: node for node in made.read("flyte", "graph", name, "--format", "json")}


def details(made: Bed, name: str) -> Any:
    return made.read("flyte", "show", name, "-o", "json")
