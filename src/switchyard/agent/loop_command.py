"""`yard loop`: runs the jobs of a cluster from inside a Flux instance, an allocation or a shell, until there are none.

It is the agent of `yard agent` with a backend that suits the place, and it leaves by itself (`loop/departure.py`).
"""

from __future__ import annotations

import argparse
import os
import sys

from switchyard.agent.command import add_options, run
from switchyard.agent.loop.loop import FREE_BYTES_MIN
from switchyard.agent.private_files import set_private_umask
from switchyard.errors import YardError

FLUX_VARIABLE = "FLUX_URI"  # of every program that runs in a Flux instance
NODES_VARIABLE = "SLURM_JOB_NUM_NODES"

DESCRIPTION = """\
Run the jobs of one cluster here until there is none for it, then exit with 0 and a line of what ran.

Inside a Flux instance jobs run on all of the instance; in a Slurm allocation or a shell they run on this machine. The
cluster stays registered: jobs that are submitted to it wait for the next loop. The first start needs a join token
(`yard cluster invite NAME`); later ones find the credential in the data folder.

SIGTERM, SIGINT, SIGHUP and the end of the allocation: jobs that have not begun go back to the server, the others may
end within --grace. What runs on is ended and lost, and `on_lost` of each job decides. A second signal ends the grace.
"""
EXAMPLES = """\
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


def main(argv: list[str]) -> int:
    try:
        arguments = parser().parse_args(argv)
        set_private_umask()
        if arguments.backend is None:
            arguments.backend = "flux" if os.environ.get(FLUX_VARIABLE) else "local"
        if arguments.backend == "local" and os.environ.get(NODES_VARIABLE, "1") != "1":
            print(
                f"note: This allocation has {os.environ[NODES_VARIABLE]} nodes, and jobs run on this one alone.\n"
                "next: For all of them: srun --mpi=pmi2 flux start yard loop …",
                file=sys.stderr,
            )
        return run(arguments)
    except YardError as exc:
        print(f"error: {exc.detail}", file=sys.stderr)
        if exc.next_step:
            print(f"next: {exc.next_step}", file=sys.stderr)
        return exc.exit_code


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="yard loop",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
    add_options(parser)
    parser.set_defaults(
        state=None,
        ephemeral=False,
        jobs_end_with_agent=False,
        free_bytes_min=FREE_BYTES_MIN,
        rotate_after="30d",
        look_every="5m",
    )
    return parser
