"""The harness of the acceptance tests: programs end when they should, and failures say why."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, Process, children_of, end_strays, free_port, started_of, until
from tests.programs import Program, isolated_env, off_clock

SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def python(code: str, tmp: Path, **env: str) -> Program:
    return Program([sys.executable, "-c", code], tmp, name="program", env={**isolated_env(tmp), **env})


def test_a_program_is_gone_after_its_block(tmp_path: Path) -> None:
    with python(SLEEP, tmp_path) as program:
        program.wait_for(lambda: "up" in program.log, PATIENCE_S, "it says up")
        assert started_of(program.pid) is not None
    assert program.exit_code == -15
    assert started_of(program.pid) is None


def test_waiting_for_a_program_that_ended_fails_at_once_with_its_log(tmp_path: Path) -> None:
    begun = time.monotonic()
    with python("raise SystemExit('no such port')", tmp_path) as program:
        with pytest.raises(AssertionError, match=r"(?s)ended with 1 while waiting for: pigs fly.*no such port"):
            program.wait_for(lambda: False, 60, "pigs fly")
    assert time.monotonic() - begun < 10


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.programs.STOP_S", 0.3)
    with python(f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}", tmp_path) as program:
        program.wait_for(lambda: "up" in program.log, PATIENCE_S, "it says up")
    assert program.exit_code == -9


def test_a_paused_program_ends_too(tmp_path: Path) -> None:
    with python(SLEEP, tmp_path) as program:
        program.wait_for(lambda: "up" in program.log, PATIENCE_S, "it says up")
        program.pause()
    assert program.exit_code == -15


def test_strays_of_a_killed_program_are_ended(tmp_path: Path) -> None:
    escape = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"
    with python(f"{escape}; {SLEEP}", tmp_path) as program:
        (stray,) = program.wait_for(lambda: children_of(program.pid), PATIENCE_S, "its child runs")
        program.kill()
    assert stray.is_alive
    assert end_strays(tmp_path) == [stray.pid]
    assert not stray.is_alive


def test_a_program_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    program = python(SLEEP, tmp_path)
    thread = threading.Thread(target=program.start)
    thread.start()
    thread.join()
    with program:
        program.wait_for(lambda: "up" in program.log, PATIENCE_S, "it says up")
        assert program.is_running


def test_a_program_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tests.programs import Program, isolated_env
import sys, time
tmp = Path({str(tmp_path)!r})
program = Program([sys.executable, "-c", {SLEEP!r}], tmp, name="inner", env=isolated_env(tmp)).start()
program.wait_for(lambda: "up" in program.log, 30, "it says up")  # before, the kernel may not have been told yet
print(program.pid, flush=True)
time.sleep(600)
"""
    root = Path(__file__).resolve().parent.parent
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    started = started_of(pid)
    assert started is not None
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: not Process(pid, started).is_alive, PATIENCE_S, "the program ends with its starter")


def test_an_off_clock_moves_the_wall_clock_alone(tmp_path: Path) -> None:
    code = "import time; print(time.time(), time.monotonic())"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**isolated_env(tmp_path), **off_clock("+1h")},
        capture_output=True,
        text=True,
        check=True,
    )
    wall, monotonic = map(float, said.stdout.split())
    assert 3_590 < wall - datetime.datetime.now(datetime.UTC).timestamp() < 3_610
    assert abs(monotonic - time.monotonic()) < 10


def test_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
