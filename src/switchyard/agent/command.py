"""`yard agent`: reads the command line and the environment, joins if need be, and keeps the loop until a signal."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import select
import signal
import socket
import ssl
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from switchyard.agent import credential as credentials
from switchyard.agent.backends import Setting
from switchyard.agent.backends.registry import kinds, load
from switchyard.agent.chooser import load_chooser
from switchyard.agent.client import Connection, Server, read_server
from switchyard.agent.credential import Credential, Keys
from switchyard.agent.discover import describe, describe_system, discover, read_graph
from switchyard.agent.journal import Journal
from switchyard.agent.log import line, set_up
from switchyard.agent.loop import FREE_BYTES_MIN, Limits, Loop
from switchyard.agent.site_state import SiteState
from switchyard.errors import (
    EXIT_ERROR,
    EXIT_OK,
    BadRequest,
    Gone,
    Malformed,
    NotFound,
    Unauthenticated,
    Unavailable,
    YardError,
)
from switchyard.model.graph import Graph
from switchyard.model.names import NAME_HINT, is_name
from switchyard.model.poll import BATCH_MAX, Join
from switchyard.model.quantity import parse_duration_s

URL_DEFAULT = "http://127.0.0.1:8080"
SIGNAL_S = 0.2  # how often the main thread looks after the others
# What a supervisor and its job may have of the agent's environment; a join token, say, is not theirs to see.
PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

DESCRIPTION = """\
Run the agent of one cluster in the foreground: it asks the server for work and runs it by the given backend.

At the first start it joins with a join token (`yard cluster invite NAME` makes one) and keeps its own credential in
its data folder; later starts need no token. Running jobs outlive the agent; the next start finds them again.
"""
EXAMPLES = """\
examples:
  yard agent --server http://127.0.0.1:8080 --cluster alpha --backend local --token join_...
  yard agent --server https://a.example --server https://b.example --ca-file ca.pem --cluster alpha --backend local
  yard agent --cluster beta --backend local --graph beta.yaml --data ./beta
  yard agent discover                      what this machine would register, in the form --graph reads
  yard agent doctor --cluster alpha        what is wrong, and what to do about it

environment: YARD_URL (default of --server), YARD_JOIN_TOKEN (default of --token)
exit codes:  0 ended by a signal, 1 unreachable or broken, 2 wrong use, 4 refused, 6 removed, or the name is taken
"""

DISCOVER_EXAMPLES = """\
examples:
  yard agent discover > graph.yaml         the machine: sockets, cores, memory, gpus, storage
  yard agent discover --per-node           its system: architecture, kernel, C library, driver, MPI, container runtime
  yard agent discover --graph graph.yaml   is this file right, and what does it say?
"""

DOCTOR_EXAMPLES = """\
examples:
  yard agent doctor --server https://yard.example --backend local     before the first join
  yard agent doctor --cluster alpha                                   the agent that joined from here
  yard agent doctor --data ./alpha -o json

