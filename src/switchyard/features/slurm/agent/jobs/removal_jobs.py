"""Small Slurm jobs that remove the containers which killed jobs left on a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.script_images import REMOVED_NOTE, remove_function
from switchyard.agent.site.accounts import LocalAccount, find_account
from switchyard.agent.site.site import Site
from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import JOB_NAME_PREFIX, split_handle
from switchyard.features.slurm.agent.commands.script_notes import task_file
from switchyard.features.slurm.agent.commands.squeue import ask_squeue
from switchyard.features.slurm.agent.jobs.submitted_scripts import SubmittedScript
from switchyard.features.slurm.agent.slurm_site import slurm_of

# Not JOB_NAME_PREFIX, which the names of users' jobs have.
REMOVAL_NAME_PREFIX = "yard.rm-"
ERROR_CHARS_MAX = 300
SCRIPT_TEMPLATE = """\
#!/bin/sh
{remove}
folder={folder}
{calls}
"""


@dataclass(frozen=True, slots=True)
class RemovalJobs:
    caller: CommandRunner
    site: Site
    as_account: Callable[[LocalAccount | None, list[str]], list[str]]  # a command that runs under another account

    def submit(self, submitted: SubmittedScript, handles: Sequence[str], node: str, folder: str) -> None:
        """Send one job for these tasks to their node, unless it is in the queue. Raises if that is not sure."""
        lease, slurm = submitted.lease, slurm_of(self.site)
        first = container_name(submitted, handles[0]).removeprefix(JOB_NAME_PREFIX)
        name = f"{REMOVAL_NAME_PREFIX}{first}.{len(handles)}.{node}"
        partition = lease.native_queue or self.site.queues.get(lease.queue, "")
        words = command_lines.sbatch_on_node(lease, name, node, partition=partition, account=slurm.account)
        users = [submitted.account] if submitted.account else []
        if any(not row.facts.is_over for row in ask_squeue(self.caller, users, [name])):
            return
        account = find_account(submitted.account) if submitted.account else None
        result = self.caller.call(self.as_account(account, words), stdin=removal_script(submitted, handles, folder))
        if result.code != 0:
            raise Unavailable(f"sbatch failed ({result.code}): {result.err.strip()[:ERROR_CHARS_MAX]}")


def removal_script(submitted: SubmittedScript, handles: Sequence[str], folder: str) -> bytes:
    """Removes the containers of these tasks, and leaves the note of each in their folder. Pure."""
    calls = (
        f"container=$(remove {quote(container_name(submitted, handle))}) &&"
        f' printf \'%s\\n\' "$container" >"$folder"/{quote(task_file(handle, REMOVED_NOTE))}'
        for handle in handles
    )
    text = SCRIPT_TEMPLATE.format(
        remove=remove_function(submitted.container), folder=quote(folder), calls="\n".join(calls)
    )
    return text.encode("utf-8", "surrogateescape")


def container_name(submitted: SubmittedScript, handle: str) -> str:
    """The name of a task's container: the marker of its attempt."""
    return marker_of(submitted.lease_under(submitted.fence_of(split_handle(handle)[0])))
