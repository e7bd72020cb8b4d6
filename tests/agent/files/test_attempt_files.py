"""Jobs with files through the runner and the local backend: staged before the start, collected after the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.agent.backends import Status
from switchyard.agent.files import folder_removal
from switchyard.agent.files.inputs import stagings
from switchyard.agent.files.inputs.content_cache import ContentCache
from switchyard.agent.files.object_fetch import READ_TRIES
from switchyard.agent.files.outputs import uploads
from switchyard.agent.files.records import FolderRecords, FolderStage
from switchyard.agent.loop import runner
from switchyard.agent.server.client import ServerUnreachable
from switchyard.agent.site.site import FilesSite
from switchyard.errors import BadRequest, Unavailable, YardError
from switchyard.model.files.file_tree import CHUNK_BYTES, hash_of
from switchyard.model.files.files import JobFiles, OutputState
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease
from tests.agent.files.builders import Plain, Site, named_in_bytes, wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.objects.gate.set()
    made.stop()


def test_files_are_there_at_the_start_and_results_go_back(site: Site) -> None:
    root = site.objects.put_tree({"in.txt": b"word\n", "data": {"x": b"1"}})
    script = 'mkdir results && cat in.txt data/x > results/out && pwd > where && test "$SWITCHYARD_FILES" = "$PWD"'
    lease = site.lease(script, JobFiles(tree=root.hex(), out=["results/*", "where", "gone"]))
    end = site.end_of(lease)
    assert (end.seen, end.reason) == (ObservedState.SUCCEEDED, "")
    wait_until(lambda: len(site.objects.told) == 2, "the outputs are told")
    uploading, ready = site.objects.told
    assert (uploading.state, ready.state) == (OutputState.UPLOADING, OutputState.READY)
    assert ready.root is not None
    expected: Plain = {"results": {"out": b"word\n1"}, "where": f"{site.folder(lease)}\n".encode()}
    assert site.objects.content_of(bytes.fromhex(ready.root)) == named_in_bytes(expected)
    assert (ready.files, ready.missing) == (2, ["gone"])
    wait_until(lambda: not site.folder(lease).parent.exists() and site.record(lease) is None, "the folder is removed")


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", "exit 0"])
def test_required_output_turns_success_into_failure_and_leaves_other_ends(site: Site, script: str) -> None:
    lease = site.lease(f"echo 1 > a; {script}", JobFiles(out=["a", "b/*.csv", "c"], out_required=True))
    end = site.end_of(lease)
    assert end.seen is ObservedState.FAILED
    if script == "exit 0":
        assert end.reason == "it left no file for 'b/*.csv', 'c', which its output files must have"
        assert end.cause is Cause.JOB
    wait_until(lambda: [t.state for t in site.objects.told][-1:] == [OutputState.READY], "uploaded all the same")
    assert site.objects.told[-1].files == 1


def test_a_cancelled_job_that_began_gives_its_files(site: Site) -> None:
    lease = site.lease("echo partial > out; touch begun; sleep 600", JobFiles(out=["out"]))
    wait_until(lambda: (site.turn(), (site.folder(lease) / "begun").exists())[1], "it runs")
    site.journal.request_end([(lease.job, lease.fence)], cancel=True)
    assert site.end_of(lease).seen is ObservedState.CANCELLED
    wait_until(lambda: site.objects.told and site.objects.told[-1].state is OutputState.READY, "uploaded")
    assert site.objects.told[-1].files == 1


def test_staging_is_visible_and_can_be_cancelled_or_stopped_and_holds_nobody(site: Site) -> None:
    slow = site.objects.put_tree({"x": b"1"})
    site.objects.gate.clear()
    waiting = [site.lease("true", JobFiles(tree=slow.hex(), out=["*"])) for _ in range(2)]
    quick = site.lease("true", JobFiles(out=["*"]))
    assert site.end_of(quick).seen is ObservedState.SUCCEEDED
    wait_until(lambda: (site.turn(), all(site.reports(lease) for lease in waiting))[1], "staging is reported")
    assert [(r.seen, r.reason) for r in site.reports(waiting[0])] == [(ObservedState.SUBMITTED, "staging files")]
    site.journal.request_end([(waiting[0].job, 1)], cancel=True)
    site.journal.request_end([(waiting[1].job, 1)], stop=True)
    end = site.end_of(waiting[0])
    assert (end.seen, end.reason) == (ObservedState.CANCELLED, "cancelled before it started")
    site.objects.gate.set()
    for lease in waiting:
        wait_until(lambda lease=lease: site.record(lease) is None, "the record is removed")
        assert not site.folder(lease).parent.exists()
    wait_until(lambda: len(site.objects.told) == 2, "the other job's outputs")
    assert {told.job for told in site.objects.told} == {quick.job}


def test_trouble_is_tried_again_and_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "REPORT_EVERY_S", 0.0)
    root = site.objects.put_tree({"x": b"1"})
    site.objects.errors = [Unavailable("the store is away"), ServerUnreachable("the server is away")] * 100
    lease = site.lease("cat x", JobFiles(tree=root.hex()))

    def is_told() -> bool:
        site.turn()
        return any("is away" in report.reason for report in site.reports(lease))

    wait_until(is_told, "the trouble is reported")
    site.objects.errors = []
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED


@pytest.mark.parametrize(
    ("error", "words"),
    [(BadRequest("no such tree"), "no such tree"), (Unavailable("the store is away"), "the store is away")],
)
def test_a_final_failure_of_staging_is_the_clusters_fault(site: Site, error: YardError, words: str) -> None:
    site.files.stop()
    site.patience_s = 0.0
    site.restart()
    root = site.objects.put_tree({"x": b"1"})
    site.objects.errors = [error] * 2 * READ_TRIES
    lease = site.lease("true", JobFiles(tree=root.hex(), out=["*"]))
    end = site.end_of(lease)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER)
    assert end.reason == f"its files could not be staged: {words}"
    wait_until(lambda: site.record(lease) is None and not site.folder(lease).parent.exists(), "cleaned")
    assert site.objects.told == []


def test_a_lost_object_is_asked_for_alone_and_named_in_every_report(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(stagings, "RETRY_S_MAX", 0.01)
    first, lost = (letter * CHUNK_BYTES for letter in (b"a", b"b"))
    root = site.objects.put_tree({"deep": {"large": first + lost}})
    del site.objects.stored[hash_of(lost)]
    lease = site.lease("cat deep/large > out", JobFiles(tree=root.hex(), out=["out"]))
    wait_until(lambda: (site.turn(), site.objects.reads.count(hash_of(lost)) > 5)[1], "it is asked for again")
    wait_until(lambda: (site.turn(), site.reports(lease))[1], "it is told")
    name = hash_of(lost).hex()[:12]
    for report in site.reports(lease):
        assert f"the object {name} of 'deep/large' is missing from the store; send the files" in report.reason
    assert site.objects.reads.count(hash_of(first)) == 1, "what is not lost is not fetched again and again"
    site.objects.put(lost)
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED


def test_a_full_disk_is_told_in_words(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from switchyard.agent.files.inputs import stage_in

    root = site.objects.put_tree({"x": b"1"})
    write = stage_in.write_at
    tries: list[int] = []

    def write_or_not(number: int, data: bytes, offset: int) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(number, data, offset)

    monkeypatch.setattr(stage_in, "write_at", write_or_not)
    lease = site.lease("cat x", JobFiles(tree=root.hex()))
    wait_until(lambda: (site.turn(), site.reports(lease))[1], "the trouble is reported")
    assert "the agent's disk is full: No space left on device" in site.reports(lease)[0].reason
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED


def test_a_restart_stages_a_half_written_folder_again(site: Site) -> None:
    root = site.objects.put_tree({"x": b"1"})
    site.objects.gate.clear()
    lease = site.lease("cat x > out; ls > names", JobFiles(tree=root.hex(), out=["out", "names"]))
    wait_until(lambda: (site.turn(), site.folder(lease).exists())[1], "the staging begins")
    (site.folder(lease) / "half").write_bytes(b"of an earlier process")
    site.restart()
    site.objects.gate.set()
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    wait_until(lambda: site.objects.told and site.objects.told[-1].state is OutputState.READY, "uploaded")
    root_out = site.objects.told[-1].root
    assert root_out is not None
    assert site.objects.content_of(bytes.fromhex(root_out)) == {b"out": b"1", b"names": b"names\nout\nx\n"}


def test_a_restart_goes_on_with_an_upload_and_removes_what_nobody_wants(site: Site) -> None:
    site.objects.errors = [ServerUnreachable("away")] * 1000
    lease = site.lease("echo 1 > out", JobFiles(out=["out"]))
    site.end_of(lease)
    wait_until(lambda: site.record(lease) is FolderStage.ENDED, "the record of the end")
    site.restart()
    site.objects.errors = []
    wait_until(lambda: site.objects.told and site.objects.told[-1].state is OutputState.READY, "uploaded")
    wait_until(lambda: site.record(lease) is None, "removed")
    orphan = site.lease("true", JobFiles(out=["out"]))
    site.objects.gate.clear()
    wait_until(lambda: (site.turn(), site.record(orphan))[1] is not None, "staged")
    site.journal.request_end([(orphan.job, 1)], stop=True)
    site.restart()
    wait_until(lambda: (site.turn(), site.record(orphan))[1] is None, "removed")


def test_a_refused_upload_is_told_and_its_folder_kept_for_a_while(site: Site) -> None:
    lease = site.lease("echo 1 > out", JobFiles(out=["out"]))
    refused = BadRequest("the project has no room for more files")
    site.objects.errors = [refused]
    site.end_of(lease)
    wait_until(lambda: site.objects.told and site.objects.told[-1].state is OutputState.FAILED, "told")
    assert site.objects.told[-1].error == refused.detail
    wait_until(lambda: site.record(lease) is FolderStage.REMOVABLE, "kept")
    assert (site.folder(lease) / "out").read_bytes() == b"1\n"


@pytest.mark.parametrize(
    ("then", "why"),
    [("true", "No such file"), ('ln -s /etc "$d"', "Not a directory"), ('echo > "$d"', "Not a directory")],
)
def test_a_job_that_removed_its_folder_has_no_outputs(site: Site, then: str, why: str) -> None:
    script = f'd=$SWITCHYARD_FILES; cd / && rm -rf "$d"; {then}'
    lease = site.lease(script, JobFiles(out=["out"], out_required=True))
    assert site.end_of(lease).seen is ObservedState.FAILED
    wait_until(lambda: site.objects.told and site.objects.told[-1].state is OutputState.FAILED, "told")
    assert f"cannot read the job's folder: {why}" in site.objects.told[-1].error


def test_the_site_keeps_folders_as_long_as_it_says(site: Site) -> None:
    site.site = FilesSite(keep="1h")
    site.restart()
    lease = site.lease("echo 1 > out; mkdir closed; touch closed/x; chmod 0 closed", JobFiles(out=["out"]))
    site.end_of(lease)
    wait_until(lambda: site.record(lease) is FolderStage.REMOVABLE, "kept")
    assert site.folder(lease).is_dir()
    site.site = FilesSite()
    record = FolderRecords(site.directory / "files" / "records")
    [kept] = record.all()
    record.write(type(kept)(**{**{f: getattr(kept, f) for f in kept.__struct_fields__}, "remove_at_s": 1.0}))
    site.restart()
    wait_until(lambda: not site.folder(lease).parent.exists(), "removed after its time")


def test_a_folder_that_could_not_be_removed_is_tried_again_later_and_at_the_next_start(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def fail(folder: Path) -> bool:
        calls.append(folder)
        return False

    monkeypatch.setattr(uploads, "REMOVAL_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(uploads, "remove_folder", fail)
    lease = site.lease("echo 1 > out", JobFiles(out=["out"]))
    site.end_of(lease)
    wait_until(lambda: len(calls) > 2, "it is tried again")
    assert site.record(lease) is FolderStage.REMOVABLE, "the next start finds the record"
    monkeypatch.setattr(uploads, "remove_folder", folder_removal.remove_folder)
    site.restart()
    wait_until(lambda: site.record(lease) is None, "removed at the next start")
    assert not site.folder(lease).parent.exists()


def test_a_given_cwd_wins_and_files_are_found_by_the_variable(site: Site, tmp_path: Path) -> None:
    root = site.objects.put_tree({"x": b"1"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = 'cat "$SWITCHYARD_FILES/x" > here && pwd > "$SWITCHYARD_FILES/out"'
    lease = site.lease(script, JobFiles(tree=root.hex(), out=["out"]), cwd=str(elsewhere))
    assert site.end_of(lease).seen is ObservedState.SUCCEEDED
    assert (elsewhere / "here").read_bytes() == b"1"


def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(Unavailable, match="The cache of files cannot be kept in"):
        ContentCache(tmp_path / "cache", 100)


def test_collect_leaves_a_job_without_files_alone(site: Site) -> None:
    lease = a_lease("true")
    [attempt] = site.journal.take([lease])
    status = Status(seen=ObservedState.SUCCEEDED, exit_code=0)
    assert site.files.collect(attempt, status) is status
    assert site.files.prepare(attempt).is_ready
