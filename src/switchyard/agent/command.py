"""`yard agent` and `yard loop`: read the command line and the environment, join if needed, and run the agent's loop.

`yard loop` is the agent with a backend that suits the place; it leaves when there is no job (`loop/departure.py`).
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import select
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from switchyard.agent.backends import Backend, Setting, WorkFolder
from switchyard.agent.backends.registry import BACKENDS, load_backend
from switchyard.agent.files.attempt_files import AttemptFiles, FilesPlaces
from switchyard.agent.files.folders import files_folders
from switchyard.agent.files.object_client import ObjectClient
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import line, set_up_logging
from switchyard.agent.loop.chooser import load_chooser
from switchyard.agent.loop.departure import Departure
from switchyard.agent.loop.ending_backend import EndingBackend
from switchyard.agent.loop.lifetime import Lifetime, check_end_is_known, lifetime_of
from switchyard.agent.loop.loop import FREE_BYTES_MIN, AgentLimits, AgentOptions, Loop
from switchyard.agent.private_files import set_private_umask
from switchyard.agent.server import credential as credentials
from switchyard.agent.server.client import URL_DEFAULT, Connection, ServerAddress, parse_server_url
from switchyard.agent.server.credential import AgentCredentials, Credential
from switchyard.agent.site.data_folders import make_data_folder
from switchyard.agent.site.discover import discover_machine, read_graph
from switchyard.agent.site.site import Site, read_site
from switchyard.agent.site.site_gifts import GiftPath, site_gifts
from switchyard.agent.site.site_state import SiteState
from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed, refuse_plain_http
from switchyard.errors import (
    EXIT_OK,
    BadRequest,
    Gone,
    Malformed,
    NotFound,
    Unauthenticated,
)
from switchyard.model.cluster.poll import Join, Lease
from switchyard.model.graph import Graph
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.names import NAME_HINT, is_name
from switchyard.process_arguments import hide_argument

JOBS_MAX = 100_000  # of one agent: bounds the size of a sync
SIGNAL_POLL_S = 0.2  # how often the main thread checks the others
FLUX_VARIABLE = "FLUX_URI"  # of every program that runs in a Flux instance
NODES_VARIABLE = "SLURM_JOB_NUM_NODES"

DESCRIPTION = """\
Run the agent of one cluster in the foreground: it asks the server for work and runs it by the given backend.

At the first start it joins with a join token (`yard cluster invite NAME` makes one) and keeps its own credential in
its data folder; later starts need no token. Running jobs outlive the agent, unless --jobs-end-with-agent; the next
start finds them again.
"""
EXAMPLES = """\
examples:
  yard agent --server http://127.0.0.1:8080 --cluster alpha --backend local --token join_...
  yard agent --server https://a.example --server https://b.example --ca-file ca.pem --cluster alpha --backend local
  yard agent --cluster beta --backend local --graph beta.yaml --data ./beta
  yard agent --cluster gamma --backend slurm --config gamma.yaml
  yard agent --cluster delta --backend flux
  yard agent discover                      what this machine would register, in the form --graph reads
  yard agent doctor --cluster alpha        what is wrong, and what to do about it

environment: YARD_URL (default of --server), YARD_JOIN_TOKEN (default of --token, and not seen by `ps`),
             YARD_INSECURE_HTTP=1 (as --insecure-http)
exit codes:  0 ended by a signal, 1 broken, 2 wrong use, 4 refused,
             6 removed, the name is taken, or another process has this agent's place,
             69 the server, or something else that the agent needs, is not there
"""

LOOP_DESCRIPTION = """\
Run the jobs of one cluster here until there is none for it, then exit with 0 and a line of what ran.

Inside a Flux instance jobs run on all of the instance; in a Slurm allocation or a shell they run on this machine. The
cluster stays registered: jobs that are submitted to it wait for the next loop. The first start needs a join token
(`yard cluster invite NAME`); later ones find the credential in the data folder.

SIGTERM, SIGINT, SIGHUP and the end of the allocation: jobs that have not begun go back to the server, the others may
end within --grace. What runs on is ended and lost, and `on_lost` of each job decides. A second signal ends the grace.
"""
LOOP_EXAMPLES = """\
examples:
  yard loop --cluster alpha --token join_...
  yard loop --cluster alpha --idle 5m --chooser ./choose.py
  flux start yard loop --cluster alpha                   a Flux instance that ends with the loop
  srun --mpi=pmi2 flux start yard loop --cluster alpha   on all nodes of a Slurm allocation

environment: YARD_URL (default of --server), YARD_JOIN_TOKEN (default of --token, and not seen by `ps`),
             YARD_INSECURE_HTTP=1 (as --insecure-http)
exit codes:  0 no job is left, or ended by a signal; 1 broken, 2 wrong use, 4 refused,
             6 removed, the name is taken, or another process has this agent's place,
             69 the server, or something else that the loop needs, is not there
