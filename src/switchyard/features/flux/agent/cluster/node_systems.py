"""Finds the system of each node, by a small Flux job on each that runs `discover`. Changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.agent.backends.shared.node_systems import ask_each_node
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.flux_site import FluxSite
from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts

ANSWER_S = 60.0  # a node without a free core does not answer


def describe_flux_systems(
    site: FluxSite, environment: Mapping[str, str], *, program: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The subsystem `system` of all nodes that answered, and why the other nodes did not.

    `program`: the path of `yard` on the nodes, such as on a shared file system.
    """
    listed = _flux(site, environment, ["resource", "list", "-s", "up", "-no", "{nodelist}"])
    if listed.returncode != 0:
        raise Unavailable(f"Flux does not list its nodes: {_last_line(listed.stderr)}", next_step="See `flux uptime`.")
    nodes = list(expand_hosts(parse_hosts(listed.stdout.strip()))) if listed.stdout.strip() else []
    if not nodes:
        raise Unavailable("No node of this instance is up.", next_step="See `flux resource list`.")
    attach, silent = ask_flux_nodes(site, environment, nodes, program=program)
    return {"attach": attach}, silent


def ask_flux_nodes(
    site: FluxSite, environment: Mapping[str, str], nodes: Sequence[str], *, program: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """What to attach to each of these nodes that answered, and why the other nodes did not."""
    words = [*program, "agent", "discover", "--per-node", "-o", "json"]
    return ask_each_node(nodes, lambda node: _ask(site, environment, node, words))


def _ask(site: FluxSite, environment: Mapping[str, str], node: str, words: Sequence[str]) -> list[Any] | str:
    """What to attach to one node, or why it is not known."""
    options = [f"--requires=hosts:{node}", "-N1", "-n1", "-t", "1m", "--job-name=yard-discover"]
    options += [f"--setopt={name}={json.dumps(value)}" for name, value in site.shell_options.items()]
    try:
        done = _flux(site, environment, ["run", *options, *words])
        if done.returncode != 0:
            return _last_line(done.stderr) or f"flux run ended with {done.returncode}"
        # The machine's name may differ from the node's, so the answer is attached to the node that was asked.
        attached: dict[str, list[Any]] = json.loads(done.stdout)["attach"]
        return next(iter(attached.values()))
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_S:g} s"
    except (ValueError, KeyError, TypeError, StopIteration):
        return "its answer cannot be read"


def _flux(site: FluxSite, environment: Mapping[str, str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    program = f"{site.bin}/flux" if site.bin else "flux"
    known = {"PATH": os.defpath, **environment, **({"FLUX_URI": site.uri} if site.uri else {})}
    try:
        return subprocess.run(
            [program, *words],
            env=known,
            stdin=subprocess.DEVNULL,  # `flux run` would read what the person types
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            cwd="/",
        )
    except OSError as exc:
        raise Unavailable(f"{program} cannot be run: {exc.strerror}.", next_step="Is Flux installed here?") from exc


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""
