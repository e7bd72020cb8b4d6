"""`yard pilot`: takes nodes of a cluster by one job and makes them a cluster for a while.

The job of a pilot runs an ephemeral agent. Jobs that go to the pilot do not wait in the batch system's queue again.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_repeatable, add_shared, duration_s, positive_int
from switchyard.errors import EXIT_OK, EXIT_REJECTED, BadRequest, YardError
from switchyard.model.cluster.cluster import NewInvite
from switchyard.model.job.job import JobRequest, JobSpec, Native, Resources, State
from switchyard.model.rules.names import NAME_HINT, is_name
from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  yard pilot --cluster alpha --time 2h
  yard pilot --cluster alpha --nodes 4 --time 2h --backend flux --name quick
  yard submit --cluster quick --time-limit 5m -- ./simulate
  yard cancel JOB                         end the pilot early"""
BACKENDS = ("local", "flux")
# The agent starts a moment after its job, so its own time ends this much earlier; of a short life, a fifth.
START_SLACK_S = 10
START_SLACK_SHARE = 5
START_WITHIN_S = 7 * 86_400  # how long the pilot's job may wait for its start


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        "yard pilot",
        "Take whole nodes of a cluster by one job, and make them a cluster of their own until its time is over.\n"
        "Jobs with a time limit that fits go to it by its name, and start without queueing again. You need the right\n"
        "to register clusters. The nodes must see `yard` under the same path as this machine, and reach the server.\n"
        "The job's environment has a join token, which only an agent inside of the job can use.",
        examples=EXAMPLES,
    )
    parser.add_argument("--cluster", required=True, metavar="NAME", help="the cluster whose nodes it takes")
    parser.add_argument("--time", type=duration_s, required=True, metavar="T", help="how long it lives")
    parser.add_argument("--nodes", type=positive_int, default=1, metavar="N", help="how many nodes (default 1)")
    parser.add_argument("--name", metavar="NAME", help="of the new cluster (default: CLUSTER-pilot-XXXX)")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help="what runs jobs in it: local on one node, flux on several (default: by the number of nodes)",
    )
    parser.add_argument(
        "--start-within",
        type=duration_s,
        default=START_WITHIN_S,
        metavar="T",
        help="if the job has not started by then, it is cancelled (default 7d)",
    )
    parser.add_argument("--account", default="", metavar="NAME", help="whom the batch system charges for the job")
    parser.add_argument("--qos", default="", metavar="NAME", help="the job's quality of service")
    add_repeatable(parser, "--queue-tag", metavar="TAG", help="a tag that the job's queue must have; repeatable")
    parser.add_argument("--shared", action="store_true", help="everyone may submit to it (default: those with a grant)")
    parser.add_argument("--program", metavar="PATH", help="`yard` on the nodes (default: the path of this one)")
    parser.add_argument("--flux", default="flux", metavar="PATH", help="`flux` on the nodes (default: by their PATH)")
    add_shared(parser)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = _parse(argv)
    name = args.name or f"{args.cluster}-pilot-{secrets.token_hex(2)}"
    backend = args.backend or ("local" if args.nodes == 1 else "flux")
    if not is_name(name):
        raise BadRequest(f"--name {name!r} is not a name ({NAME_HINT}).")
    if backend == "local" and args.nodes > 1:
        raise BadRequest("A pilot with --backend local has one node.", next_step="Several nodes need --backend flux.")
    with connect(args) as yard:
        host = yard.cluster(args.cluster)
        expires_s = args.start_within
        invite = yard.invite(name, ephemeral=True, private=not args.shared, expires_s=expires_s, for_job=True)
        try:
            agent = agent_command(
                program=args.program or str(Path(sys.argv[0]).absolute()),
                server=yard.url,
                ca_file=yard.ca_file,
                name=name,
                backend=backend,
                time_s=args.time,
            )
            spec = JobSpec(
                command=launch_command(agent, backend=backend, host=host.backend, flux=args.flux),
                env={"YARD_JOIN_TOKEN": invite.token},
                resources=Resources(nodes=args.nodes, tasks=args.nodes, time_limit=args.time),
                native=Native(exclusive=True, account=args.account, qos=args.qos),
            )
            # A job that no agent has taken by then fails. The server cancels one that waits in the batch system's queue
            # when its join token expires.
            waits = args.start_within
            request = JobRequest(
                spec=spec, name=f"pilot {name}", cluster=args.cluster, expires_after=waits, tags=args.queue_tag
            )
            job = yard.submit(request)
        except BaseException:
            with contextlib.suppress(YardError):  # the first error says more
                _withdraw(yard, invite)
            raise
        if job.state is State.REJECTED:
            _withdraw(yard, invite)
            print_notice(f"No pilot: {job.reason}")
            return EXIT_REJECTED
        try:
            yard.bind_invite(invite.info.id, job.id)
        except BaseException:
            with contextlib.suppress(YardError):
                job.cancel("its join token could not be bound to it")
                _withdraw(yard, invite)
            raise
    if emit(job.seen, args.output, key="id"):
        return EXIT_OK
    print(f"Pilot {name} is job {job.id} on {args.cluster}. It joins as a cluster when the job starts:")
    print(f"  yard submit --cluster {name} --time-limit 5m -- COMMAND")
    return EXIT_OK


def agent_command(*, program: str, server: str, ca_file: str | None, name: str, backend: str, time_s: int) -> list[str]:
    """The words that start the pilot's agent. Its join token is in its environment."""
    slack_s = min(START_SLACK_S, time_s // START_SLACK_SHARE)
    words = [program, "agent", "--server", server, "--cluster", name, "--backend", backend, "--ephemeral"]
    words += ["--ends-after", f"{max(1, time_s - slack_s)}s", "--data", "pilot"]
    if backend == "local":  # a Flux instance ends with its agent and ends its jobs itself
        words.append("--jobs-end-with-agent")
    return words + (["--ca-file", ca_file] if ca_file else [])


def launch_command(agent: Sequence[str], *, backend: str, host: str, flux: str = "flux") -> list[str]:
    """The job's command. Slurm runs it once, and srun brings Flux to every node; Flux runs it on every node itself.

    Flux's brokers find each other by PMI, which srun serves as pmi2. Without it, each node would be an instance alone.
    """
    if backend == "local":
        return list(agent)
    start = [flux, "start", *agent]
    return ["srun", "--mpi=pmi2", *start] if host == "slurm" else start


def _withdraw(yard: CoreClient, invite: NewInvite) -> None:
    """Undo the invite, and the cluster only if the invite registered it."""
    if invite.is_cluster_new:
        yard.delete_cluster(invite.info.cluster)
    else:
        yard.revoke_invite(invite.info.id)
