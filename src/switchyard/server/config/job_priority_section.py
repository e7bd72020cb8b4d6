"""The `job_priority` section of the config file: the priorities that users may give their jobs."""

from __future__ import annotations

from msgspec import Struct

from switchyard.model.job.job import Priority
from switchyard.policy.kinds.job_priority import HIGHEST_DEFAULT, LOWEST_DEFAULT


class JobPrioritySection(Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest and the highest priority of a job. Rules set others for a domain or a project."""

    lowest: Priority = LOWEST_DEFAULT
    highest: Priority = HIGHEST_DEFAULT
