"""Logs while the job runs: from the job's process through agent, server and store to a follower elsewhere."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import YARD, Agent, isolated_env, start_server, yard
from tests.soak import SOAKED
from tests.store.prepared import migrated

pytestmark = pytest.mark.acceptance

STORES = {"database": "", "directory": "logs: {store: directory}\n"}
END_S = PATIENCE_S
KIB, MIB = 2**10, 2**20
# Writes a line, then waits until a file is there: the test decides how far the job goes.
STEP = "echo line $n; while [ ! -e {folder}/go.$n ]; do sleep 0.05; done"
STEPS = f"n=0; while [ $n -lt {{steps}} ]; do {STEP}; n=$((n+1)); done"


def config(folder: Path, text: str) -> list[str]:
    file = folder / "server.yaml"
    file.write_text(text)
    return ["--config", str(file)]


# The other store has its contract (tests/contracts/test_log_stores.py), and a few tests below.
@pytest.fixture(scope="module", params=["database", SOAKED("directory")])
def logs_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp(f"logs-{request.param}")
    with staged(folder, extra=config(folder, STORES[request.param])) as stage, stage.agent("alpha", cores=8):
        yield stage


class Follower:
    """`yard logs -f` in a process of its own; what it wrote so far."""

    def __init__(self, stage: Stage, *args: str) -> None:
        self.process = subprocess.Popen(
            [*YARD, "logs", "-f", *args], env=stage.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.shown = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while part := os.read(self.process.stdout.fileno(), 65536):
            self.shown += part

    def until(self, text: bytes, timeout_s: float = PATIENCE_S) -> None:
        until(lambda: text in self.shown, timeout_s, f"{text!r} is shown; so far {self.shown[-200:]!r}")

    def end(self, timeout_s: float = END_S) -> tuple[int, bytes, str]:
        code = self.process.wait(timeout_s)
        self._thread.join(PATIENCE_S)
        assert self.process.stderr is not None
        return code, self.shown, self.process.stderr.read().decode()


@pytest.fixture
def follow() -> Iterator[Any]:
    started: list[Follower] = []

    def start(stage: Stage, *args: str) -> Follower:
        started.append(Follower(stage, *args))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def stepping(tmp_path: Path, steps: int) -> str:
    return STEPS.format(steps=steps, folder=tmp_path)


def go(tmp_path: Path, number: int) -> None:
    (tmp_path / f"go.{number}").touch()


def read(stage: Stage, job: str, **asked: Any) -> bytes:
    with Client(stage.url, stage.token) as client:
        return b"".join(chunk.data for chunk in client.output(job, **asked).chunks)


def test_a_follower_sees_each_line_while_the_job_runs_and_ends_with_it(
    logs_stage: Stage, tmp_path: Path, follow: Any
) -> None:
    job = logs_stage.submit("/bin/sh", "-c", stepping(tmp_path, 3))
    follower = follow(logs_stage, job)
    for number in range(3):
        follower.until(f"line {number}\n".encode())
        assert follower.process.poll() is None
        go(tmp_path, number)
    code, shown, said = follower.end()
    assert (code, shown, said) == (0, b"line 0\nline 1\nline 2\n", "")
    assert logs_stage.job(job)["state"] == State.SUCCEEDED


def test_a_follower_of_a_job_that_fails_ends_well(logs_stage: Stage, follow: Any) -> None:
    job = logs_stage.submit("/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    assert follow(logs_stage, job).end()[:2] == (0, b"out\n")
    assert follow(logs_stage, job, "--stderr").end()[:2] == (0, b"err\n")
    both = follow(logs_stage, job, "--stream", "both").end()
    assert both == (0, b"out\n", "err\n")


def test_an_offset_resumes(logs_stage: Stage, follow: Any) -> None:
    job = logs_stage.submit("/bin/sh", "-c", "printf 0123456789")
    logs_stage.ended(job)
    assert follow(logs_stage, job, "--offset", "4").end()[:2] == (0, b"456789")
    assert follow(logs_stage, job, "--since-start").end()[:2] == (0, b"0123456789")
    code, shown, said = follow(logs_stage, job, "--offset", "10").end()
    assert (code, shown) == (0, b"")
    assert "nothing to stdout beyond offset 10" in said


def test_a_held_question_is_answered_as_soon_as_there_is_more(logs_stage: Stage, tmp_path: Path) -> None:
    job = logs_stage.submit("/bin/sh", "-c", stepping(tmp_path, 2))
    until(lambda: read(logs_stage, job) == b"line 0\n", PATIENCE_S, "the first line is there")
    go(tmp_path, 0)
    begun = time.monotonic()
    answer = logs_stage.get(f"/v1/jobs/{job}/output?offset=7&wait_s=60")
    assert time.monotonic() - begun < 50, "before its time is over"
    assert (answer["next"], len(answer["chunks"])) == (14, 1)
    begun = time.monotonic()
    nothing = logs_stage.get(f"/v1/jobs/{job}/output?offset=14&wait_s=0.5")
    assert (nothing["chunks"], nothing["next"]) == ([], 14)
    assert 0.4 < time.monotonic() - begun < 50
    go(tmp_path, 1)
    over = logs_stage.get(f"/v1/jobs/{job}/output?offset=14&wait_s=60")
    assert (over["chunks"], over["is_over"], over["is_last"]) == ([], True, True)


def test_binary_noise_comes_through_a_pipe_unharmed(logs_stage: Stage, follow: Any) -> None:
    job = logs_stage.submit("/bin/sh", "-c", "head -c 700000 /dev/urandom | tee noise | sha256sum >&2; cat noise")
    code, shown, _ = follow(logs_stage, job).end()
    import hashlib

    assert code == 0
    assert len(shown) == 700000
    assert hashlib.sha256(shown).hexdigest() == read(logs_stage, job, stream="stderr").split()[0].decode()
    assert logs_stage.raw("logs", job)[0] == shown


def test_any_attempt_and_a_follower_across_a_retry(logs_stage: Stage, tmp_path: Path, follow: Any) -> None:
    first = f"touch {tmp_path}/once; until [ -e {tmp_path}/seen ]; do sleep 0.05; done; exit 1"
    command = f"echo try; if [ ! -e {tmp_path}/once ]; then {first}; fi; echo well"
    retry = {"retry": {"limit": 2, "backoff": 1}}
    job = logs_stage.submit("/bin/sh", "-c", command, spec=retry)
    follower = follow(logs_stage, job)
    follower.until(b"try\n")
    (tmp_path / "seen").touch()
    code, shown, said = follower.end()
    assert (code, shown) == (0, b"try\ntry\nwell\n")
    assert "attempt 2" in said
    assert read(logs_stage, job, attempt=1) == b"try\n"
    assert read(logs_stage, job, attempt=2) == read(logs_stage, job) == b"try\nwell\n"
    assert follow(logs_stage, job, "--attempt", "1").end()[:2] == (0, b"try\n")


def test_tasks_of_an_array(logs_stage: Stage, follow: Any) -> None:
    job = logs_stage.submit("/bin/sh", "-c", "echo I am $SWITCHYARD_ARRAY_INDEX", array="2-4")
    followers = {index: follow(logs_stage, job, "--task", str(index)) for index in (2, 3, 4)}
    for index, follower in followers.items():
        assert follower.end()[:2] == (0, f"I am {index}\n".encode())
    assert logs_stage.raw("logs", job, "--task", "3")[0] == b"I am 3\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--attempt", "2"), 3, "no attempt 2"),
        (("--attempt", "0"), 2, "at least 1"),
        (("--task", "1"), 2, "not an array"),
        (("--task", "x"), 2, "not a whole number"),
        (("--offset", "-1"), 2, "not a whole number"),
        (("--offset", "1", "--since-start"), 2, "not allowed with"),
        (("--stream", "stdin"), 2, "invalid choice"),
    ],
)
def test_what_cannot_be_followed_is_said(logs_stage: Stage, args: tuple[str, ...], code: int, says: str) -> None:
    job = logs_stage.submit("true")
    logs_stage.ended(job)
    done = logs_stage.yard("logs", job, *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("stream=stdin", 400),
        ("attempt=7", 404),
        ("attempt=0", 400),
        ("attempt=-1", 400),
        ("task=0", 400),
        ("offset=-1", 400),
        ("offset=1e3", 400),
        (f"offset={2**63}", 400),
        ("wait_s=-1", 400),
        ("wait_s=soon", 400),
        ("wait_s=nan", 400),
        ("offset=1&offset=2", 400),
        ("size=1", 400),
    ],
)
def test_a_bad_question_is_refused(logs_stage: Stage, query: str, status: int) -> None:
    job = logs_stage.submit("true")
    answer = logs_stage.call("GET", f"/v1/jobs/{job}/output?{query}")
    assert (answer.status, set(answer.json) >= {"code", "detail"}) == (status, True)
    array = logs_stage.submit("true", array="0-1")
    assert logs_stage.call("GET", f"/v1/jobs/{array}/output?task=2").status == 404
    assert logs_stage.call("GET", f"/v1/jobs/{array}/output").status == 400


# --- faults: each with a server of its own


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, extra=config(tmp_path, STORES[request.param])) as stage:
        yield stage


@pytest.mark.parametrize("own", ["directory", SOAKED("database")], indirect=True)
def test_a_follower_outlasts_a_server_that_is_killed_and_shows_nothing_twice(
    own: Stage, tmp_path: Path, follow: Any
) -> None:
    with own.agent("alpha"):
        job = own.submit("/bin/sh", "-c", stepping(tmp_path, 4))
        follower = follow(own, job)
        follower.until(b"line 0\n")
        own.server.kill()
        go(tmp_path, 0)
        own.server.restart()
        follower.until(b"line 1\n")
        go(tmp_path, 1)
        follower.until(b"line 2\n")
        own.server.terminate()
        go(tmp_path, 2)
        go(tmp_path, 3)
        own.server.restart()
        code, shown, _ = follower.end()
    assert (code, shown) == (0, b"line 0\nline 1\nline 2\nline 3\n")


@pytest.mark.parametrize("own", ["database", SOAKED("directory")], indirect=True)
def test_a_restarted_agent_sends_again_and_a_follower_shows_nothing_twice(
    own: Stage, tmp_path: Path, follow: Any
) -> None:
    agent: Agent = own.agent("alpha")
    with agent:
        job = own.submit("/bin/sh", "-c", stepping(tmp_path, 3))
        follower = follow(own, job)
        follower.until(b"line 0\n")
        for number in (0, 1):
            agent.kill()
            go(tmp_path, number)
            agent.start()
            follower.until(f"line {number + 1}\n".encode())
        go(tmp_path, 2)
        assert follower.end()[:2] == (0, b"line 0\nline 1\nline 2\n")
    assert own.raw("logs", job)[0] == b"line 0\nline 1\nline 2\n"


@pytest.mark.parametrize("store", ["database", SOAKED("directory")])
def test_a_flood_costs_the_server_a_bounded_place(tmp_path: Path, follow: Any, store: str) -> None:
    where = "store: directory, " if store == "directory" else ""
    with staged(tmp_path, extra=config(tmp_path, f"logs: {{{where}bytes_max: {256 * KIB}}}")) as stage:
        with stage.agent("alpha"):
            size = 200 * MIB
            job = stage.submit("/bin/sh", "-c", f"yes 0123456 | head -c {size}; echo; echo the end")
            follower = follow(stage, job)
            quick = stage.submit("/bin/sh", "-c", "echo quick")
            assert stage.ended(quick, timeout_s=PATIENCE_S)["state"] == State.SUCCEEDED, (
                "others do not wait for the flood"
            )
            code, shown, said = follower.end()
            assert code == 0
            assert stage.ended(job)["state"] == State.SUCCEEDED
        assert shown.startswith(b"0123456\n" * 1000)
        assert shown.endswith(b"0123456\n\nthe end\n")
        assert "were left out" in said
        whole = stage.raw("logs", job)
        assert 256 * KIB <= len(whole[0]) <= 320 * KIB
        last = stage.get(f"/v1/jobs/{job}/output?offset={size}")
        assert (last["size"], last["is_over"]) == (size + 9, True)
        data = stage.folder / "server-data"
        used = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
        assert used < 40 * MIB
        status = Path(f"/proc/{stage.server.pid}/status").read_text()
        peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        assert peak_kib < 400 * KIB


def test_logs_in_a_directory_are_files_there_and_not_in_the_database(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    text = f"logs: {{store: directory, path: {place}}}"
    with staged(tmp_path, extra=config(tmp_path, text)) as stage, stage.agent("alpha"):
        job = stage.submit("/bin/sh", "-c", "echo kept")
        stage.ended(job)
        (file,) = [path for path in place.rglob("*") if path.is_file()]
        assert (file.read_bytes(), job in str(file)) == (b"kept\n", True)
        assert stage.raw("logs", job)[0] == b"kept\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("logs: {store: floppy}", "logs.store"),
        ("logs: {bytes_max: 10}", "logs.bytes_max"),
        ("logs: {bytes_max: lots}", "logs.bytes_max"),
        ("logs: {folder: /tmp}", "logs.folder: unknown key"),
        ("logs: {store: directory, path: /proc/nowhere}", "cannot be written"),
    ],
)
def test_a_mistaken_section_stops_the_start(tmp_path: Path, text: str, says: str) -> None:
    options = ["--data", str(tmp_path / "data"), "--http", "127.0.0.1:1", *config(tmp_path, text)]
    done = yard("server", *options, env=isolated_env(tmp_path))
    assert done.returncode != 0
    assert says in done.stderr


def test_a_follower_at_another_server(tmp_path: Path, postgres: Any, follow: Any) -> None:
    url = migrated(postgres)
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
    ):
        first, second = Stage(tmp_path, one, None), Stage(tmp_path, two, None)
        with first.agent("alpha"):
            job = first.submit("/bin/sh", "-c", stepping(tmp_path, 2))
            follower = follow(second, job)
            follower.until(b"line 0\n")
            go(tmp_path, 0)
            follower.until(b"line 1\n")
            go(tmp_path, 1)
            assert follower.end()[:2] == (0, b"line 0\nline 1\n")
