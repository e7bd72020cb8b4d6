"""The live view of a file in a job's folder: as it grows, whatever the job makes of it, and after the attempt's end."""

from __future__ import annotations

import os
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Conflict, NotFound
from switchyard.model.job.job import State
from switchyard.model.rules.access import Role
from tests.acceptance.files.job_files import upload_tree
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import COMMAND_S
from tests.warm_programs import warm_yard

pytestmark = pytest.mark.acceptance

# Runs what the test puts into a folder outside of the job's own, one script after the other.
PUPPET = """
n=0
while :; do
    if [ -e "$GATE/$n" ]; then . "$GATE/$n"; : > "$GATE/$n.done"; n=$((n+1)); else sleep 0.02; fi
done
"""


class Puppet:
    """A running job that does what the test says."""

    def __init__(self, stage: Stage, gate: Path, **fields: Any) -> None:
        gate.mkdir()
        self._stage, self._gate = stage, gate
        self._numbers = count()
        spec = {"env": {"GATE": str(gate)}, "files": {"out": ["kept/*"]}}
        self.id = stage.submit("sh", "-c", PUPPET, spec=spec, **fields)

    def begin(self, script: str) -> Path:
        number = next(self._numbers)
        draft = self._gate / "draft"
        draft.write_text(script)
        draft.rename(self._gate / str(number))
        return self._gate / f"{number}.done"

    def do(self, script: str) -> None:
        done = self.begin(script)
        until(done.exists, PATIENCE_S, f"the job has done: {script}")

    def end(self, script: str = "") -> None:
        self.begin(f"{script}\nexit 0")
        self._stage.ended(self.id)


class Follower:
    """`yard logs -f --file` in a process of its own; what it wrote so far."""

    def __init__(self, stage: Stage, *args: str) -> None:
        words = [warm_yard(), "logs", "-f", *args]
        self.process = subprocess.Popen(words, env=stage.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.out, self.err = b"", b""
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        pipe = self.process.stdout if name == "out" else self.process.stderr
        assert pipe is not None
        while part := os.read(pipe.fileno(), 65536):
            setattr(self, name, getattr(self, name) + part)

    def until(self, text: bytes, name: str = "out") -> None:
        until(lambda: text in getattr(self, name), PATIENCE_S, f"{text!r} in {name}: {self.out[-200:]!r} {self.err!r}")

    def ended(self) -> int:
        code = self.process.wait(2 * PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("views"), auth=True) as made, made.agent("alpha", cores=16):
        yield made


def logs(stage: Stage, *args: str) -> subprocess.CompletedProcess[bytes]:
    words = [warm_yard(), "logs", *args]
    return subprocess.run(words, env=stage.env, capture_output=True, timeout=COMMAND_S, check=False)


@pytest.fixture(scope="module")
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.url, str(stage.token)) as made:
        yield made


def seen(client: Client, job: str, name: str | bytes, **rest: Any) -> bytes:
    """What the SDK reads of a file now."""
    parts = client.logs(job, file=name, follow=False, **rest)
    return b"".join(chunk.data for part in parts for chunk in part.chunks)


def live(stage: Stage, job: str, name: str | bytes, *, status: int = 200, **rest: Any) -> Any:
    named = {"name": name} if isinstance(name, str) else {"name_bytes": b64encode(name).decode()}
    answer = stage.call("POST", f"/v1/jobs/{job}/files/live", {**named, **rest})
    assert answer.status == status, answer.body
    return answer.json


def test_a_file_is_followed_while_it_grows_is_cut_replaced_and_removed(stage: Stage, tmp_path: Path) -> None:
    job = Puppet(stage, tmp_path / "gate")
    follower = Follower(stage, job.id, "--file", "deep/results.csv")  # neither the job nor the file is there yet
    job.do("mkdir deep; printf 'epoch,score\\n' > deep/results.csv")
    follower.until(b"epoch,score\n")
    job.do("printf '1,0.9\\n\\000\\377\\033[2J\\n' >> deep/results.csv")
    follower.until(b"1,0.9\n\x00\xff\x1b[2J\n")
    shown = len(follower.out)
    job.do("printf 'cut\\n' > deep/results.csv")
    follower.until(b"\ncut\n")
    follower.until(b"it begins again", "err")
    assert follower.out[shown:] == b"cut\n"
    job.do("printf 'cut\\nand longer than before, by far\\n' > new; mv new deep/results.csv")
    follower.until(b"by far\n")
    assert follower.out[shown:] == b"cut\ncut\nand longer than before, by far\n", "another file: from its beginning"
    job.do("rm deep/results.csv")
    follower.until(b"was removed", "err")
    job.do("printf 'born again\\n' > deep/results.csv")
    follower.until(b"born again\n")
    job.end("printf 'the last words\\n' >> deep/results.csv")
    assert follower.ended() == EXIT_OK, follower.err
    assert follower.out.endswith(b"born again\nthe last words\n"), "also of a file that no --out keeps"

    late = logs(stage, job.id, "--file", "deep/results.csv")
    assert late.returncode == EXIT_NOT_FOUND
    assert b"has ended" in late.stderr
    assert b"--out 'deep/results.csv'" in late.stderr, "says what to do"