"""

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    return run(parser().parse_args(argv))


def loop(argv: list[str]) -> int:
    arguments = loop_parser().parse_args(argv)
    if arguments.backend is None:
        arguments.backend = "flux" if os.environ.get(FLUX_VARIABLE) else "local"
    if arguments.backend == "local" and os.environ.get(NODES_VARIABLE, "1") != "1":
        print(
            f"note: This allocation has {os.environ[NODES_VARIABLE]} nodes, and jobs run on this one alone.\n"
            "next: For all of them: srun --mpi=pmi2 flux start yard loop …",
            file=sys.stderr,
        )
    return run(arguments)


def parser() -> argparse.ArgumentParser:
    parser = _make_parser("yard agent", DESCRIPTION, EXAMPLES)
    parser.set_defaults(idle=None)
    parser.add_argument(
        "--backend", required=True, metavar="KIND", help=f"what runs the jobs: {', '.join(BACKENDS.names())}"
    )
    _add_options(parser)
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="names and values to say of the cluster (YAML), read as it changes"
    )
    parser.add_argument(
        "--free-bytes-min", type=int, default=FREE_BYTES_MIN, metavar="N", help=argparse.SUPPRESS
    )  # for tests on small disks
    parser.add_argument(
        "--rotate-after", default="30d", metavar="T", help="get a new credential this often (default: 30d)"
    )
    parser.add_argument(
        "--look-every", default="5m", metavar="T", help="look so often what the machine has (default: 5m)"
    )
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="the cluster ends at a set time: take only jobs that fit before it, then leave and remove the cluster",
    )
    parser.add_argument(
        "--ends-after", metavar="T", help="with --ephemeral: the time until then (default: of the job around the agent)"
    )
    parser.add_argument(
        "--jobs-end-with-agent",
        action="store_true",
        help="with --backend local: when the agent ends, however it ends, its jobs end, too (else they run on)",
    )
    return parser


def loop_parser() -> argparse.ArgumentParser:
    parser = _make_parser("yard loop", LOOP_DESCRIPTION, LOOP_EXAMPLES)
    parser.add_argument(
        "--idle", default="30s", metavar="T", help="leave when there was no job for it for so long (default: 30s)"
    )
    parser.add_argument(
        "--grace", default="20s", metavar="T", help="how long running jobs may take when it must leave (default: 20s)"
    )
    parser.add_argument(
        "--ends-after", metavar="T", help="leave at the latest then (default: at the end of the allocation, if known)"
    )
    parser.add_argument(
        "--backend", metavar="KIND", help=f"what runs the jobs (default: flux where {FLUX_VARIABLE} is set, else local)"
    )
    _add_options(parser)
    parser.set_defaults(
        state=None,
        ephemeral=False,
        jobs_end_with_agent=False,
        free_bytes_min=FREE_BYTES_MIN,
        rotate_after="30d",
        look_every="5m",
    )
    return parser


def _make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `yard agent` and `yard loop` have in common."""
    parser.add_argument("--server", action="append", metavar="URL", help="the server; several are tried in turn")
    parser.add_argument("--cluster", required=True, metavar="NAME", help="the cluster to join")
    parser.add_argument("--token", metavar="JOIN", help="the join token, needed once")
    parser.add_argument(
        "--graph", type=Path, metavar="FILE", help="what the cluster has: JGF, R or the short form; else found out"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="state (default: ~/.local/share/switchyard/agents/CLUSTER)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="how the site's cluster is reached, what it costs and allows (YAML)"
    )
    parser.add_argument(
        "--allow-root",
        action="store_true",
        help="as root without an account map: start everybody's jobs, as root (else platform administrators' alone)",
    )
    parser.add_argument("--name", help="the agent's name (default: CLUSTER-HOSTNAME)")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument(
        "--insecure-http", action="store_true", help="allow http:// to another machine, which shows the credential"
    )
    parser.add_argument(
        "--chooser", default="priority", metavar="NAME|COMMAND", help="who orders and returns what was leased"
    )
    parser.add_argument(
        "--jobs-max", type=int, metavar="N", help="attempts held at once (default: 64; slurm, flux: 5000)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step")


