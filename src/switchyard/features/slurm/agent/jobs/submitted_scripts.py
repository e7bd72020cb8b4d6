"""What the agent records of one sbatch, and how the tasks of a Slurm job are numbered."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from switchyard.agent.backends.shared.submissions import Submission
from switchyard.features.slurm.agent.commands.parse import handle_of
from switchyard.model.cluster.poll import Lease


class SubmittedScript(Submission, frozen=True, omit_defaults=True, kw_only=True):
    """One sbatch: an attempt, or a range of an array's tasks. The job's name is the marker of the first task."""

    base: int = 0  # the index of Slurm's task 0
    account: str = ""  # the account of the job; empty: the agent's
    native: str = ""  # the job's number, once sbatch printed it
    container: str = ""  # podman or docker, if the job runs in a container that may outlive the Slurm job

    def fence_of(self, native: str) -> int:
        """The fence of the task with this native id."""
        task = native.partition("_")[2]
        return self.lease.fence + (int(task) + self.base - (self.lease.lo or 0) if task else 0)

    def native_of(self, native: str, lease: Lease) -> str:
        """The native id of a task of the job with this number."""
        return native if lease.lo is None else f"{native}_{lease.lo - self.base}"

    def handle(self, lease: Lease) -> str | None:
        return handle_of(self.native_of(self.native, lease), self.name) if self.native else None


def merge_leases(leases: Iterable[Lease]) -> Lease:
    """Merge the leases of neighbouring tasks into one."""
    ordered = list(leases)
    return replace(ordered[0], hi=ordered[-1].hi)
