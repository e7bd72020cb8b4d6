"""Arrays, retries, holds, selectors, completion and the SDK's ways of waiting, driven as a user drives them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, Executor, JobHandle, State, TimedOut, as_completed
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from switchyard.model.wire.api import JobSelector
from tests.acceptance.stage import SOON_S, Stage, staged, waiting_for
from tests.pace import slowness
from tests.processes import PATIENCE_S, free_port, piped, until
from tests.programs import COMMAND_S, yard
from tests.soak import SOAKED
from tests.warm_programs import run_script, warm_yard, yard_folder

pytestmark = pytest.mark.xdist_group("cli-all")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("alpha", cores=8):
        yield made


def held(stage: Stage, count: int, **labels: str) -> list[str]:
    """Jobs that wait until they are released."""
    jobs = [{"spec": {"command": ["true"]}, "hold": True, "labels": labels} for _ in range(count)]
    return [item["job"]["id"] for item in stage.post("/v1/jobs/bulk", {"jobs": jobs})["items"]]


def test_an_array_is_waited_for_shown_and_retried(stage: Stage) -> None:
    script = (
        'echo "task $SWITCHYARD_ARRAY_INDEX"; test "$SWITCHYARD_ARRAY_INDEX" != 7 -a "$SWITCHYARD_ARRAY_INDEX" != 3'
    )
    done = stage.yard("submit", "--wait", "--array", "0-9%4", "--name", "many", "--", "sh", "-c", script)
    assert done.returncode == 1, done.stderr
    job = done.stdout.split()[0]
    assert "10 tasks: 8 ok, 2 failed" in done.stdout
    assert "Failed: 3,7" in done.stderr
    assert "10 tasks: 8 ok, 2 failed" in stage.yard("show", job, check=True).stdout
    assert "10/10" in stage.yard("ls", "--limit", "3", check=True).stdout
    failed = stage.read("tasks", job, "--state", "failed")
    assert [(task["index"], task["exit_code"], task["cluster"], task["reason"]) for task in failed] == [
        (3, 1, "alpha", "exit code 1"),
        (7, 1, "alpha", "exit code 1"),
    ]
    rows = stage.yard("tasks", job, check=True).stdout.splitlines()
    assert (rows[0].split()[-1], rows[4].split()[-3:]) == ("REASON", ["exit", "code", "1"])
    assert stage.yard("tasks", job, "-o", "name", check=True).stdout.split() == [str(n) for n in range(10)]
    again = stage.job(stage.yard("retry", job, "-o", "name", check=True).stdout.strip())
    assert (again["array"], again["retry_of"]) == ("3,7%4", job)
    some = stage.job(stage.yard("retry", f"{job}[1,4-5]", "-o", "name", check=True).stdout.strip())
    assert some["array"] == "1,4-5%4"


def test_some_tasks_are_cancelled(stage: Stage) -> None:
    job = stage.submit("true", array="0-9", hold=True)
    stage.yard("cancel", f"{job}[2,5-7]", check=True)
    stage.yard("cancel", job, "--tasks", "0", check=True)
    assert stage.job(job)["tasks"]["cancelled"] == 5
    cancelled = stage.yard("tasks", job, "--state", "cancelled", "-o", "name", check=True).stdout.split()
    assert cancelled == ["0", "2", "5", "6", "7"]
    stage.yard("release", job, check=True)
    assert stage.ended(job)["tasks"] == {"total": 10, "ok": 5, "cancelled": 5}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("submit", "--array", "0-999999999", "--", "true"), EXIT_USAGE, "at most 1,000,000 tasks"),
        (("submit", "--array", "9-0", "--", "true"), EXIT_USAGE, "backwards"),
        (("submit", "--array", "0-9%0", "--", "true"), EXIT_USAGE, "after %"),
        (("submit", "--array", "", "--", "true"), EXIT_USAGE, "not an index"),
        (("submit", "--after", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--", "true"), EXIT_USAGE, "does not exist"),
        (("submit", "--after", "zzzzzz", "--", "true"), EXIT_NOT_FOUND, "ZZZZZZ"),
        (("submit", "--after", "01ARZ3NDEKTSV4RRFFQ69G5FAV:maybe", "--", "true"), EXIT_USAGE, "after"),
        (("submit", "--retry", "101", "--", "true"), EXIT_USAGE, "retry.limit"),
        (("submit", "--retry", "1", "--retry-on", "weather", "--", "true"), EXIT_USAGE, "weather"),
        (("submit", "--retry", "1", "--retry-exit-codes", "9-1", "--", "true"), EXIT_USAGE, "exit_codes"),
        (("submit", "--retry", "1", "--backoff", "soon", "--", "true"), EXIT_USAGE, "soon"),
        (("submit", "--expires-after", "never", "--", "true"), EXIT_USAGE, "never"),
        (("submit", "--each", "--", "true"), EXIT_USAGE, "--bulk"),
        (("cancel",), EXIT_USAGE, "Which jobs?"),
        (("cancel", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--label", "a=b"), EXIT_USAGE, "not both"),
        (("cancel", "01ARZ3NDEKTSV4RRFFQ69G5FAV[9-1]"), EXIT_USAGE, "backwards"),
        (("cancel", "--label", "a=b", "--tasks", "1"), EXIT_USAGE, "--tasks"),
        (("cancel", "--all"), EXIT_USAGE, "--force"),
        (("hold", "--state", "asleep"), EXIT_USAGE, "States are"),
        (("release", "--all"), EXIT_USAGE, "--force"),
        (("retry", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), EXIT_NOT_FOUND, "01ARZ3"),
        (("priority", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "high"), EXIT_USAGE, "high"),
        (("priority", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1000001"), EXIT_USAGE, "1000000"),
        (("tasks", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), EXIT_NOT_FOUND, "01ARZ3"),
        (("explain", "no-such-code"), EXIT_USAGE, "no-such-job"),
        (("ls", "--watch", "-o", "json"), EXIT_USAGE, "yard events"),
        (("ls", "--since", "yesterday"), EXIT_USAGE, "yesterday"),
        (("completion", "tcsh"), EXIT_USAGE, "tcsh"),
    ],
)
def test_bad_input_is_refused_with_a_reason(stage: Stage, args: tuple[str, ...], code: int, words: str) -> None:
    held(stage, 1, waits="here")  # so that `--all` means something
    done = stage.yard(*args)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "\nnext: " in done.stderr


def test_what_cannot_be_done_is_a_conflict(stage: Stage) -> None:
    plain, sleeper = stage.submit("true"), stage.submit("sleep", "600")
    stage.ended(plain)
    stage.until_state(sleeper, State.RUNNING)
    for args in (("retry", sleeper), ("hold", sleeper), ("hold", plain), ("release", plain), ("priority", plain, "3")):
        assert stage.yard(*args).returncode == EXIT_CONFLICT, args
    assert stage.yard("tasks", plain).returncode == EXIT_USAGE, "it is not an array"
    assert stage.yard("cancel", f"{sleeper}[1]").returncode == EXIT_USAGE
    several = stage.yard("cancel", sleeper, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert (several.returncode, sleeper in several.stdout) == (EXIT_NOT_FOUND, True), "one refusal keeps no other"
    assert stage.ended(sleeper)["state"] == "CANCELLED"


def test_retries_by_exit_code_with_a_budget(stage: Stage, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    script = f"echo x >> {tries}; exit 75"
    flags = ("--retry", "2", "--retry-on", "job", "--retry-exit-codes", "70-80", "--backoff", "1s")
    done = stage.yard("submit", "--wait", *flags, "--", "sh", "-c", script)
    assert done.returncode == 75, done.stderr
    assert tries.read_text() == "x\n" * 3
    other = stage.yard("submit", "--wait", *flags, "--", "sh", "-c", f"echo y >> {tries}; exit 1")
    assert (other.returncode, tries.read_text().count("y")) == (1, 1), "that code is not among those to try again"


def test_a_job_begins_after_others_by_the_start_of_their_ids(stage: Stage) -> None:
    first = stage.submit("sh", "-c", "exit 4", hold=True)
    flags = [("--after", first[:22]), ("--after", f"{first[:22]}:any"), ("--after", f"{first.lower()}:notok")]
    ok, either, notok = (
        stage.yard("submit", "-o", "name", *flag, "--", "true", check=True).stdout.strip() for flag in flags
    )
    assert {stage.job(job)["state"] for job in (ok, either, notok)} == {"PENDING"}
    assert first in stage.yard("explain", either, check=True).stdout
    stage.yard("release", first, check=True)
    assert stage.ended(either)["state"] == stage.ended(notok)["state"] == "SUCCEEDED"
    assert stage.ended(ok)["state"] in ("FAILED", "CANCELLED"), "what it waited for did not succeed"


def test_hold_release_priority_and_retry_by_selector(stage: Stage) -> None:
    jobs = held(stage, 12, run="sel")
    dry = stage.yard("release", "--label", "run=sel", "--dry-run", check=True).stdout
    assert dry.splitlines()[0] == "Would release 12 jobs:"
    assert "… and 2 more" in dry
    assert stage.yard("release", "--label", "run=sel").returncode == EXIT_USAGE, "nobody to ask"
    assert stage.yard("priority", "--label", "run=sel", "--force", "7", check=True).stdout == "Changed: 12 jobs.\n"
    assert {stage.job(job)["priority"] for job in jobs} == {7}
    assert stage.yard("release", "--label", "run=sel", "--force", check=True).stdout == "Released: 12 jobs.\n"
    for job in jobs:
        assert stage.ended(job)["state"] == "SUCCEEDED"
    again = stage.yard("retry", "--label", "run=sel", "--state", "succeeded", "--force", "-o", "name", check=True)
    assert {stage.job(job)["retry_of"] for job in again.stdout.split()} == set(jobs)
    nothing = stage.yard("hold", "--label", "run=none", "--force")
    assert (nothing.returncode, nothing.stderr) == (EXIT_OK, "No job to hold.\n")


def test_cancel_by_selector_counts_asks_and_leaves_others_alone(stage: Stage) -> None:
    mine, others = held(stage, 11, batch="a"), held(stage, 2, batch="b")
    dry = stage.yard("cancel", "--label", "batch=a", "--dry-run", check=True).stdout.splitlines()
    assert dry[0] == "Would cancel 11 jobs:"
    assert set(map(str.strip, dry[1:11])) <= set(mine)
    refused = stage.yard("cancel", "--label", "batch=a")
    assert (refused.returncode, "--force" in refused.stderr) == (EXIT_USAGE, True)
    assert stage.job(mine[0])["state"] == "PENDING"
    done = stage.yard("cancel", "--label", "batch=a", "--force", "--wait", "--reason", "wrong data", check=True)
    assert done.stdout == "Asked for the end of 11 jobs.\n"
    assert {stage.job(job)["state"] for job in mine} == {"CANCELLED"}
    assert "wrong data" in stage.job(mine[0])["reason"]
    assert {stage.job(job)["state"] for job in others} == {"PENDING"}
    nobody = stage.yard("cancel", "--owner", "nobody", "--force")
    assert (nobody.returncode, nobody.stderr) == (EXIT_OK, "No job to cancel.\n")
    left = stage.yard("cancel", "--owner", "me", "--state", "pending", "--force", "-o", "name", check=True).stdout
    assert set(others) <= set(left.split())
    assert stage.call("POST", "/v1/jobs/cancel", {}).status == 400, "an empty selector is a mistake"


@pytest.mark.parametrize("count", [4_000, SOAKED(20_000)])
def test_a_great_many_cancels_leave_the_api_responsive(stage: Stage, count: int) -> None:
    """Thousands of jobs are cancelled at once while others submit: none of them waits long."""
    for _ in range(count // 2000):
        held(stage, 2000, flood="yes")
    took_s: list[float] = []
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.is_set():
            begun = time.monotonic()
            stage.submit("true", hold=True, labels={"calm": "yes"})
            took_s.append((time.monotonic() - begun) / slowness())

    calm = threading.Thread(target=submit)
    calm.start()
    until(lambda: took_s, PATIENCE_S, "a job is submitted")
    with Client(stage.url) as client:
        asked = sum(found.asked for found in client.cancel_many(JobSelector(labels={"flood": "yes"})))
    is_over.set()
    calm.join()
    assert asked == count
    assert not list(client.jobs(labels={"flood": "yes"}, state="PENDING", limit=1))
    late = sorted(took_s)[len(took_s) * 9 // 10]
    assert late < 10.0, "a round is one short transaction"
    stage.yard("cancel", "--label", "calm=yes", "--force", check=True)


def test_ls_since_and_events_since(stage: Stage) -> None:
    old = stage.submit("true", labels={"age": "old"})
    stage.ended(old)
    time.sleep(4)  # the age is the subject
    young = stage.submit("true", labels={"age": "young"})

    def since_s() -> int:
        """Between the two, by the server's clock: whatever a busy machine takes, the younger one is within."""
        return int((stage.get("/v1/version")["now_us"] - stage.job(young)["created_us"]) / 1_000_000) + 2

    def is_alone() -> bool:
        """Asked again if the answer took a second: the younger one may be too old by then."""
        jobs = [job["id"] for job in stage.get(f"/v1/jobs?since_s={since_s()}")["items"]]
        events = {event["job"] for event in stage.get(f"/v1/events?since_s={since_s()}")["items"]}
        assert old not in (*jobs, *events)
        return (jobs, events) == ([young], {young})

    until(is_alone, SOON_S, "the younger one alone is shown")
    assert stage.yard("ls", "--since", "1h", "-l", "age=old", "-o", "name", check=True).stdout == f"{old}\n"
    assert len(stage.read("events", "--since", "1h", "--limit", "7")) == 7
    assert stage.read("events", young, "--since", "1h")[0]["kind"] == "accepted"


