"""Asks squeue for our jobs, in rows that no other user can forge."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import SlurmJobRow, read_squeue

SQUEUE_NAMES_MAX = 50  # in one command line


def ask_squeue(
    caller: CommandRunner, users: Sequence[str], names: Collection[str], *, job: str = ""
) -> list[SlurmJobRow]:
    """Return the rows of jobs with these names. `job`: their number, if they all have the same."""
    mark = secrets.token_hex(8)
    if job and (result := caller.call(command_lines.squeue(users, mark=mark, names=names, job=job))).code == 0:
        return list(read_squeue(result.text, names, mark=mark))
    # squeue fails for an unknown number, with varying messages: then ask for the whole list.
    # The controller lists thousands of ended jobs: let it select a few names, but select many names here.
    words = command_lines.squeue(users, mark=mark, names=names if len(names) <= SQUEUE_NAMES_MAX else ())
    return list(read_squeue(caller.ask(words), names, mark=mark))
