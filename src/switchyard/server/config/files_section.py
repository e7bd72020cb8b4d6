"""The config section `files`: how much of jobs' files is kept, and for how long."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.jobspec.quantity import DURATION_S_MAX, parse_bytes, parse_duration_s
from switchyard.server.config.limits_section import ByteLimit
from switchyard.service.core.file_storage import FileLimits

GRACE_S_MIN = 60  # a client must be able to send files and then submit; a seal has half of it
KeepPeriod = Annotated[int, Meta(ge=0, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)]


class FilesSection(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Bytes: 0 is no limit. `keep`: the files of a job from its end on (0 or never: as long as the job)."""

    user_bytes: ByteLimit = "100Gi"  # of all objects that one user holds, each counted once, unused uploads too
    project_bytes: ByteLimit = "1Ti"  # of the trees that the jobs of a project need, each counted once
    tree_bytes: ByteLimit = "100Gi"  # of the files of one tree
    keep: KeepPeriod = "14d"
    grace: KeepPeriod = "24h"  # what no job needs, from its last use on

    def __post_init__(self) -> None:
        for name in ("user_bytes", "project_bytes", "tree_bytes"):
            parse_bytes(getattr(self, name))
        if self.keep not in (0, "0", "never"):
            parse_duration_s(self.keep)
        if parse_duration_s(self.grace) < GRACE_S_MIN:
            raise ValueError(
                f"the grace is at least {GRACE_S_MIN} seconds: files are sent before the job that needs them"
            )

    @cached_property
    def limits(self) -> FileLimits:
        keep_us = None if self.keep in (0, "0", "never") else parse_duration_s(self.keep) * 1_000_000
        return FileLimits(
            parse_bytes(self.user_bytes),
            parse_bytes(self.project_bytes),
            parse_bytes(self.tree_bytes),
            keep_us,
            parse_duration_s(self.grace) * 1_000_000,
        )