exit codes:  0 all is well, 1 something is wrong
"""

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    try:
        if argv[:1] == ["discover"]:
            return discover_command(argv[1:])
        if argv[:1] == ["doctor"]:
            return doctor_command(argv[1:])
        return run(parser().parse_args(argv))
    except YardError as exc:
        print(f"error: {exc.detail}", file=sys.stderr)
        if exc.next_step:
            print(f"next: {exc.next_step}", file=sys.stderr)
        return exc.exit_code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="yard agent",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--server", action="append", metavar="URL", help="the server; several are tried in turn")
    made.add_argument("--cluster", required=True, metavar="NAME", help="the cluster to join")
    made.add_argument("--backend", required=True, metavar="KIND", help=f"what runs the jobs: {', '.join(kinds())}")
    made.add_argument("--token", metavar="JOIN", help="the join token, needed once")
    made.add_argument(
        "--graph", type=Path, metavar="FILE", help="what the cluster has: JGF, R or the short form; else found out"
    )
    made.add_argument(
        "--data", type=Path, metavar="DIR", help="state (default: ~/.local/share/switchyard/agents/CLUSTER)"
    )
    made.add_argument(
        "--state", type=Path, metavar="FILE", help="names and values to say of the cluster (YAML), read as it changes"
    )
    made.add_argument("--name", help="the agent's name (default: CLUSTER-HOSTNAME)")
    made.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    made.add_argument(
        "--chooser", default="priority", metavar="NAME|COMMAND", help="who orders and returns what was leased"
    )
    made.add_argument("--jobs-max", type=int, default=64, metavar="N", help="attempts held at once (default: 64)")
    made.add_argument(
        "--free-bytes-min", type=int, default=FREE_BYTES_MIN, metavar="N", help=argparse.SUPPRESS
    )  # for tests on small disks
    made.add_argument(
        "--rotate-after", default="30d", metavar="T", help="get a new credential this often (default: 30d)"
    )
    made.add_argument(
        "--look-every", default="5m", metavar="T", help="look so often what the machine has (default: 5m)"
    )
    made.add_argument("-v", "--verbose", action="store_true", help="log every step")
    return made


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
    made.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    given = made.parse_args(argv)
    if given.graph:
        graph = read_graph(given.graph)
        plain = {"nodes": graph.nodes, "totals": graph.totals, "shapes": len(graph.shapes)}
    elif given.per_node:
        plain = describe_system()
    else:
        plain = describe(Path.cwd())
    if given.output == "json":
        print(json.dumps(plain, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(plain, sort_keys=False), end="")
    return EXIT_OK


def doctor_command(argv: list[str]) -> int:
    made = argparse.ArgumentParser(
        prog="yard agent doctor",
        description="Look at all that an agent needs, and say what is wrong and what to do. It changes nothing.",
        epilog=DOCTOR_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--server", action="append", metavar="URL", help="default: the one the agent joined, or YARD_URL")
    made.add_argument("--cluster", metavar="NAME", help="the agent of this cluster, in its usual folder")
    made.add_argument("--data", type=Path, metavar="DIR", help="the agent's folder")
    made.add_argument("--backend", metavar="KIND", help=f"what runs the jobs: {', '.join(kinds())}")
    made.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    made.add_argument("-o", "--output", choices=("json",), metavar="FORM", help="print as json")
    given = made.parse_args(argv)
    from switchyard.agent import doctor

    directory = given.data or (_folder_of(given.cluster) if given.cluster else None)
    patient = doctor.Patient(
        urls=given.server or _known_servers(directory),
        directory=directory.absolute() if directory else None,
        backend=given.backend,
        ca_file=given.ca_file,
        environment=dict(os.environ),
    )
    found = doctor.examine_all(patient)
    if given.output:
        print(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    else:
        for each in found:
            mark = "-" if each.is_ok is None else "✔" if each.is_ok else "✘"
            print(f"{mark} {each.check:<10}  {each.detail}")
            if each.advice:
                print(f"{'':<14}{each.advice}")
    return EXIT_ERROR if any(each.is_ok is False for each in found) else EXIT_OK


def _known_servers(directory: Path | None) -> list[str]:
    with contextlib.suppress(YardError):  # the doctor says what is wrong with it
        kept = credentials.load(directory) if directory else None
        if kept is not None and "YARD_URL" not in os.environ:
            return [kept.server]
    return [os.environ.get("YARD_URL") or URL_DEFAULT]


def run(given: argparse.Namespace) -> int:
    set_up(verbose=given.verbose)
    _check(given)
    servers = [read_server(url) for url in given.server or [os.environ.get("YARD_URL") or URL_DEFAULT]]
    _check_tls(servers, given.ca_file)
    make_backend = load(given.backend)
    chooser = load_chooser(given.chooser)
    site = SiteState(given.state)
    directory = (given.data or _folder_of(given.cluster)).absolute()
    with closing(credentials.claim_folder(directory)):
        described = read_graph(given.graph) if given.graph else None
        kept = _kept(directory, given.cluster)
        with closing(Journal(directory / "journal.db", journal_id=kept.journal if kept else None)) as journal:
            member = kept or _join(given, servers, journal.id, directory)
            # Only now: to be refused must not take as long as a driver that does not answer.
            graph = described or discover(directory)
            keys = Keys(directory, member)
            environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
            look = None if described else partial(discover, directory)
            setting = Setting(
                cluster=given.cluster, directory=directory, graph=graph, look=look, environment=environment
            )
            with closing(make_backend(setting)) as backend:
                loop = Loop(
                    journal,
                    backend,
                    connect=lambda: Connection(servers, ca_file=given.ca_file, keys=keys),
                    directory=directory,
                    limits=Limits(
                        jobs_max=given.jobs_max,
                        free_bytes_min=given.free_bytes_min,
                        rotate_after_s=parse_duration_s(given.rotate_after),
                        look_every_s=parse_duration_s(given.look_every),
                    ),
                    chooser=chooser,
                    keys=keys,
                    values=site.values,
                )
                _announce(member, graph, given)
                return _until_signal(loop, directory)


def _until_signal(loop: Loop, directory: Path) -> int:
    """Handlers do nothing: one that took a lock could interrupt the very thread that holds it. The main thread acts."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # Not sigtimedwait: stopped and continued past its time-out, Python 3.11 returns a signal that never came.
    signal.set_wakeup_fd(write_end)
    loop.start()
    while not loop.is_over():
        if select.select([read_end], [], [], SIGNAL_S)[0]:
            log.info(line("stopping", signal=signal.Signals(os.read(read_end, 1)[0]).name))
            break
    refused = loop.stop()
    if isinstance(refused, Unauthenticated | Gone):
        step = f"Join again: remove {directory / credentials.FILE} and give a join token (`yard cluster invite NAME`)."
        raise type(refused)(f"The server refuses this agent: {refused.detail}", next_step=step)
    if refused is not None:
        raise refused
    return EXIT_OK


