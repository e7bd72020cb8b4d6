"""Rainbow's picture on real Flux: instance A submits to B, B to A, a client outside to both.

Each of them submits by Rainbow's client and by ours.
Instance A has a Switchyard agent, instance B the polling loop that our documents show.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.rainbow.rainbow_machines import Client, documented_loop, submit_token, write_config
from tests.flux_bed import FluxBed, FluxInstance, FluxSpec, flux_running
from tests.processes import PATIENCE_S, until
from tests.programs import YARD, Server, call, isolated_env, start_agent, yard
from tests.server.rainbow_door import rainbow

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux-days")]

SITE = {"state_s": 1.0, "shell_options": {"cpu-affinity": "off"}}
INSTANCE_OF = {"a": "alpha", "b": "beta"}


def jgf_of(nodes: int, cores: int) -> dict[str, Any]:
    """The graph that the operator of instance B registers: Rainbow's clients ask for nodes in a rack."""
    vertices: dict[str, Any] = {"0": {"metadata": {"type": "cluster"}}, "r0": {"metadata": {"type": "rack"}}}
    edges = [{"source": "0", "target": "r0", "relation": "contains"}]
    for node in (f"n{number}" for number in range(nodes)):
        vertices[node] = {"metadata": {"type": "node"}}
        edges.append({"source": "r0", "target": node, "relation": "contains"})
        for core in (f"{node}c{number}" for number in range(cores)):
            vertices[core] = {"metadata": {"type": "core"}}
            edges.append({"source": node, "target": core, "relation": "contains"})
    return {"graph": {"nodes": vertices, "edges": edges}}


@contextmanager
def picture(folder: Path, server: Server, bed: FluxBed, b: Client) -> Iterator[None]:
    """Cluster a is instance alpha with an agent, cluster b instance beta with the polling loop."""
    flux = str(Path(shutil.which("flux") or "").parent)
    site = folder / "a-site.yaml"
    site.write_text(json.dumps({"flux": {**SITE, "uri": bed["alpha"].uri, "bin": flux}}), encoding="utf-8")
    nodes = b.file("nodes.json", jgf_of(3, 4))
    assert b("register", cluster="b", nodes=nodes)["status"] == 1
    assert yard("cluster", "edit", "b", "--public", env=isolated_env(folder, url=server.url)).returncode == 0
    path = f"{isolated_env(folder)['PATH']}:{flux}"
    with (
        start_agent(folder, server.url, "a", graph=None, backend="flux", extra=["--config", str(site)]),
        documented_loop(b, {"PATH": path, "FLUX_URI": bed["beta"].uri}),
    ):
        yield


def inside(instance: FluxInstance, *words: str, env: dict[str, str]) -> str:
    """What a command prints that runs as a job of the instance."""
    variables = [f"--env={name}={value}" for name, value in env.items()]
    return instance.flux("run", "-o", "cpu-affinity=off", *variables, *words)


def test_instances_and_a_client_outside_submit_to_each_other(tmp_path: Path) -> None:
    with (
        rainbow(tmp_path) as (server, door),
        flux_running(FluxSpec("alpha"), FluxSpec("beta", gpus=0)) as bed,
    ):
        machines = {name: Client(tmp_path / name, door) for name in ("a", "b", "outside")}
        ledger = tmp_path / "ledger"
        mark = tmp_path / "mark"
        mark.write_text(f'#!/bin/sh\necho "$1 $FLUX_URI" >> {ledger}\n')
        mark.chmod(0o755)
        with picture(tmp_path, server, bed, machines["b"]):
            tokens = {name: submit_token(server, name) for name in ("a", "b")}
            # By Rainbow's client: from → to. Each client's file names the clusters it submits to.
            for origin, target in (("a", "b"), ("b", "a"), ("outside", "a"), ("outside", "b")):
                machine = machines[origin]
                write_config(machine, {target: tokens[target]})
                words = machine.argv("submit", command=[str(mark), f"rainbow-{origin}-{target}"], nodes=1, tasks=1)
                env = isolated_env(machine.folder)
                if origin in INSTANCE_OF:
                    told = json.loads(inside(bed[INSTANCE_OF[origin]], *words, env=env))
                else:
                    told = machine("submit", command=[str(mark), f"rainbow-{origin}-{target}"], nodes=1, tasks=1)
                assert told["cluster"] == target
                # And the same by ours.
                submit = ["submit", "--cluster", target, "--", str(mark), f"yard-{origin}-{target}"]
                env = isolated_env(machine.folder, url=server.url)
                if origin in INSTANCE_OF:
                    inside(bed[INSTANCE_OF[origin]], *YARD, *submit, env=env)
                else:
                    yard(*submit, env=env, check=True)

            def jobs() -> list[dict[str, Any]]:
                items: list[dict[str, Any]] = call("GET", f"{server.url}/v1/jobs").json["items"]
                return items

            until(lambda: all(job["state"] == "SUCCEEDED" for job in jobs()), PATIENCE_S, f"all jobs end: {jobs()}")
            assert sorted(job["cluster"] for job in jobs()) == ["a"] * 4 + ["b"] * 4
        ran = sorted(line.split(" ") for line in ledger.read_text().splitlines())
        assert len(ran) == 8, ran
        for name, uri in ran:
            assert f"/{INSTANCE_OF[name[-1]]}/" in uri, (name, uri)
        assert {name for name, _ in ran} == {
            f"{client}-{way}" for client in ("rainbow", "yard") for way in ("a-b", "b-a", "outside-a", "outside-b")
        }
