"""Output of pods in the agent's folder: its bound."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.pods import logs
from switchyard.features.kubernetes.agent.pods.logs import BoundedOutput, LogCollector, PodRef
from tests.agent.kubernetes.api_peer import ApiPeer, streams
from tests.processes import PATIENCE_S, until

POD = PodRef("default-development", "j-1", "main")
LINES = [b"2026-01-02T03:04:%02d.000000000Z line %02d\n" % (number, number) for number in range(10)]  # 8 bytes each
OUTPUT = b"".join(b"line %02d\n" % number for number in range(10))


def taken(peer: ApiPeer, folder: Path, *, bytes_max: int) -> tuple[bytes, str]:
    """The output of an ended pod, and what is wrong with it."""
    api, problems = peer.api(), []
    collector = LogCollector(api, folder, bytes_max=bytes_max)
    collector.start()

    def is_finished() -> bool:
        problem = collector.finish("j", POD)
        if problem is not None:
            problems.append(problem)
        return problem is not None

    try:
        until(is_finished, PATIENCE_S, "the output is taken")
        return collector.read("j", offset=0, size=10_000).data, problems[0]
    finally:
        collector.stop()
        api.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[ApiPeer]:
    peer = ApiPeer(tmp_path, streams(*LINES))
    yield peer
    peer.close()


def test_output_within_the_bound_is_whole(tmp_path: Path, peer: ApiPeer) -> None:
    for _ in range(2):  # again, as after a crash before the end was recorded
        assert taken(peer, tmp_path / "output", bytes_max=80) == (OUTPUT, "")


def test_of_a_longer_output_beginning_and_end_are_kept_at_their_offsets(tmp_path: Path, peer: ApiPeer) -> None:
    for _ in range(2):
        output, problem = taken(peer, tmp_path / "output", bytes_max=32)
        assert (len(output), problem) == (len(OUTPUT), "")
        assert (output[:16], output[-12:]) == (OUTPUT[:16], OUTPUT[-12:])
        assert output[16:].startswith(b"\n--- the middle")


def test_without_holes_in_files_the_end_is_dropped(
    tmp_path: Path, peer: ApiPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes")

    monkeypatch.setattr(logs, "_punch_hole", refuse)
    notice = b"\n--- the end of output beyond 20 bytes is dropped ---\n"
    for _ in range(2):
        output, problem = taken(peer, tmp_path / "output", bytes_max=20)
        assert output == OUTPUT[:20] + notice
        assert problem == "the last 60 bytes of its output were dropped"


def test_a_long_output_takes_no_more_disk_than_its_bound(tmp_path: Path) -> None:
    bytes_max, rows = 2**20, [b"%07d\n" % number for number in range(2**20)]
    path = tmp_path / "output"
    size = 0
    path.touch()
    for part in (rows[: 2**19], rows[2**19 :]):  # the second part after a restart
        with path.open("r+b") as file:
            output = BoundedOutput(file, size, bytes_max)
            output.begin()
            for first in range(0, len(part), 1000):
                output.write(b"".join(part[first : first + 1000]))
                assert os.fstat(file.fileno()).st_blocks * 512 <= bytes_max + 2**16
        size += 8 * len(part)
    content = path.read_bytes()
    assert len(content) == size
    assert content[: bytes_max // 2] == b"".join(rows)[: bytes_max // 2]
    assert content[-bytes_max * 3 // 8 :] == b"".join(rows)[-bytes_max * 3 // 8 :]
