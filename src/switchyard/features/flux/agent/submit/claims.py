"""Reads and makes the claims of submissions, which tell whether a job's command has begun (`start_guard.py`).

A folder that is not there tells nothing: its file system may not be mounted here, and the nodes see it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.follow.job_ids import parse_job_id
from switchyard.features.flux.agent.submit.start_guard import AGAIN_SUFFIX, UNENTERED_SUFFIX, WITHDRAWN
from switchyard.features.flux.agent.submit.submissions import FluxSubmission, task_name
from switchyard.model.cluster.poll import Lease

UNKNOWN_JOB = 0  # an id that no job has: of a job that ran and that Flux has purged


class StartClaims:
    """All methods raise Unavailable if the folder is not there, or cannot be read or written."""

    def __init__(self, files: SharedFiles) -> None:
        self._files = files

    def path(self, record: FluxSubmission, lease: Lease) -> Path:
        return Path(self._files.folder(record.folder)) / task_name("started", lease)

    def has_folder(self, record: FluxSubmission) -> bool:
        """Whether the folder of the submission is there. It is made before the submit, and removed with the record."""
        try:
            os.lstat(self._files.folder(record.folder))
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise Unavailable(f"The folder of {record.name} cannot be seen: {exc.strerror}.") from exc
        return True

    def begun_job(self, record: FluxSubmission, lease: Lease) -> int | None:
        """The id of the job that has begun this attempt; None: none has."""
        if not record.key:
            output = Path(self._files.folder(record.folder)) / task_name("stdout", lease)
            return UNKNOWN_JOB if output.exists() else None
        text = self._read(record, lease)
        return None if text in ("", WITHDRAWN) else parse_job_id(text) or UNKNOWN_JOB

    def is_withdrawn(self, record: FluxSubmission, lease: Lease) -> bool:
        return self._read(record, lease) == WITHDRAWN

    def withdraw(self, record: FluxSubmission, lease: Lease) -> bool:
        """Keep a submission from starting; False: it has started."""
        if not record.key:
            return True
        try:
            self.path(record, lease).symlink_to(WITHDRAWN)
        except FileExistsError:
            return self.begun_job(record, lease) is None
        except OSError as exc:
            raise Unavailable(f"{marker_of(lease)} cannot be withdrawn: {exc.strerror}.") from exc
        return True

    def never_began(self, record: FluxSubmission, lease: Lease) -> bool:
        """Whether a job that is over at the cluster left no claim. It is withdrawn, too, if the disk has room."""
        with contextlib.suppress(Unavailable):
            return self.withdraw(record, lease)
        return self.begun_job(record, lease) is None

    def is_second_start(self, record: FluxSubmission, lease: Lease) -> bool:
        """Whether Flux has started the job again after its command had begun."""
        return self._has_mark(record, lease, AGAIN_SUFFIX)

    def is_unentered(self, record: FluxSubmission, lease: Lease) -> bool:
        """Whether a start could not enter the working directory of the job."""
        return self._has_mark(record, lease, UNENTERED_SUFFIX)

    def has_task(self, record: FluxSubmission, lease: Lease) -> bool:
        """Whether a task of the job has made its own link, after which the command begins."""
        claim = self.path(record, lease)
        try:
            names = os.listdir(claim.parent)  # noqa: PTH208 - an array has thousands of names
        except OSError as exc:
            raise Unavailable(f"It is not known whether {marker_of(lease)} has begun: {exc.strerror}.") from exc
        return any(name.startswith(f"{claim.name}.") and name.rpartition(".")[2].isdecimal() for name in names)

    def _has_mark(self, record: FluxSubmission, lease: Lease, suffix: str) -> bool:
        claim = self.path(record, lease)
        return os.path.lexists(claim.with_name(claim.name + suffix))

    def _read(self, record: FluxSubmission, lease: Lease) -> str:
        """The claim's text; empty: there is no claim."""
        try:
            return str(self.path(record, lease).readlink())
        except FileNotFoundError as exc:
            if self.has_folder(record):
                return ""
            raise Unavailable(f"It is not known whether {marker_of(lease)} has begun: its folder is gone.") from exc
        except OSError as exc:
            raise Unavailable(f"It is not known whether {marker_of(lease)} has begun: {exc.strerror}.") from exc
