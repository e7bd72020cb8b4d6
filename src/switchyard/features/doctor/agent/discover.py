"""`yard agent discover`: shows what this machine would register, or what the nodes of a cluster are."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from switchyard.agent.feature import SystemsQuestion, agent_features, feature_of
from switchyard.agent.site.discover import describe_machine, describe_system, read_graph
from switchyard.agent.site.site import read_site
from switchyard.errors import EXIT_OK, BadRequest, Unavailable

EXAMPLES = """\
examples:
  yard agent discover > graph.yaml         the machine: sockets, cores, memory, gpus, storage
  yard agent discover --per-node           its system: architecture, kernel, C library, driver, MPI, container runtime
  yard agent discover --per-node --backend slurm --config site.yaml      the systems of all nodes, asked by srun
  yard agent discover --per-node --backend kubernetes --config site.yaml --image ghcr.io/team/yard
                                           the systems of all nodes, and the GPU driver that a short Job finds there
  yard agent discover --per-node --backend flux                          the systems of all nodes, asked by Flux jobs
  yard agent discover --graph graph.yaml   is this file right, and what does it say?
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="yard agent discover",
        description="Print what this machine would register, in the form --graph reads.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument("--graph", type=Path, metavar="FILE", help="read and check this file, and print what it has")
    sources.add_argument(
        "--per-node", action="store_true", help="print what the system of each node is, as a subsystem"
    )
    kinds = sorted(kind for kind, feature in agent_features().items() if feature.has_nodes)
    parser.add_argument("--backend", choices=kinds, help="with --per-node: ask all nodes of this cluster")
    parser.add_argument("--config", type=Path, metavar="FILE", help="with --backend: the site's file")
    parser.add_argument(
        "--image", metavar="IMAGE", help="with Kubernetes: an image with `yard`; a short Job with it runs on each node"
    )
    parser.add_argument("--namespace", metavar="NAME", help="with --image: where these Jobs run")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    arguments = parser.parse_args(argv[argv[:1] == ["discover"] :])
    plain: dict[str, Any]
    if arguments.backend and not arguments.per_node:
        parser.error("--backend goes with --per-node: what a cluster has, its agent asks itself")
    if arguments.image and not feature_of(arguments.backend).has_images:
        with_images = [kind for kind, feature in agent_features().items() if feature.has_images]
        parser.error(f"--image goes with --backend {' or '.join(with_images)}")
    if arguments.graph:
        graph = read_graph(arguments.graph)
        plain = {"nodes": graph.nodes, "totals": graph.totals, "shapes": len(graph.shapes)}
    elif arguments.backend:
        question = SystemsQuestion(
            site=read_site(arguments.config),
            environment=os.environ,
            program=[str(Path(sys.argv[0]).absolute())],
            image=arguments.image,
            namespace=arguments.namespace,
        )
        plain = _systems(arguments.backend, question)
    elif arguments.per_node:
        plain = describe_system()
    else:
        plain = describe_machine(Path.cwd())
    if arguments.output == "json":
        print(json.dumps(plain, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(plain, sort_keys=False), end="")
    return EXIT_OK


def _systems(kind: str, question: SystemsQuestion) -> dict[str, Any]:
    """The systems of the nodes that answered; the other nodes are named on stderr."""
    feature = feature_of(kind)
    described = feature.describe_systems(question)
    if described is None:
        raise BadRequest(f"Nodes of {kind} cannot be asked.", next_step="Run it on a node, without --backend.")
    subsystem, silent = described
    for node, why in silent.items():
        print(f"{node}: {why}", file=sys.stderr)
    if not subsystem["attach"]:
        raise Unavailable("No node says what its system is.", next_step=feature.nobody_advice)
    return subsystem