def _join(given: argparse.Namespace, servers: list[Server], journal_id: str, directory: Path) -> Credential:
    from switchyard.agent.joining import join, own_version

    request = Join(
        cluster=given.cluster,
        name=given.name or f"{given.cluster}-{_host()}",
        journal=journal_id,
        backend=given.backend,
        version=own_version(),
    )
    token = given.token or os.environ.get("YARD_JOIN_TOKEN")
    joined = join(servers, request, token=token, ca_file=given.ca_file)
    credentials.save(directory, joined)
    return joined


def _kept(directory: Path, cluster: str) -> Credential | None:
    kept = credentials.load(directory)
    if kept is not None and kept.cluster != cluster:
        raise BadRequest(
            f"{directory} belongs to an agent of cluster {kept.cluster}, not {cluster}.",
            next_step="Give this one its own folder with --data.",
        )
    return kept


def _announce(member: Credential, graph: Graph, given: argparse.Namespace) -> None:
    print(f"joined cluster {member.cluster} as agent {member.name} ({member.agent})", flush=True)
    log.info(
        line(
            "agent-start",
            cluster=member.cluster,
            agent=member.agent,
            backend=given.backend,
            nodes=graph.nodes,
            cores=graph.cores,
            gpus=graph.gpus,
            pid=os.getpid(),
        )
    )


def _check(given: argparse.Namespace) -> None:
    """All mistakes at once, before anything is touched."""
    wrong = [
        f"--{what} {name!r} is not a name ({NAME_HINT})"
        for what, name in (("cluster", given.cluster), ("name", given.name))
        if name is not None and not is_name(name)
    ]
    for option in ("rotate_after", "look_every"):
        try:
            parse_duration_s(getattr(given, option))
        except ValueError as exc:
            wrong.append(f"--{option.replace('_', '-')}: {exc}")
    if not 1 <= given.jobs_max <= BATCH_MAX:
        wrong.append(f"--jobs-max must be from 1 to {BATCH_MAX}")
    if wrong:
        raise Malformed("; ".join(wrong) + ".", next_step="See `yard agent --help`.")


def _check_tls(servers: list[Server], ca_file: str | None) -> None:
    if ca_file is None:
        return
    if not Path(ca_file).is_file():
        raise NotFound(f"There is no file {ca_file}.", next_step="Check the path given with --ca-file.")
    try:
        Connection(servers, ca_file=ca_file)
    except ssl.SSLError as exc:
        raise Malformed(f"{ca_file} has no certificates: {exc}.") from exc


def _folder_of(cluster: str) -> Path:
    return _home() / ".local/share/switchyard/agents" / cluster


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as exc:
        raise Unavailable("There is no home folder for the agent's state.", next_step="Give --data DIR.") from exc


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])[:60].strip("-") or "host"