def test_watch_shows_again_until_the_end(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = stage.submit("sh", "-c", waiting_for(gate))
    with piped([warm_yard(), "show", job, "--watch"], env=stage.env) as showing:
        assert showing.stdout is not None
        assert any("RUNNING" in line for line in showing.stdout)
        gate.touch()
        assert any("SUCCEEDED" in line for line in showing.stdout)
        assert showing.wait(PATIENCE_S) == EXIT_OK
    with piped([warm_yard(), "ls", "--watch"], env=stage.env) as listing:
        assert listing.stdout is not None
        assert listing.stdout.readline().startswith("ID")
        new = stage.submit("true", name="fresh")
        for line in listing.stdout:
            if line.startswith(new):
                break


def completed(stage: Stage, line: str) -> list[str]:
    """What bash offers for a line, by the real script."""
    words = [*line.split(" ")]
    script = f"""
source <(yard completion bash)
COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_yard
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    env = {**stage.env, "PATH": f"{yard_folder()}:{stage.env['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_asks_the_server(stage: Stage) -> None:
    job = stage.submit("true", name="complete-me")
    assert job in completed(stage, "yard show ")
    assert completed(stage, f"yard cancel {job[:20]}")[-1:] == [job]
    assert completed(stage, "yard submit --cluster al") == ["alpha"]
    assert completed(stage, "yard cluster show ") == ["alpha"]
    assert completed(stage, "yard ls --state = run") == ["running"]
    assert completed(stage, "yard rel") == ["release"]
    assert completed(stage, "yard cluster unc") == ["uncordon"]
    assert "--retry-on" in completed(stage, "yard submit --retry")
    assert completed(stage, "yard explain key-") == ["key-reused"]
    assert completed(stage, "yard submit -- al") == []


def test_completion_is_quick_and_silent_without_a_server(stage: Stage) -> None:
    alone = {**stage.env, "YARD_URL": f"http://127.0.0.1:{free_port()}"}
    begun = time.monotonic()
    done = yard("__complete", "2", "show", "", env=alone)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - begun < SOON_S, "it asks once, for a second"
    assert yard("__complete", "2", "nonsense", "", env=alone).returncode == 0
    assert yard("__complete", env=alone).returncode == 0


# --- the SDK ---


def test_as_completed_gives_them_as_they_end(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow, quick = client.submit(["sh", "-c", waiting_for(gate)]), client.submit("true")
    ended = as_completed([slow, quick, quick], timeout_s=PATIENCE_S)
    assert next(ended).id == quick.id
    gate.touch()
    assert [handle.id for handle in ended] == [slow.id]
    assert slow.exit_code == 0
    stuck = client.submit("true", hold=True)
    with pytest.raises(TimedOut, match="1 of 2 jobs"):
        list(as_completed([slow, stuck], timeout_s=0.5))
    assert list(as_completed([])) == []


def test_events_are_followed_to_the_end(client: Client) -> None:
    job = client.submit("sleep 0.5")
    kinds = [event.kind for event in client.events(job.id, follow=True)]
    assert (kinds[0], kinds[-1]) == ("accepted", "succeeded")
    last = max(event.seq for event in client.events(job.id))
    stream = client.events(after=last, follow=True)
    fresh = client.submit("true")
    assert next(event for event in stream if event.job == fresh.id).kind == "accepted"


def test_the_executor_runs_commands(client: Client, tmp_path: Path) -> None:
    with Executor(client, cores=1, env={"WORD": "hi"}) as executor:
        one = executor.submit(["sh", "-c", "echo $WORD; exit 3"])
        ends = list(executor.map([["sh", "-c", f"exit {code}"] for code in range(4)], timeout=PATIENCE_S))
        held_back = executor.submit("true", hold=True)
        assert held_back.cancel()
        assert held_back.cancelled()
        sleeper = executor.submit("sleep 600")
        until(sleeper.running, SOON_S, "the sleeper runs")
        assert not sleeper.cancel(), "its cluster has to confirm"
        with pytest.raises(CancelledError):
            sleeper.result(timeout=PATIENCE_S)
    assert (one.result().exit_code, one.handle.text()) == (3, "hi\n")
    assert [job.exit_code for job in ends] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError):
        executor.submit("true")


def test_the_executor_ends_what_is_left_when_told_so(client: Client) -> None:
    executor = Executor(client)
    futures = [executor.submit("sleep 600") for _ in range(3)]
    executor.shutdown(cancel_futures=True)
    assert not wait(futures, timeout=0).not_done
    assert {client.job(future.handle.id).state for future in futures} == {State.CANCELLED}


def test_the_executor_in_a_program_of_its_own(stage: Stage, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import switchyard\n"
        "with switchyard.Executor() as executor:\n"
        "    print(executor.submit(['sh', '-c', 'exit 5']).result().exit_code)\n"
    )
    done = run_script([str(program)], env=stage.env, timeout_s=COMMAND_S)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_a_handle_steers_its_job(client: Client) -> None:
    job = client.submit("true", array="0-3", hold=True)
    assert client.change(job.id, priority=9).priority == 9
    job.cancel(tasks="1")
    job.release()
    assert job.wait(timeout_s=PATIENCE_S).state is State.CANCELLED
    assert [(task.index, task.state) for task in job.tasks(state=State.CANCELLED)] == [(1, State.CANCELLED)]
    again: JobHandle = job.retry()
    assert again.wait(timeout_s=PATIENCE_S).retry_of == job.id
    after: Any = client.submit("true", after=[job, again])
    assert after.wait(timeout_s=PATIENCE_S).state in (State.SUCCEEDED, State.FAILED, State.CANCELLED)
    assert json.loads(json.dumps(after.id)) == after.id