def test_every_bad_name_and_every_bad_file_is_refused_with_a_reason(
    stage: Stage, client: Client, tmp_path: Path
) -> None:
    job = Puppet(stage, tmp_path / "gate")
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    job.do(
        f"mkdir deep; echo good > deep/file; : > empty; mkfifo pipe; ln -s {secret} out; ln -s ../../../secret up;"
        f"ln -s {tmp_path} outside; ln -s deep/file inside; ln -s deep folder; ln -s deep/../../x sly; ln -s loop loop;"
        "ln -s . here; mknod device c 1 3 2>/dev/null || ln -s /dev/null device;"
        "printf new > 'a\nb'; printf raw > \"$(printf 'x\\377')\""
    )
    for name, status, words in (
        ("../secret", 400, "`..`"),
        ("deep/../deep/file", 400, "`..`"),
        (str(secret), 400, "absolute"),
        ("", 400, "names no file"),
        (".", 400, "names no file"),
        ("deep/file/", 400, "as the name of a folder"),
        ("a\0b", 400, "NUL"),
        ("x" * 300, 400, "bytes"),
        ("a/" * 300 + "x", 400, "folders"),
        ("out", 409, "a link to a place outside"),
        ("up", 409, "a link to a place outside"),
        ("outside/secret", 409, "a link to a place outside"),
        ("sly", 409, "a link to a place outside"),
        ("loop", 409, "links"),
        ("here", 409, "a folder"),
        ("deep", 409, "a folder"),
        ("pipe", 409, "no plain file"),
        ("empty/x", 409, "no folder"),
    ):
        problem = live(stage, job.id, name, status=status)
        assert words in problem["detail"], (name, problem)
        assert problem["next_step"], name
    assert live(stage, job.id, "device", status=409)
    assert live(stage, job.id, "x", status=400, name_bytes="eA==")["detail"].startswith("Give `name` or")
    for name, content in (
        ("deep/file", b"good\n"),
        ("./deep//file", b"good\n"),
        ("inside", b"good\n"),
        ("folder/file", b"good\n"),
        ("here/inside", b"good\n"),
        ("empty", b""),
        ("a\nb", b"new"),
        (os.fsdecode(b"x\xff"), b"raw"),
    ):
        assert seen(client, job.id, name) == content, name
    for args, code, told in (
        (["--file", "../x"], EXIT_USAGE, b"`..`"),
        (["--file", "deep/file/"], EXIT_USAGE, b"as the name of a folder"),
        (["--file", "pipe"], EXIT_CONFLICT, b"no plain file"),
        (["--file", "none"], EXIT_NOT_FOUND, b"-f` waits for it"),
        (["--file", "empty", "--stderr"], EXIT_USAGE, b"no --stream"),
        (["--file", "empty", "--task", "3"], EXIT_USAGE, b"not an array"),
        (["--file", "empty", "--attempt", "7"], EXIT_NOT_FOUND, b"no attempt 7"),
    ):
        done = logs(stage, job.id, *args)
        assert done.returncode == code, (args, done.stderr)
        assert told in done.stderr, (args, done.stderr)
    done = logs(stage, job.id, "--file", "a\nb", "--offset", "1")
    assert (done.returncode, done.stdout) == (EXIT_OK, b"ew"), done.stderr
    assert live(stage, job.id, "deep/file", offset=9)["size"] == 5, "behind the end there is nothing yet"
    bare = stage.submit("sleep", "60")
    done = logs(stage, bare, "--file", "x")
    assert (done.returncode, b"no folder of its own" in done.stderr) == (EXIT_USAGE, True)
    stage.yard("cancel", bare, check=True)
    job.end()


def test_whoever_may_read_the_logs_of_a_job_may_look_at_its_files_and_nobody_else(
    stage: Stage, client: Client, tmp_path: Path
) -> None:
    client.create_user("ann")
    client.create_project("closed")
    job = Puppet(stage, tmp_path / "gate", project="closed")
    job.do("echo good > file")
    with Client(stage.url, client.create_token(user="ann").token) as ann:
        with pytest.raises(NotFound, match="not yours to see"):
            seen(ann, job.id, "file")
        client.create_grant(Role.VIEW, to="user", subject="ann", on="project", object="closed")
        assert seen(ann, job.id, "file") == b"good\n"
    job.end()


