"""Programs that a warm interpreter forks are processes like those that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, started_of, until
from tests.programs import YARD, Program, isolated_env, yard
from tests.warm_programs import BIN, FLYTEKIT_MODULES, YARD_MODULES, WarmProcess, flytekit_folder, run_script

SHOW = """\
import os, sys, threading
threading.Thread(target=lambda: sys.stdout.write("from a thread\\n")).start()
print(sys.argv[1:], os.environ["WORD"], os.getcwd(), oct(os.umask(0)), sys.stdin.read())
print("to stderr", file=sys.stderr)
raise SystemExit(int(sys.argv[1]))
"""


def test_a_script_has_its_own_words_environment_folder_files_and_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    env = {**isolated_env(tmp_path), "WORD": "größer"}
    umask = os.umask(0o027)
    try:
        done = run_script(
            [str(script), "7", "a b"], env=env, stdin="in", timeout_s=PATIENCE_S, cwd=tmp_path, modules=YARD_MODULES
        )
    finally:
        os.umask(umask)
    assert (done.returncode, done.stderr) == (7, "to stderr\n")
    assert f"['7', 'a b'] größer {tmp_path} 0o27 in\n" in done.stdout
    assert "from a thread\n" in done.stdout


def test_a_failing_script_shows_its_traceback_and_exits_with_1(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("raise ValueError('what it said')")
    done = run_script([str(script)], env=isolated_env(tmp_path), timeout_s=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: what it said\n")


def test_both_ways_of_starting_yard_say_the_same(tmp_path: Path) -> None:
    env = isolated_env(tmp_path, url="http://127.0.0.1:1")
    for words in (["--help"], ["version"], ["no-such-command"], ["submit", "--cores", "x"]):
        warm = yard(*words, env=env)
        cold = subprocess.run([*YARD, *words], env=env, capture_output=True, text=True, check=False)
        assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr), words


def test_a_program_can_be_killed_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import signal; print('up', flush=True); signal.pause()")
    program = Program([str(tmp_path / "wait.py")], tmp_path, name="waits", env=isolated_env(tmp_path)).start()
    assert isinstance(program._popen, WarmProcess)
    program.wait_for(lambda: program.log == "up\n", PATIENCE_S, "it is up")
    assert os.getsid(program.pid) == program.pid
    program.kill()
    assert program.exit_code == -signal.SIGKILL
    assert started_of(program.pid) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_is_ended_ends_its_forked_program(tmp_path: Path, number: signal.Signals) -> None:
    """The command of a job asks for the program and waits: who ends the command means the program."""
    (tmp_path / "waits.py").write_text("import os, signal; print(os.getpid(), flush=True); signal.pause()")
    caller = (flytekit_folder() / "pyflyte").read_text()
    caller = caller.replace("os.path.basename(sys.argv[0])", "'waits.py'").replace(str(BIN), str(tmp_path))
    words = [sys.executable, "-IS", "-c", caller.partition("\n")[2]]
    with subprocess.Popen(words, env=isolated_env(tmp_path), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        pid = int(job.stdout.readline())
        assert started_of(pid)
        job.send_signal(number)
        assert job.wait(PATIENCE_S) == -number
        until(lambda: started_of(pid) is None, PATIENCE_S, "the forked program is gone")


def test_flytekit_is_loaded_before_its_programs_start(tmp_path: Path) -> None:
    script = tmp_path / "loaded.py"
    script.write_text("import sys; print('flytekit' in sys.modules)")
    done = run_script([str(script)], env=isolated_env(tmp_path), timeout_s=PATIENCE_S, modules=FLYTEKIT_MODULES)
    assert done.stdout == "True\n"
