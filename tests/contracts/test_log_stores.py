"""What every log store must do: in SQLite, in PostgreSQL, in a directory. Byte n of a stream is n modulo 251."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import Unavailable
from switchyard.model.job.log import LogPiece, LogWindow, Stream
from switchyard.service.core.log_store import LogStore
from switchyard.store.engine.database import Database
from switchyard.store.files.database_logs import DatabaseLogs
from switchyard.store.files.directory_logs import DirectoryLogs
from tests.store import prepared

JOB, OTHER = "0" * 26, "1" * 26
OUT = Stream(JOB, 1, "stdout")
KIB, MIB = 2**10, 2**20
ALL = 2**40


def text(lo: int, hi: int) -> bytes:
    return (bytes(range(251)) * ((hi - lo) // 251 + 2))[lo % 251 :][: hi - lo]


class Logs:
    """A log store and the transactions it is used in."""

    def __init__(self, store: LogStore, transaction: Callable[[], Any]) -> None:
        self.store = store
        self._transaction = transaction
        self.told = 0  # bytes that the store says it keeps

    def put(self, *pieces: tuple[int, int], stream: Stream = OUT) -> None:
        with self._transaction() as tx:
            self.told += self.store.keep(tx, [LogPiece(stream, lo, text(lo, hi)) for lo, hi in pieces]).total()

    def read(self, offset: int = 0, *, stream: Stream = OUT, bytes_max: int = ALL) -> list[tuple[int, bytes]]:
        with self._transaction() as tx:
            return self.store.read(tx, stream, offset, bytes_max=bytes_max)[0]

    def size(self, stream: Stream = OUT) -> int:
        with self._transaction() as tx:
            return self.store.read(tx, stream, 0, bytes_max=1)[1]

    def remove(self, *jobs: str) -> None:
        with self._transaction() as tx:
            self.told -= self.store.remove(tx, jobs).total()

    def spans(self, offset: int = 0, stream: Stream = OUT) -> list[tuple[int, int]]:
        """What is there, neighbours joined; every byte is checked, and that none comes twice or out of order."""
        joined: list[tuple[int, int]] = []
        reached = offset
        for at, data in self.read(offset, stream=stream):
            assert at >= reached, "in order, nothing twice"
            assert data == text(at, at + len(data)), "the right bytes"
            reached = at + len(data)
            if joined and joined[-1][1] == at:
                joined[-1] = (joined[-1][0], reached)
            else:
                joined.append((at, reached))
        return joined


@contextmanager
def no_transaction() -> Iterator[None]:
    yield None


@pytest.fixture(params=["sqlite", "postgresql", "directory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Logs]]:
    """A log store with a bound."""
    if request.param == "directory":
        yield lambda bytes_max=4 * MIB: Logs(DirectoryLogs(tmp_path / "logs", LogWindow(bytes_max)), no_transaction)
        return
    with closing(Database(prepared.a_url(request.param, request, tmp_path))) as database:
        yield lambda bytes_max=4 * MIB: Logs(DatabaseLogs(LogWindow(bytes_max)), database.write)


@pytest.fixture
def logs(make: Callable[..., Logs]) -> Logs:
    return make()


def test_nothing_was_written(logs: Logs) -> None:
    assert (logs.read(), logs.size()) == ([], 0)
    logs.put()
    logs.put((0, 0))
    assert (logs.read(), logs.size()) == ([], 0)


def test_pieces_come_back_as_one_stream(logs: Logs) -> None:
    logs.put((0, 10), (10, 15))
    logs.put((15, 400))
    assert logs.spans() == [(0, 400)]
    assert logs.size() == 400


def test_a_piece_twice_is_kept_once(logs: Logs) -> None:
    for _ in range(3):
        logs.put((0, 100), (0, 100), (100, 300))
    assert logs.spans() == [(0, 300)]


def test_pieces_out_of_order_find_their_place(logs: Logs) -> None:
    logs.put((200, 300))
    assert logs.spans() == [(200, 300)]
    logs.put((0, 100))
    assert logs.spans() == [(0, 100), (200, 300)]
    logs.put((100, 200))
    assert logs.spans() == [(0, 300)]


@pytest.mark.parametrize("again", [(0, 50), (50, 150), (90, 110), (0, 1000), (100, 101), (99, 200), (0, 100)])
def test_the_same_bytes_with_other_boundaries(logs: Logs, again: tuple[int, int]) -> None:
    logs.put((0, 100), (120, 130))
    logs.put(again)
    held = set(range(100)) | set(range(120, 130)) | set(range(*again))
    assert {n for lo, hi in logs.spans() for n in range(lo, hi)} == held


def test_streams_attempts_and_jobs_are_apart(logs: Logs) -> None:
    others = [Stream(JOB, 1, "stderr"), Stream(JOB, 2, "stdout"), Stream(OTHER, 1, "stdout")]
    logs.put((0, 10))
    for number, stream in enumerate(others):
        logs.put((0, 20 + number), stream=stream)
    assert logs.spans() == [(0, 10)]
    assert [logs.size(stream) for stream in others] == [20, 21, 22]


def test_binary_noise_is_not_changed(logs: Logs) -> None:
    noise = random.Random(7).randbytes(100_000)
    with logs._transaction() as tx:
        logs.store.keep(tx, [LogPiece(OUT, 0, noise[:33_333])])
        logs.store.keep(tx, [LogPiece(OUT, 33_333, noise[33_333:])])
    assert b"".join(data for _, data in logs.read()) == noise


def test_a_reader_goes_on_from_any_offset(logs: Logs) -> None:
    logs.put((0, 1000), (2000, 3000))
    for offset in (0, 1, 999, 1000, 1500, 2000, 2999):
        expected = [(lo, hi) for lo, hi in ((max(0, offset), 1000), (max(2000, offset), 3000)) if lo < hi]
        assert logs.spans(offset) == expected
    assert logs.read(3000) == []
    assert logs.read(2**62) == []


def test_an_answer_is_bounded_and_the_next_one_goes_on(logs: Logs) -> None:
    logs.put((0, 300_000))
    offset, count = 0, 0
    while part := logs.read(offset, bytes_max=70_000):
        assert part[0][0] == offset
        assert sum(len(data) for _, data in part) <= 70_000
        offset = part[-1][0] + len(part[-1][1])
        count += 1
    assert (offset, count) == (300_000, 5)


def test_many_small_pieces_do_not_become_as_many_parts(logs: Logs) -> None:
    for number in range(300):
        logs.put((number * 20, number * 20 + 20))
    assert logs.spans() == [(0, 6000)]
    assert len(logs.read()) < 10


def test_of_a_long_stream_its_first_and_last_half_are_kept(make: Callable[..., Logs]) -> None:
    logs = make(64 * KIB)
    end = 1000 * KIB
    for offset in range(0, end, 10 * KIB):
        logs.put((offset, offset + 10 * KIB))
    head, tail = logs.spans()
    assert head == (0, 32 * KIB)
    assert tail[1] == end
    assert 32 * KIB <= tail[1] - tail[0] <= 48 * KIB, "at most one block over the bound"
    assert logs.size() == end


def test_one_piece_over_the_bound(make: Callable[..., Logs]) -> None:
    logs = make(8 * KIB)
    logs.put((0, 100 * KIB))
    assert logs.spans() == [(0, 4 * KIB), (96 * KIB, 100 * KIB)]


def test_what_lies_before_the_tail_is_not_taken_any_more(make: Callable[..., Logs]) -> None:
    logs = make(8 * KIB)
    logs.put((0, KIB), (100 * KIB, 101 * KIB))
    logs.put((50 * KIB, 51 * KIB), (KIB, 2 * KIB), (99 * KIB, 100 * KIB))
    assert logs.spans() == [(0, 2 * KIB), (99 * KIB, 101 * KIB)]


def test_a_piece_at_the_end_of_the_world(logs: Logs) -> None:
    logs.put((2**62 - 10, 2**62))
    logs.put((0, 10))
    assert logs.spans() == [(0, 10), (2**62 - 10, 2**62)]


def test_a_job_is_forgotten_and_no_other(logs: Logs) -> None:
    mine, others = [Stream(JOB, 2, "stderr"), OUT], Stream(OTHER, 1, "stdout")
    for stream in (*mine, others):
        logs.put((0, 10), stream=stream)
    logs.remove(JOB)
    logs.remove()
    assert [logs.size(stream) for stream in (*mine, others)] == [0, 0, 10]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_in_whatever_order(make: Callable[..., Logs], seed: int) -> None:
    chance = random.Random(seed)
    bound = chance.choice([KIB, 10 * KIB, 100 * KIB])
    logs, end = make(bound), chance.choice([bound // 2, bound, 5 * bound])
    cuts = sorted({0, end, *(chance.randrange(end) for _ in range(40))})
    pieces = list(pairwise(cuts))
    pieces += [(lo, lo + chance.randrange(1, end - lo + 1)) for lo in (chance.randrange(end) for _ in range(10))]
    chance.shuffle(pieces)
    while pieces:
        some, pieces = pieces[:5], pieces[5:]
        logs.put(*some)
        logs.spans()
    spans = logs.spans()
    assert spans[0][0] == 0
    assert (0, min(end, bound // 2)) == (0, min(spans[0][1], bound // 2)), "the head is whole"
    assert spans[-1][1] == end
    kept = sum(hi - lo for lo, hi in spans)
    assert kept <= bound + bound // 8 + 1 or kept == end
    if end <= bound:
        assert spans == [(0, end)], "what is within the bound is whole"


# --- the directory alone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def in_folder(folder: Path, bytes_max: int = 4 * MIB) -> Logs:
    return Logs(DirectoryLogs(folder, LogWindow(bytes_max)), no_transaction)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_file_cut_short_by_a_crash_is_a_shorter_run_and_is_filled_again(folder: Path) -> None:
    logs = in_folder(folder)
    logs.put((0, 1000), (1000, 2000))
    (file,) = files(folder)
    with file.open("rb+") as opened:
        opened.truncate(300)
    assert logs.spans() == [(0, 300)]
    logs.put((100, 2000))
    assert logs.spans() == [(0, 2000)]


def test_an_empty_file_and_a_foreign_one_do_no_harm(folder: Path) -> None:
    logs = in_folder(folder)
    logs.put((0, 10))
    place = files(folder)[0].parent
    (place / f"{10:019d}").touch()
    (place / "notes.txt").write_text("not ours")
    logs.put((10, 20))
    assert logs.spans() == [(0, 20)]


def test_files_are_private_few_and_of_bounded_names(folder: Path) -> None:
    logs = in_folder(folder, 64 * KIB)
    for offset in range(0, MIB, KIB):
        logs.put((offset, offset + KIB))
    found = files(folder)
    assert len(found) <= 16
    assert all(file.stat().st_mode & 0o077 == 0 for file in found)
    assert all(len(file.name) == 19 and file.name.isdigit() for file in found)
    assert sum(file.stat().st_size for file in found) <= 80 * KIB


@pytest.mark.parametrize("job", ["../../etc/passwd", "", "0" * 25 + "/", "0" * 25 + "\n", "a" * 26, ".." + "0" * 24])
def test_no_text_but_an_id_becomes_a_path(folder: Path, job: str) -> None:
    logs = in_folder(folder)
    with pytest.raises(AssertionError):
        logs.put((0, 10), stream=Stream(job, 1, "stdout"))
    with pytest.raises(AssertionError):
        logs.remove(job)
    with pytest.raises(AssertionError):
        logs.put((0, 10), stream=Stream(JOB, 1, "../x"))
    assert files(folder.parent) == []


def test_two_servers_share_the_folder(folder: Path) -> None:
    one, two = in_folder(folder), in_folder(folder)
    one.put((0, 100))
    two.put((50, 150))
    one.put((150, 200), (0, 200))
    assert one.spans() == two.spans() == [(0, 200)]


def test_a_folder_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be written"):
        DirectoryLogs(tmp_path / "file" / "logs").prepare()
    logs = in_folder(tmp_path / "file" / "logs")
    with pytest.raises(Unavailable, match="cannot be reached"):
        logs.put((0, 1))


def test_a_store_says_how_many_bytes_it_keeps(make: Callable[..., Logs]) -> None:
    """Whatever is put twice, overlaps, or is dropped by the bound."""
    logs = make(bytes_max=64 * KIB)
    for lo, hi in ((0, 10), (0, 10), (5, 400), (900, 5_000), (100, 9_000), (8_000, 300_000)):
        logs.put((lo, hi))
        assert logs.told == sum(len(data) for _, data in logs.read())
    other = Stream(OTHER, 1, "stderr")
    logs.put((0, 77), stream=other)
    logs.remove(JOB)
    assert logs.told == 77
    logs.remove(JOB, OTHER)
    assert logs.told == 0
