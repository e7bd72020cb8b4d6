"""`yard agent discover` and `yard agent doctor`: what there is, and what is wrong. They change nothing that lasts."""

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

from switchyard.agent import credential as credentials
from switchyard.agent.backends.registry import backend_kinds
from switchyard.agent.discover import describe_machine, describe_system, read_graph
from switchyard.agent.site import read_site
from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed
from switchyard.errors import EXIT_ERROR, EXIT_OK, Unavailable, YardError
from switchyard.model.quantity import parse_duration_s

URL_DEFAULT = "http://127.0.0.1:8080"
DISCOVER_EXAMPLES = """\
examples:
  yard agent discover > graph.yaml         the machine: sockets, cores, memory, gpus, storage
  yard agent discover --per-node           its system: architecture, kernel, C library, driver, MPI, container runtime
  yard agent discover --per-node --backend slurm --config site.yaml      the systems of all nodes, asked by srun
  yard agent discover --graph graph.yaml   is this file right, and what does it say?
"""

DOCTOR_EXAMPLES = """\
examples:
  yard agent doctor --server https://yard.example --backend local     before the first join
  yard agent doctor --cluster alpha                                   the agent that joined from here
  yard agent doctor --backend slurm --config site.yaml                runs a small job at the cluster
  yard agent doctor --data ./alpha -o json

exit codes:  0 all is well, 1 something is wrong
"""


def discover_command(argv: list[str]) -> int:
    made = argparse.ArgumentParser(
        prog="yard agent discover",
        description="Print what this machine would register, in the form --graph reads.",
        epilog=DISCOVER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_mutually_exclusive_group()
    what.add_argument("--graph", type=Path, metavar="FILE", help="read and check this file, and print what it has")
    what.add_argument("--per-node", action="store_true", help="print what the system of each node is, as a subsystem")
    made.add_argument("--backend", choices=("slurm",), help="with --per-node: ask all nodes of this cluster")
    made.add_argument("--config", type=Path, metavar="FILE", help="with --backend: the site's file")
    made.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    given = made.parse_args(argv)
    plain: dict[str, Any]
    if given.backend and not given.per_node:
        made.error("--backend goes with --per-node: what a cluster has, its agent asks itself")
    if given.graph:
        graph = read_graph(given.graph)
        plain = {"nodes": graph.nodes, "totals": graph.totals, "shapes": len(graph.shapes)}
    elif given.backend:
        plain = _slurm_systems(given.config)
    elif given.per_node:
        plain = describe_system()
    else:
        plain = describe_machine(Path.cwd())
    if given.output == "json":
        print(json.dumps(plain, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(plain, sort_keys=False), end="")
    return EXIT_OK


def _slurm_systems(config: Path | None) -> dict[str, Any]:
    """Of every node that answered; the others are named on stderr."""
    from switchyard.agent.backends.slurm.command_runner import CommandRunner
    from switchyard.agent.backends.slurm.node_systems import describe_systems

    caller = CommandRunner(read_site(config).slurm, os.environ)
    found, silent = describe_systems(caller, program=[str(Path(sys.argv[0]).absolute())])
    for node, why in silent.items():
        print(f"{node}: {why}", file=sys.stderr)
    if not found["attach"]:
        raise Unavailable("No node answered.", next_step="Do the nodes see this program under the same path?")
    return found


def doctor_command(argv: list[str]) -> int:
    made = argparse.ArgumentParser(
        prog="yard agent doctor",
        description="Look at all that an agent needs, and say what is wrong and what to do. A batch system is given "
        "one small job; nothing else is changed.",
        epilog=DOCTOR_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--server", action="append", metavar="URL", help="default: the one the agent joined, or YARD_URL")
    made.add_argument("--cluster", metavar="NAME", help="the agent of this cluster, in its usual folder")
    made.add_argument("--data", type=Path, metavar="DIR", help="the agent's folder")
    made.add_argument("--backend", metavar="KIND", help=f"what runs the jobs: {', '.join(backend_kinds())}")
    made.add_argument("--config", type=Path, metavar="FILE", help="the site's file, as the agent gets it")
    made.add_argument("--user", metavar="NAME", help="whose small job it is, where the site maps users to accounts")
    made.add_argument("--wait", default="60s", metavar="T", help="for the small job's end (default: 60s)")
    made.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    made.add_argument("-o", "--output", choices=("json",), metavar="FORM", help="print as json")
    given = made.parse_args(argv)
    try:
        wait_s = parse_duration_s(given.wait)
    except ValueError as exc:
        made.error(f"--wait: {exc}")
    from switchyard.agent import doctor

    logging.getLogger("switchyard").addHandler(logging.NullHandler())  # what a backend logs, the findings say
    directory = given.data or (default_data_folder(given.cluster) if given.cluster else None)
    patient = doctor.DoctorTarget(
        urls=given.server or _known_servers(directory),
        directory=directory.absolute() if directory else None,
        backend=given.backend,
        ca_file=given.ca_file,
        environment=dict(os.environ),
        is_plain_allowed=is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
        site=read_site(given.config),
        user=given.user,
        wait_s=wait_s,
    )
    found = doctor.run_checks(patient)
    if given.output:
        print(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    else:
        for each in found:
            mark = "-" if each.is_ok is None else "✔" if each.is_ok else "✘"
            print(f"{mark} {each.check:<10}  {each.detail}")
            if each.advice:
                print(f"{'':<14}{each.advice}")
    return EXIT_ERROR if any(each.is_ok is False for each in found) else EXIT_OK


def default_data_folder(cluster: str) -> Path:
    """Where an agent keeps its state unless it is told."""
    try:
        return Path.home() / ".local/share/switchyard/agents" / cluster
    except RuntimeError as exc:
        raise Unavailable("There is no home folder for the agent's state.", next_step="Give --data DIR.") from exc


def _known_servers(directory: Path | None) -> list[str]:
    with contextlib.suppress(YardError):  # the doctor says what is wrong with it
        kept = credentials.load_credential(directory) if directory else None
        if kept is not None and "YARD_URL" not in os.environ:
            return [kept.server]
    return [os.environ.get("YARD_URL") or URL_DEFAULT]