def test_files_of_tasks_and_of_ended_attempts_come_from_what_was_kept(
    stage: Stage, client: Client, tmp_path: Path
) -> None:
    script = (
        'mkdir kept; ln -s a kept/link; echo "task $SWITCHYARD_ARRAY_INDEX" > kept/a; echo gone > b;'
        "truncate -s 9M kept/holes; printf end >> kept/holes; ln -s nowhere kept/dead;"
        f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    )
    tree = upload_tree(stage, {"in": b"x"})
    spec = {"files": {"tree": tree, "out": ["kept"]}}
    job = stage.submit("sh", "-c", script, spec=spec, array="0-1")
    until(lambda: live(stage, job, "kept/a", task=1, wait_s=5)["state"] == "seen", PATIENCE_S, "the task runs")
    assert seen(client, job, "in", task=0) == b"x", "input files, too"
    done = logs(stage, job, "--file", "kept/a")
    assert (done.returncode, b"--task" in done.stderr) == (EXIT_USAGE, True)
    (tmp_path / "go").touch()
    stage.ended(job)
    for words in ((job, "--task", "1"), (f"{job}[1]",)):
        done = logs(stage, *words, "--file", "kept/a", "-f")
        assert (done.returncode, done.stdout) == (EXIT_OK, b"task 1\n"), done.stderr
    holes = bytes(9 * 2**20) + b"end"
    for name, content in (("kept/a", b"task 1\n"), ("kept/link", b"task 1\n"), ("kept/holes", holes)):
        assert seen(client, job, name, task=1) == content, name
    assert seen(client, job, "kept/holes", task=1, offset=len(holes) - 2) == b"nd"
    for name, kind in (("b", NotFound), ("kept/none", NotFound), ("kept/dead", NotFound), ("kept", Conflict)):
        with pytest.raises(kind) as refused:
            seen(client, job, name, task=1)
        assert refused.value.next_step, name
        has_pattern = name.startswith("kept/")
        assert ("--out 'b'" in refused.value.next_step) == (name == "b"), refused.value.next_step
        assert ("its --out names the file" in refused.value.detail) == has_pattern, refused.value.detail
    parts = list(client.logs(job, task=0, file=b"kept/a"))
    assert b"".join(chunk.data for part in parts for chunk in part.chunks) == b"task 0\n"
    assert parts[-1].is_over
    waiting = client.submit(["true"], out=["x"], hold=True)
    with pytest.raises(NotFound, match="no folder yet"):
        seen(client, waiting.id, "x")
    waiting.cancel()
    with pytest.raises(NotFound, match="never began"):
        seen(client, waiting.id, "x")


def test_large_files_come_whole_and_the_number_of_files_is_bounded(
    stage: Stage, client: Client, tmp_path: Path
) -> None:
    job = Puppet(stage, tmp_path / "gate")
    job.do("head -c 3000000 /dev/urandom > large; sha256sum < large > sum")
    data = seen(client, job.id, "large")
    assert (len(data), sha256(data).hexdigest()) == (3_000_000, seen(client, job.id, "sum").split()[0].decode())
    names = [f"none-{number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        address = f"/v1/jobs/{job.id}/files/live"

        def look(name: str) -> Any:
            # The 17th may come before one of the 16, which then tries again.
            body = {"name": name, "wait_s": 30}
            return until(lambda: stage.call("POST", address, body).json.get("state"), PATIENCE_S, f"a view of {name}")

        views = [pool.submit(look, name) for name in names]
        one_more = {"name": "one-too-many"}
        until(lambda: stage.call("POST", address, one_more).status == 429, PATIENCE_S, "all 16 files are looked at")
        problem = live(stage, job.id, "one-too-many", status=429)
        assert (problem["code"], problem["limit"]) == ("limit-reached", "viewed_files")
        assert live(stage, job.id, "none-1")["state"] == "absent", "a file that is looked at already"
        job.do("for name in $(seq 0 15); do printf x > none-$name; done")
        assert [view.result() for view in views] == ["seen"] * len(names), "each wait ends with the first byte"
    job.end()


def test_an_agent_that_is_away_is_told_and_its_files_are_followed_when_it_is_back(tmp_path: Path) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha") as agent:
        job = Puppet(stage, tmp_path / "gate")
        job.do("echo one > file")
        follower = Follower(stage, job.id, "--file", "file")
        follower.until(b"one\n")
        agent.kill()
        done = logs(stage, job.id, "--file", "file")
        assert (done.returncode, done.stdout) == (EXIT_UNAVAILABLE, b"")
        assert b"The agent that runs job" in done.stderr
        until(lambda: stage.health("alpha") == "down", 2 * PATIENCE_S, "the server knows that the agent is away")
        done = logs(stage, job.id, "--file", "file")
        assert (done.returncode, b"silent since 20" in done.stderr) == (EXIT_UNAVAILABLE, True), done.stderr
        follower.until(b"silent since 20", "err")
        job.do("echo two >> file")
        agent.start()
        follower.until(b"one\ntwo\n")
        job.end()
        assert follower.ended() == EXIT_OK, follower.err
        assert follower.out == b"one\ntwo\n"
        assert stage.job(job.id)["state"] == State.SUCCEEDED
