"""What the claims of submissions tell: whether a job's command has begun, also on a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.submit.claims import StartClaims
from switchyard.features.flux.agent.submit.submissions import FluxSubmission
from tests.agent.builders import a_lease

LEASE = a_lease("true")
RECORD = FluxSubmission(LEASE, key="k")


@pytest.fixture
def claims(tmp_path: Path) -> StartClaims:
    files = SharedFiles(tmp_path)
    files.make(RECORD.folder, None, [])
    return StartClaims(files)


def test_a_job_is_withdrawn_before_it_begins_and_not_after(claims: StartClaims) -> None:
    assert claims.begun_job(RECORD, LEASE) is None
    assert claims.withdraw(RECORD, LEASE)
    assert claims.withdraw(RECORD, LEASE), "a second time, too"
    assert (claims.is_withdrawn(RECORD, LEASE), claims.begun_job(RECORD, LEASE)) == (True, None)


def test_a_job_that_has_begun_is_not_withdrawn(claims: StartClaims) -> None:
    claims.path(RECORD, LEASE).symlink_to("f2hQoKxb1")
    assert not claims.withdraw(RECORD, LEASE)
    assert not claims.never_began(RECORD, LEASE)
    assert not claims.is_withdrawn(RECORD, LEASE)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_full_disk_hides_no_claim(claims: StartClaims, monkeypatch: pytest.MonkeyPatch, has_begun: bool) -> None:
    if has_begun:
        claims.path(RECORD, LEASE).symlink_to("f2hQoKxb1")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", fail)
    assert claims.never_began(RECORD, LEASE) is not has_begun
    with pytest.raises(Unavailable, match="No space left"):
        claims.withdraw(RECORD, LEASE)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_folder_that_is_none_tells_nothing(claims: StartClaims, is_gone: bool) -> None:
    """A folder that is gone may be on a file system that is not mounted here, and a node may start the job in it."""
    folder = claims.path(RECORD, LEASE).parent
    folder.rmdir()
    if not is_gone:
        folder.touch()
    assert claims.has_folder(RECORD) is not is_gone
    with pytest.raises(Unavailable, match="not known"):
        claims.never_began(RECORD, LEASE)
    with pytest.raises(Unavailable, match="cannot be withdrawn"):
        claims.withdraw(RECORD, LEASE)
