"""Required output files decide the end of an attempt; files over a limit of the server are tried again for a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.files.outputs import uploads
from switchyard.agent.files.records import FolderRecords, FolderStage
from switchyard.agent.site.site import FilesSite
from switchyard.errors import LimitReached, Unavailable
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import AttemptOutputs, JobFiles, OutputRoom, OutputState, RoomLimit
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.files.builders import WAIT_S, Site, wait_until

REQUIRED = JobFiles(out=["a", "b"], out_required=True)
SCRIPT = "echo 1 > a; head -c 5000 /dev/urandom > b"
SMALL = OutputRoom(project=RoomLimit(100, "over the limit"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(uploads, "ROOM_RETRY_S_MIN", 0.05)
    made = Site(tmp_path)
    yield made
    made.stop()


def is_live(site: Site, lease: Lease) -> bool:
    site.turn()
    attempt = site.journal.get((lease.job, lease.fence))
    return attempt is not None and attempt.is_live


def states(site: Site) -> list[OutputState]:
    return [told.state for told in site.objects.told]


def wait_for_delay(site: Site, lease: Lease) -> None:
    """The job is over and its upload was tried in vain."""
    count = len(site.objects.errors)
    wait_until(lambda: is_live(site, lease) and len(site.objects.errors) < count, "the upload is delayed")


def test_the_end_waits_for_required_files_also_over_a_restart(site: Site) -> None:
    site.objects.errors = [Unavailable("the store is away")] * 1000
    lease = site.lease(SCRIPT, REQUIRED)
    wait_for_delay(site, lease)
    assert all(report.seen is not ObservedState.SUCCEEDED for report in site.reports(lease))
    site.restart()
    wait_for_delay(site, lease)
    site.objects.errors = []
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    assert states(site)[-1] is OutputState.READY, "before the end was reported"
    wait_until(lambda: site.record(lease) is None, "the folder is removed")


def test_a_job_that_waits_for_its_files_can_be_cancelled(site: Site) -> None:
    site.objects.errors = [Unavailable("the store is away")] * 1000
    lease = site.lease(SCRIPT, REQUIRED)
    wait_for_delay(site, lease)
    site.journal.request_end([(lease.job, lease.fence)], cancel=True)
    end = site.end_of(lease)
    assert (end.seen, end.reason) == (ObservedState.CANCELLED, "cancelled while its output files were sent")
    site.objects.errors = []
    wait_until(lambda: states(site)[-1:] == [OutputState.READY], "the files are sent all the same")


def test_a_required_file_over_a_limit_fails_the_attempt_and_comes_later(site: Site) -> None:
    site.objects.room_left = SMALL
    lease = site.lease(SCRIPT, REQUIRED)
    end = site.end_of(lease)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.JOB)
    assert end.reason.startswith("output files could not be taken: b: over the limit; the agent tries again until")
    assert (site.objects.told[-1].files, site.objects.told[-1].missing) == (1, [])
    assert 0 < site.objects.told[-1].retry_s <= site.site.out_retry_s, "the server learns that more may come"
    site.objects.room_left = OutputRoom()
    wait_until(lambda: site.objects.told[-1].files == 2, "the rest is sent")
    assert site.objects.told[-1].retry_s == 0
    wait_until(lambda: site.record(lease) is None, "the folder is removed")


def test_files_over_a_limit_are_given_up_after_the_time_of_the_site(site: Site) -> None:
    site.site = FilesSite(out_retry="1s")
    site.restart()
    site.objects.room_left = SMALL
    lease = site.lease(SCRIPT, JobFiles(out=["*"]))
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    wait_until(lambda: states(site)[-1:] == [OutputState.READY], "what fits is sent")
    assert [text.split("; the agent")[0] for text in site.objects.told[-1].skipped] == ["b: over the limit"]
    wait_until(lambda: site.record(lease) is FolderStage.REMOVABLE, "the upload is given up")
    [kept] = FolderRecords(site.directory / "files" / "records").all()
    assert kept.remove_at_s - kept.ended_at_s >= uploads.FAILED_KEEP_S, "somebody may look for the file"
    assert (site.folder(lease) / "b").stat().st_size == 5000


def test_a_user_without_any_room_has_failed_outputs_until_there_is_room(site: Site) -> None:
    site.objects.errors = []
    site.objects.room_left = OutputRoom(user=RoomLimit(0, "over the limit"))
    refusal = LimitReached("the user is full")
    send = site.objects.send

    def refuse(*_: object) -> None:
        raise refusal

    site.objects.send = refuse  # type: ignore[method-assign, assignment]
    lease = site.lease(SCRIPT, JobFiles(out=["*"]))
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    wait_until(lambda: states(site)[-1:] == [OutputState.FAILED], "the failure is told")
    assert "the user is full; the agent tries again until" in site.objects.told[-1].error
    assert site.objects.told[-1].retry_s > 0
    site.objects.send = send  # type: ignore[method-assign]
    site.objects.room_left = OutputRoom()
    wait_until(lambda: states(site)[-1:] == [OutputState.READY], "sent after all")


def test_the_server_knows_of_files_that_wait_for_other_uploads(site: Site) -> None:
    is_open = threading.Event()
    send, errors = site.objects.send, [Unavailable("the server restarts")]

    def send_later(*args: Any) -> None:
        assert is_open.wait(WAIT_S)
        send(*args)

    tell = site.objects.tell

    def tell_after_an_error(outputs: AttemptOutputs) -> None:
        if outputs.job == leases[-1].job and errors:
            raise errors.pop()
        tell(outputs)

    site.objects.send = send_later  # type: ignore[method-assign, assignment]
    site.objects.tell = tell_after_an_error  # type: ignore[method-assign]
    leases = [site.lease(SCRIPT, JobFiles(out=["*"])) for _ in range(uploads.UPLOADS_AT_ONCE + 2)]
    for lease in leases:
        site.end_of(lease)
    jobs = {lease.job for lease in leases}
    try:
        wait_until(lambda: {told.job for told in site.objects.told} == jobs, "all are told")
        assert set(states(site)) == {OutputState.UPLOADING}
    finally:
        is_open.set()
    wait_until(lambda: states(site).count(OutputState.READY) == len(leases), "all are sent")