def run(arguments: argparse.Namespace) -> int:
    set_private_umask()
    set_up_logging(verbose=arguments.verbose)
    if arguments.token and not hide_argument(arguments.token):
        log.warning(line("join-token-seen", advice="every user sees --token in ps; use YARD_JOIN_TOKEN"))
    _check(arguments)
    servers = [parse_server_url(url) for url in arguments.server or [os.environ.get("YARD_URL") or URL_DEFAULT]]
    for server in servers:
        refuse_plain_http(
            server.url,
            is_plain_allowed=arguments.insecure_http or is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
        )
    _check_tls(servers, arguments.ca_file)
    make_backend = load_backend(arguments.backend)
    if arguments.ephemeral:
        check_end_is_known(make_backend, os.environ, ends_after=arguments.ends_after)
    chooser = load_chooser(arguments.chooser)
    site = read_site(arguments.config)
    site_state = SiteState(arguments.state)
    directory = (arguments.data or credentials.default_data_folder(arguments.cluster)).absolute()
    with closing(credentials.lock_data_folder(directory)):
        described = read_graph(arguments.graph) if arguments.graph else None
        credential = _load_own_credential(directory, arguments.cluster)
        with closing(
            Journal(directory / "journal.db", journal_id=credential.journal if credential else None)
        ) as journal:
            member = credential or _join(arguments, servers, journal.id, directory)
            # After the join, which should not wait for a slow driver.
            is_found_here = described is None and not make_backend.finds_graph
            keys = AgentCredentials(directory, member)
            setting = _setting(arguments, directory, site, described=described, is_found_here=is_found_here)

            def connect() -> Connection:
                return Connection(servers, ca_file=arguments.ca_file, keys=keys)

            with closing(make_backend(setting)) as real_backend:
                lifetime = _lifetime(arguments, real_backend)
                backend = real_backend if lifetime is None else EndingBackend(real_backend, lifetime)
                loop = Loop(
                    journal,
                    backend,
                    connect=connect,
                    directory=directory,
                    limits=AgentLimits(
                        jobs_max=arguments.jobs_max or backend.jobs_max,
                        free_bytes_min=arguments.free_bytes_min,
                        rotate_after_s=parse_duration_s(arguments.rotate_after),
                        look_every_s=parse_duration_s(arguments.look_every),
                        outage=site.outage,
                    ),
                    keys=keys,
                    options=AgentOptions(
                        chooser=chooser,
                        values=site_state.values,
                        make_files=partial(_make_files, setting, connect, arguments),
                        lifetime=lifetime,
                        departure=_departure(arguments, real_backend),
                    ),
                )
                _announce(member, backend.describe(), arguments)
                code = _run_until_signal(loop, directory, connect)
                if arguments.idle is not None:
                    print(f"cluster {member.cluster}: {loop.summary()}", flush=True)
                return code


def _setting(
    arguments: argparse.Namespace, directory: Path, site: Site, *, described: Graph | None, is_found_here: bool
) -> Setting:
    look = partial(discover_machine, directory, names=site.names) if is_found_here else None
    machine = look() if look is not None else None
    return Setting(
        cluster=arguments.cluster,
        directory=directory,
        graph=described if machine is None else machine.graph,
        look=look,
        gpus=() if machine is None else machine.gpus,
        site=site,
        is_root_allowed=arguments.allow_root,
        are_jobs_bound=arguments.jobs_end_with_agent,
        agent_environment=os.environ,
    )


def _lifetime(arguments: argparse.Namespace, backend: Backend) -> Lifetime | None:
    """When the cluster ends; None: it stays."""
    if not arguments.ephemeral:
        return None
    ends_after_s = parse_duration_s(arguments.ends_after) if arguments.ends_after else None
    lifetime = lifetime_of(backend, os.environ, ends_after_s=ends_after_s)
    log.info(line("ephemeral", left_s=int(lifetime.left_s())))
    return lifetime


def _departure(arguments: argparse.Namespace, backend: Backend) -> Departure | None:
    """When the agent of `yard loop` leaves; None: another agent, which stays."""
    if arguments.idle is None:
        return None
    idle_s, grace_s = parse_duration_s(arguments.idle), parse_duration_s(arguments.grace)
    ends_after_s = parse_duration_s(arguments.ends_after) if arguments.ends_after else None
    try:
        left_s = lifetime_of(backend, os.environ, ends_after_s=ends_after_s).left_s
    except Malformed:  # in a shell, or in an allocation without an end
        return Departure(idle_s=idle_s, grace_s=grace_s)
    return Departure(idle_s=idle_s, grace_s=grace_s, left_s=left_s)


def _make_files(
    setting: Setting,
    connect: Callable[[], Connection],
    arguments: argparse.Namespace,
    backend: Backend,
    on_change: Callable[[], None],
) -> AttemptFiles:
    folders = files_folders(setting.site, arguments.backend, setting.directory, setting.cluster)

    def gifts(lease: Lease, work: WorkFolder) -> dict[GiftPath, bytes]:
        files = site_gifts(lease, setting.site, setting.agent_environment, work.path)
        make_data_folder(lease, setting.site, work.account)
        return files

    return AttemptFiles(
        backend,
        FilesPlaces(
            directory=setting.directory,
            cache=setting.files_folder(setting.directory / "files") / "cache",
            work_roots=[folders.work] if folders else [],
            free_bytes_min=arguments.free_bytes_min,
        ),
        site=setting.site.files,
        connect=lambda: ObjectClient(connect().within_session(), ca_file=arguments.ca_file),
        on_change=on_change,
        gifts=gifts,
    )


