"""Asks squeue for our jobs, in rows that nobody else can have written."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

from switchyard.agent.backends.slurm import command_lines
from switchyard.agent.backends.slurm.command_runner import CommandRunner
from switchyard.agent.backends.slurm.parse import SlurmJobRow, read_squeue

SQUEUE_NAMES_MAX = 50  # in one question to squeue: they are words of a command


def ask_squeue(
    caller: CommandRunner, users: Sequence[str], names: Collection[str], *, job: str = ""
) -> list[SlurmJobRow]:
    """Return the rows of the jobs with these names. `job`: the number of all of them, if they have only one."""
    mark = secrets.token_hex(8)
    if job and (said := caller.call(command_lines.squeue(users, mark=mark, names=names, job=job))).code == 0:
        return list(read_squeue(said.text, names, mark=mark))
    # squeue fails for a number that the controller does not know, in words that differ: then ask for the whole list.
    # The controller remembers thousands of ended jobs; a few names are selected there, many are selected here.
    words = command_lines.squeue(users, mark=mark, names=names if len(names) <= SQUEUE_NAMES_MAX else ())
    return list(read_squeue(caller.ask(words), names, mark=mark))
