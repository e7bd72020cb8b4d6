"""`yard agent discover` and `yard agent doctor`: show what the machine has and what is wrong. They change nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from switchyard.agent.backends.registry import BACKENDS
from switchyard.agent.feature import SystemsQuestion, agent_features, feature_of
from switchyard.agent.server import credential as credentials
from switchyard.agent.server.client import URL_DEFAULT
from switchyard.agent.site.discover import describe_machine, describe_system, read_graph
from switchyard.agent.site.site import read_site
from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed
from switchyard.errors import EXIT_ERROR, EXIT_OK, BadRequest, Unavailable, YardError
from switchyard.model.jobspec.quantity import parse_duration_s

DISCOVER_EXAMPLES = """\
examples:
  yard agent discover > graph.yaml         the machine: sockets, cores, memory, gpus, storage
  yard agent discover --per-node           its system: architecture, kernel, C library, driver, MPI, container runtime
  yard agent discover --per-node --backend slurm --config site.yaml      the systems of all nodes, asked by srun
  yard agent discover --per-node --backend kubernetes --config site.yaml --image ghcr.io/team/yard
                                           the systems of all nodes, and the GPU driver that a short Job finds there
  yard agent discover --per-node --backend flux                          the systems of all nodes, asked by Flux jobs
  yard agent discover --graph graph.yaml   is this file right, and what does it say?
"""

DOCTOR_EXAMPLES = """\
examples:
  yard agent doctor --server https://yard.example --backend local     before the first join
  yard agent doctor --cluster alpha                                   the agent that joined from here
  yard agent doctor --backend slurm --config site.yaml                runs a small job at the cluster
  yard agent doctor --backend flux                                    the same in the Flux instance of FLUX_URI
  yard agent doctor --backend kubernetes --config site.yaml --namespace physics-development
  yard agent doctor --data ./alpha -o json

exit codes:  0 all is well, 1 something is wrong
"""


def discover(argv: list[str]) -> int:
    return discover_command(_without_verb(argv))


def doctor(argv: list[str]) -> int:
    return doctor_command(_without_verb(argv))


def _without_verb(argv: list[str]) -> list[str]:
    return argv if argv[:1] == ["--help"] else argv[1:]  # who completes words gives no verb


def discover_command(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="yard agent discover",
        description="Print what this machine would register, in the form --graph reads.",
        epilog=DISCOVER_EXAMPLES,
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
    arguments = parser.parse_args(argv)
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


def doctor_command(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="yard agent doctor",
        description="Look at all that an agent needs, and say what is wrong and what to do. A batch system is given "
        "one small job; nothing else is changed.",
        epilog=DOCTOR_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--server", action="append", metavar="URL", help="default: the one the agent joined, or YARD_URL"
    )
    parser.add_argument("--cluster", metavar="NAME", help="the agent of this cluster, in its usual folder")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the agent's folder")
    parser.add_argument("--backend", metavar="KIND", help=f"what runs the jobs: {', '.join(BACKENDS.names())}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the site's file, as the agent gets it")
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NAME", help="of Kubernetes: check this one (repeatable)"
    )
    parser.add_argument("--user", metavar="NAME", help="whose small job it is, where the site maps users to accounts")
    parser.add_argument("--wait", default="60s", metavar="T", help="for the small job's end (default: 60s)")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("-o", "--output", choices=("json",), metavar="FORM", help="print as json")
    arguments = parser.parse_args(argv)
    try:
        wait_s = parse_duration_s(arguments.wait)
    except ValueError as exc:
        parser.error(f"--wait: {exc}")
    from switchyard.features.doctor.agent import checks

    logging.getLogger("switchyard").addHandler(logging.NullHandler())  # the findings say what a backend logs
    directory = arguments.data or (credentials.default_data_folder(arguments.cluster) if arguments.cluster else None)
    target = checks.DoctorTarget(
        servers=checks.DoctorServers(
            urls=arguments.server or _known_servers(directory),
            ca_file=arguments.ca_file,
            is_plain_allowed=is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
        ),
        directory=directory.absolute() if directory else None,
        backend=arguments.backend,
        environment=dict(os.environ),
        site=read_site(arguments.config),
        cluster=arguments.cluster or "",
        job=checks.DoctorJob(owner=arguments.user, wait_s=wait_s),
        namespaces=arguments.namespace,
    )
    findings = checks.run_checks(target)
    if arguments.output:
        print(json.dumps([msgspec.to_builtins(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "-" if finding.is_ok is None else "✔" if finding.is_ok else "✘"
            print(f"{mark} {finding.check:<10}  {finding.detail}")
            if finding.advice:
                print(f"{'':<14}{finding.advice}")
    return EXIT_ERROR if any(finding.is_ok is False for finding in findings) else EXIT_OK


def _known_servers(directory: Path | None) -> list[str]:
    with contextlib.suppress(YardError):  # the doctor reports what is wrong with the credential
        credential = credentials.load_credential(directory) if directory else None
        if credential is not None and "YARD_URL" not in os.environ:
            return [credential.server]
    return [os.environ.get("YARD_URL") or URL_DEFAULT]