def _run_until_signal(loop: Loop, directory: Path, connect: Callable[[], Connection]) -> int:
    """Run until a signal, or until the time of an ephemeral cluster is over.

    Handlers only wake this thread: one that takes a lock could deadlock.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # SIGHUP: a Flux instance that ends sends it to the program that it was started with. `nohup` has it ignored.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    # Not sigtimedwait: if the process is stopped past the time-out, Python 3.11 returns a signal that never came.
    signal.set_wakeup_fd(write_end)
    loop.start()
    received: signal.Signals | None = None
    while not loop.is_over():
        if select.select([read_end], [], [], SIGNAL_POLL_S)[0]:
            received = signal.Signals(os.read(read_end, 1)[0])
            log.info(line("stopping", signal=received.name))
            if not loop.depart(f"its loop was stopped by {received.name}"):
                break
    refused = loop.stop()
    if isinstance(refused, Unauthenticated | Gone):
        file = directory / credentials.CREDENTIAL_FILE
        step = f"Join again: remove {file} and give a join token (`yard cluster invite NAME`)."
        raise type(refused)(f"The server refuses this agent: {refused.detail}", next_step=step)
    if refused is not None:
        raise refused
    with closing(connect()) as connection:
        loop.leave(connection, received)
    return EXIT_OK


def _join(arguments: argparse.Namespace, servers: list[ServerAddress], journal_id: str, directory: Path) -> Credential:
    from switchyard.agent.server.join import join_cluster, own_version

    request = Join(
        cluster=arguments.cluster,
        name=arguments.name or f"{arguments.cluster}-{_host()}",
        journal=journal_id,
        backend=arguments.backend,
        version=own_version(),
        is_ephemeral=arguments.ephemeral,
    )
    token = arguments.token or os.environ.get("YARD_JOIN_TOKEN")
    show = partial(print, flush=True)
    joined = join_cluster(servers, request, token=token, ca_file=arguments.ca_file, show=show)
    credentials.save_credential(directory, joined)
    return joined


def _load_own_credential(directory: Path, cluster: str) -> Credential | None:
    credential = credentials.load_credential(directory)
    if credential is not None and credential.cluster != cluster:
        raise BadRequest(
            f"{directory} belongs to an agent of cluster {credential.cluster}, not {cluster}.",
            next_step="Give this one its own folder with --data.",
        )
    return credential


def _announce(member: Credential, graph: Graph, arguments: argparse.Namespace) -> None:
    print(f"joined cluster {member.cluster} as agent {member.name} ({member.agent})", flush=True)
    log.info(
        line(
            "agent-start",
            cluster=member.cluster,
            agent=member.agent,
            backend=arguments.backend,
            nodes=graph.nodes,
            cores=graph.cores,
            gpus=graph.gpus,
            pid=os.getpid(),
        )
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raise with all mistakes of the command line, before anything is changed."""
    mistakes = [
        f"--{option} {name!r} is not a name ({NAME_HINT})"
        for option, name in (("cluster", arguments.cluster), ("name", arguments.name))
        if name is not None and not is_name(name)
    ]
    durations = ("rotate_after", "look_every", *(() if arguments.idle is None else ("idle", "grace")))
    for option in durations:
        try:
            parse_duration_s(getattr(arguments, option))
        except ValueError as exc:
            mistakes.append(f"--{option.replace('_', '-')}: {exc}")
    if arguments.ends_after is not None:
        try:
            parse_duration_s(arguments.ends_after)
        except ValueError as exc:
            mistakes.append(f"--ends-after: {exc}")
        if not arguments.ephemeral and arguments.idle is None:
            mistakes.append("--ends-after goes with --ephemeral")
    if arguments.jobs_end_with_agent and arguments.backend != "local":
        mistakes.append("--jobs-end-with-agent goes with --backend local")
    if arguments.jobs_max is not None and not 1 <= arguments.jobs_max <= JOBS_MAX:
        mistakes.append(f"--jobs-max must be from 1 to {JOBS_MAX}")
    if mistakes:
        program = "yard agent" if arguments.idle is None else "yard loop"
        raise Malformed("; ".join(mistakes) + ".", next_step=f"See `{program} --help`.")


def _check_tls(servers: list[ServerAddress], ca_file: str | None) -> None:
    if ca_file is None:
        return
    if not Path(ca_file).is_file():
        raise NotFound(f"There is no file {ca_file}.", next_step="Check the path given with --ca-file.")
    try:
        Connection(servers, ca_file=ca_file)
    except ssl.SSLError as exc:
        raise Malformed(f"{ca_file} has no certificates: {exc}.") from exc


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])[:60].strip("-") or "host"
