"""What the agent records of one submit to Flux."""

from __future__ import annotations

import msgspec

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.submissions import Submission
from switchyard.features.flux.agent.follow.job_ids import handle_of
from switchyard.model.cluster.poll import Lease


class FluxSubmission(Submission, frozen=True, omit_defaults=True, kw_only=True):
    """One submit: an attempt, or a range of an array's tasks. Each task is a job of Flux, named by its own marker."""

    key: str = ""  # random: of this submit. Empty in records of older agents, whose jobs have no claim
    job_ids: dict[str, int] = msgspec.field(default_factory=dict)  # fence of a task → its job id, once Flux told it

    @property
    def name(self) -> str:
        """Of this submit alone: some tasks of a range in doubt may be submitted again while others of it run."""
        return f"{marker_of(self.lease)}.{self.key}" if self.key else marker_of(self.lease)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.name

    def handle(self, lease: Lease) -> str | None:
        """The native id of a task; None: it is not known."""
        number = self.job_ids.get(str(lease.fence))
        return None if number is None else handle_of(number, marker_of(lease))


def task_name(what: str, lease: Lease) -> str:
    """A file or folder of the attempt. Each task of an array has its own."""
    return what if lease.lo is None else f"{what}.{lease.lo}"
