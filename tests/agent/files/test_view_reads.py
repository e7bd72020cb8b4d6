"""A part of a file in a job's folder: what is read, what is refused, and how a file that changed is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.files.file_views import FilePart, FileViews, NotThere, NotViewable, read_part
from switchyard.agent.files.records import FolderRecord, FolderRecords, FolderStage
from switchyard.agent.files.transfer_threads import TransferThreads
from switchyard.agent.site.accounts import LocalAccount
from switchyard.model.files.file_views import VIEW_BYTES_MAX, FileAsk, ViewState
from tests.agent.files.builders import Objects, wait_until

JOB = "J" * 26


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "work").mkdir()
    return made


def read(folder: Path, before: FilePart | None = None, name: bytes = b"file") -> FilePart:
    """The part after the one before."""
    offset = 0 if before is None else before.offset + len(before.data)
    return read_part(folder, name, offset=offset, version="" if before is None else before.version)


def test_parts_follow_each_other_and_are_bounded(folder: Path) -> None:
    data = os.urandom(VIEW_BYTES_MAX + 10)
    (folder / "file").write_bytes(data)
    first = read(folder)
    second = read(folder, first)
    assert (len(first.data), first.data + second.data) == (VIEW_BYTES_MAX, data)
    assert (first.is_at_end, second.is_at_end, second.is_restarted) == (False, True, False)
    assert read(folder, second).data == b""


@pytest.mark.parametrize("change", ["cut", "rewritten", "replaced", "same bytes"])
def test_a_file_that_was_written_anew_begins_again(folder: Path, change: str) -> None:
    file = folder / "file"
    file.write_bytes(b"one\ntwo\n")
    before = read(folder)
    if change == "cut":
        file.write_bytes(b"one\n")
    elif change == "rewritten":  # the same inode, and longer than before
        file.write_bytes(b"other words, and more of them\n")
    else:
        (folder / "new").write_bytes(b"one\ntwo\n" if change == "same bytes" else b"other words, and more of them\n")
        (folder / "new").rename(file)
    after = read(folder, before)
    assert (after.is_restarted, after.offset, after.data) == (True, 0, file.read_bytes())
    assert not read(folder, after).is_restarted


def test_behind_the_end_nothing_is_known_of_the_file(folder: Path) -> None:
    (folder / "file").write_bytes(b"one\n")
    early = read_part(folder, b"file", offset=6, version="")
    assert (early.data, early.size, early.version) == (b"", 4, "")
    (folder / "file").write_bytes(b"one\ntwo\n")
    assert read_part(folder, b"file", offset=6, version=early.version).data == b"o\n"


def test_a_path_through_links_stays_in_the_folder(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_bytes(b"good")
    (folder.parent / "secret").write_bytes(b"not yours")
    for name, target in {
        "inside": "deep/file",
        "deep/up": "../inside",
        "out": "../secret",
        "deep/out": "../../secret",
        "absolute": str(folder.parent / "secret"),
        "sly": "deep/../../secret",
        "chain": "deep/out",
        "loop": "loop",
        "parent": "..",
    }.items():
        (folder / name).symlink_to(target)
    assert read(folder, name=b"inside").data == read(folder, name=b"deep/up").data == b"good"
    for bad in (b"out", b"deep/out", b"absolute", b"sly", b"chain", b"loop", b"parent/secret", b"../secret", b"deep"):
        with pytest.raises(NotViewable):
            read(folder, name=bad)
    for absent in (b"none", b"none/file"):
        with pytest.raises(NotThere):
            read(folder, name=absent)
    os.mkfifo(folder / "pipe")
    with pytest.raises(NotViewable, match="no plain file"):
        read(folder, name=b"pipe")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads files of other accounts")
def test_an_agent_of_root_reads_only_files_of_the_jobs_account(folder: Path) -> None:
    account = LocalAccount("job", 12345, 12345, "/")
    (folder / "file").write_bytes(b"of root")
    with pytest.raises(NotViewable, match="another account"):
        read_part(folder, b"file", offset=0, version="", account=account)
    os.chown(folder / "file", 12345, 12345)
    assert read_part(folder, b"file", offset=0, version="", account=account).data == b"of root"


def test_an_ask_is_answered_once_with_the_first_news_and_keeps_the_folder(folder: Path, tmp_path: Path) -> None:
    objects = Objects()
    records = FolderRecords(tmp_path / "records")
    threads = TransferThreads("view", 1, objects.connect)
    views = FileViews(records, transfers=lambda: threads)
    try:
        key = (JOB, 1)
        assert views.viewed_s(key) == 0, "nobody looks"
        ask = FileAsk(id="a-1", agent="x", cluster="y", job=JOB, fence=1, name=b"file", wait_s=30)
        views.ask([ask])
        views.ask([ask])  # two servers may hand over the same one
        assert views.viewed_s(key) > 0
        records.write(FolderRecord(job=JOB, fence=1, marker="m", folder=str(folder), stage=FolderStage.STAGED))
        (folder / "file").write_bytes(b"news")
        wait_until(lambda: objects.views, "the first answer")
        views.ask([FileAsk(id="a-2", agent="x", cluster="y", job=JOB, fence=2, name=b"file")])
        wait_until(lambda: len(objects.views) == 2, "the second answer")
        assert [(view.id, view.state, view.data) for view in objects.views] == [
            ("a-1", ViewState.SEEN, b"news"),
            ("a-2", ViewState.GONE, b""),
        ]
    finally:
        views.stop()
        threads.stop()


def test_nobody_looks_at_what_the_site_gave_to_the_job_also_by_a_link(tmp_path: Path) -> None:
    (tmp_path / ".switchyard").mkdir()
    (tmp_path / ".switchyard" / "env").write_text("export WORD=sesame")
    (tmp_path / "link").symlink_to(".switchyard/env")
    (tmp_path / "folder").symlink_to(".switchyard")
    for name in (b".switchyard/env", b"link", b"folder/env", b".//.switchyard/env"):
        with pytest.raises((NotViewable, NotThere)):
            read_part(tmp_path, name, offset=0, version="")
