"""The supervisor's files on a full disk and after damage: jobs start, or the agent says why they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.backends import Trouble
from switchyard.agent.journal.attempt import Attempt
from switchyard.agent.loop.attempt_reports import end_attempt
from switchyard.features.local.agent import backend as local_backend
from switchyard.features.local.agent import supervisor_program
from switchyard.features.local.agent.supervisor_program import SupervisorProgram, probe_supervisor
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.service.lifecycle.arrays import is_refused_before_start
from tests.agent.builders import a_lease, a_local, end_of
from tests.agent.files.small_disk import free_bytes, small_disk


def test_disk_with_little_room_leaves_no_half_of_a_supervisor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path, "1m") as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(free_bytes(disk) - 6 * 4096))
        program = SupervisorProgram(disk)
        assert program.path() == Path(supervisor_program.supervisor.__file__), "the package's own file is used"
        assert "supervisor-not-written" in caplog.text
        assert probe_supervisor(disk) == ""
        filler.unlink()
        program._write_at = 0.0  # the minute between two tries is over
        assert program.path() == disk / "supervisor" / "supervisor.pyc", "written when there is room"
        whole = program.path().read_bytes()

        filler.write_bytes(bytes(free_bytes(disk) - 6 * 4096))
        program.path().write_bytes(whole[: len(whole) // 2])
        assert "EOFError" in probe_supervisor(disk) or "Bad code object" in probe_supervisor(disk), "the doctor says so"
        filler.unlink()
        assert program.path().read_bytes() == whole, "checked before use, and written anew"
        assert probe_supervisor(disk) == ""


def test_damage_that_only_a_failed_start_shows_is_mended_by_the_next_start(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    path = tmp_path / "supervisor" / "supervisor.pyc"
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"\xff" * (status.st_size - status.st_size // 2))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert end_of(backend, backend.submit(a_lease("true"))).seen is ObservedState.SUCCEEDED
    assert backend.trouble() is None
    backend.close()


def test_supervisor_that_never_begins_is_a_refusal_and_stops_new_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = a_local(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no such program')\n")
    lease = a_lease("true")
    with monkeypatch.context() as patch:
        patch.setattr(backend._program, "path", lambda *, is_suspect: broken)
        patch.setattr(local_backend, "RESPAWN_S", 0.01)
        native_id = backend.submit(lease)
        ended = end_of(backend, native_id)
    why = "its supervisor ended with 1 before it began, 5 times: RuntimeError: no such program"
    assert (ended.seen, ended.cause, ended.reason) == (ObservedState.FAILED, Cause.CLUSTER, why)
    assert backend.trouble() == Trouble(f"no job can be started: {why}")
    report = end_attempt(Attempt(lease, native_id=native_id), ended).reports[-1].report
    assert is_refused_before_start(report, State.SUBMITTED), "the server gives it to another cluster"
    assert end_of(backend, backend.submit(a_lease("true"))).seen is ObservedState.SUCCEEDED
    assert backend.trouble() is None, "a supervisor that begins ends the pause"
    backend.close()
