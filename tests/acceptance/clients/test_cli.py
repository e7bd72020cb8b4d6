"""The command line and the SDK against a real server: exit codes, forms, signing in, and outlasting a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard import Client, State
from switchyard.cli.terminal.connect import SUBMIT_RETRY_S
from switchyard.errors import (
    EXIT_CONFLICT,
    EXIT_DENIED,
    EXIT_NOT_FOUND,
    EXIT_OK,
    EXIT_REJECTED,
    EXIT_TIMED_OUT,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    NotFound,
    TimedOut,
)
from tests.acceptance.stage import Stage, staged, waiting_for
from tests.processes import PATIENCE_S, free_port
from tests.programs import isolated_env, yard

pytestmark = pytest.mark.xdist_group("cli")
RESTARTS_MAX = 5
READS_MAX = 100  # each takes about a second; the jobs of earlier tests end within a few


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made, made.agent("alpha"):
        yield made


def test_every_exit_code_is_what_the_help_says(stage: Stage) -> None:
    alone = {**stage.env, "YARD_URL": f"http://127.0.0.1:{free_port()}"}
    nobody = {**stage.env, "YARD_TOKEN": f"yard_{'0' * 26}_x"}
    sleeper = stage.submit("sleep", "600")
    commands: dict[int, list[tuple[str, ...]]] = {
        EXIT_OK: [("ls",), ("--help",), ("submit", "--", "true")],
        EXIT_USAGE: [
            *((), ("lss",), ("ls", "--nonsense"), ("ls", "--state", "asleep"), ("submit",), ("user", "rm", "admin")),
            *(("submit", "-c", "many", "--", "true"), ("submit", "--project", "nowhere", "--", "true")),
        ],
        EXIT_NOT_FOUND: [
            *(("show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), ("logs", "zzzzzz"), ("cluster", "show", "nowhere")),
            ("token", "revoke", "nothing"),
        ],
        EXIT_REJECTED: [("submit", "-c", "999", "--", "true"), ("submit", "--plan", "-c", "999", "--", "true")],
        EXIT_CONFLICT: [("cluster", "create", "alpha"), ("project", "create", "default")],
        EXIT_TIMED_OUT: [("wait", sleeper, "--timeout", "1")],
    }
    wrong = {
        args: (done.returncode, done.stderr)
        for code, many in commands.items()
        for args in many
        if (done := stage.yard(*args)).returncode != code
    }
    assert wrong == {}
    assert yard("ls", env=nobody).returncode == EXIT_DENIED
    unreachable = yard("ls", env=alone)
    assert unreachable.returncode == EXIT_UNAVAILABLE
    assert [line.partition(":")[0] for line in unreachable.stderr.splitlines()][-2:] == ["error", "next"]
    stage.post(f"/v1/jobs/{sleeper}/cancel", {})


def test_wait_exits_as_the_job_did(stage: Stage) -> None:
    for script, code in (("exit 0", 0), ("exit 17", 17), ("kill -15 $$", 128 + 15)):
        done = stage.yard("submit", "--wait", "--", "sh", "-c", f"echo out; echo err >&2; {script}")
        assert (done.returncode, done.stdout) == (code, "out\n")
        assert "err\n" in done.stderr
    job = stage.submit("sleep", "600")
    stage.yard("cancel", "--wait", job, check=True)
    assert stage.yard("wait", job).returncode == 130


@pytest.mark.parametrize(
    "command",
    [
        *(("ls",), ("cluster", "ls"), ("cluster", "show", "alpha"), ("agent", "ls"), ("user", "ls"), ("token", "ls")),
        *(("grant", "ls"), ("project", "ls"), ("whoami",), ("audit",), ("submit", "--", "true")),
    ],
)
def test_json_and_names_can_be_read_back(stage: Stage, command: tuple[str, ...]) -> None:
    at = command.index("--") if "--" in command else len(command)
    found = stage.read(*command)
    names = stage.yard(*command[:at], "-o", "name", *command[at:], check=True).stdout.split()
    assert found
    assert len(names) == (len(found) if isinstance(found, list) else 1)


@pytest.mark.parametrize("command", [("cluster", "show", "alpha"), ("grant", "ls"), ("user", "ls")])
def test_yaml_says_the_same_as_json(stage: Stage, command: tuple[str, ...]) -> None:
    def read_between() -> tuple[Any, Any, Any]:
        """Read the YAML between two reads of the JSON: a cluster's load changes while jobs end."""
        before = stage.read(*command)
        between = yaml.safe_load(stage.yard(*command, "-o", "yaml", check=True).stdout)
        return without_seen(before), without_seen(between), without_seen(stage.read(*command))

    reads = (read_between() for _ in range(READS_MAX))
    before, between, _ = next(read for read in reads if read[0] == read[2])
    assert between == before


def without_seen(answer: Any) -> Any:
    for item in answer if isinstance(answer, list) else [answer]:
        item.pop("seen_us", None)  # it changes with every poll of an agent
    return answer


def test_nothing_but_text_goes_into_a_pipe(stage: Stage) -> None:
    coloured = {key: value for key, value in stage.env.items() if key not in ("NO_COLOR", "COLUMNS")}
    env = {**coloured, "TERM": "xterm-256color", "CLICOLOR_FORCE": "0"}
    job = stage.submit("sh", "-c", "exit 3", labels={"colour": "no"})
    stage.ended(job)
    for args in (("ls",), ("show", job), ("explain", job), ("events", job), ("cluster", "ls"), ("wait", job), ()):
        done = yard(*args, env=env)
        assert "\x1b" not in done.stdout + done.stderr, args
    assert job in yard("ls", env=env).stdout, "a pipe gets ids whole"


def test_a_job_is_found_by_the_start_of_its_id(stage: Stage) -> None:
    job = stage.submit("echo", "found")
    stage.ended(job)
    # The first ten characters are the time: of jobs made in one millisecond, more is needed.
    assert stage.read("show", job[:20])["id"] == job
    assert stage.raw("logs", job[:20].lower())[0] == b"found\n"
    many = stage.yard("show", job[:6])
    assert many.returncode in (EXIT_OK, EXIT_USAGE), "one job, or a request for more of its id"
    assert stage.yard("show", job[:5]).returncode == EXIT_NOT_FOUND


def test_login_keeps_a_token_only_after_the_server_took_it(stage: Stage, tmp_path: Path) -> None:
    env = isolated_env(tmp_path)
    file = Path(env["YARD_CONFIG"])
    login = ["login", "--token-stdin", "--server", stage.url]
    assert yard(*login, stdin="yard_nonsense\n", env=env).returncode == EXIT_DENIED
    assert not file.exists()
    assert stage.token is not None
    done = yard(*login, stdin=f"{stage.token}\n", env=env, check=True)
    assert stage.token not in done.stdout + done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert yard("whoami", env=env).stdout.split()[1] == "admin", "the server became the default one"
    yard("logout", env=env, check=True)
    assert yard("whoami", env=env).returncode == EXIT_DENIED
    assert stage.token not in file.read_text()


def test_what_cannot_be_undone_is_not_done_without_a_terminal(stage: Stage) -> None:
    stage.post("/v1/users", {"name": "kept"})
    refused = stage.yard("user", "rm", "kept")
    assert (refused.returncode, "--force" in refused.stderr) == (EXIT_USAGE, True)
    assert stage.yard("user", "show", "kept").returncode == EXIT_OK


def test_a_job_file_and_flags_make_one_job(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [sh, -c, 'echo $WORD $SWITCHYARD_TASKS']\nname: from-file\nenv: {WORD: file}\ntasks: 2\n"
        "labels: {team: ml}\nmemory: 1MiB\n"
    )
    job = stage.read("submit", "-f", str(file), "--env", "WORD=flag", "-l", "run=7")["id"]
    ended = stage.ended(job)
    assert (ended["name"], ended["labels"]) == ("from-file", {"team": "ml", "run": "7"})
    assert stage.raw("logs", job)[0] == b"flag 2\n"
    piped = stage.yard("submit", "-f", "-", "-o", "name", stdin="command: echo 'two words'\n", check=True)
    stage.ended(piped.stdout.strip())
    assert stage.raw("logs", piped.stdout.strip())[0] == b"two words\n"


def test_the_sdk_submits_waits_and_reads(client: Client) -> None:
    handle = client.submit(["sh", "-c", "echo $WORD; echo no >&2; exit 2"], env={"WORD": "yes"}, cores=2, name="sdk")
    job = handle.wait(timeout_s=PATIENCE_S)
    assert (job.state, handle.exit_code, handle.output(), handle.text("stderr")) == (State.FAILED, 2, b"yes\n", "no\n")
    assert [event.kind for event in client.events(job.id)][-1] == "failed"
    assert handle.explain().plan is not None
    with pytest.raises(NotFound):
        client.job("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    sleeper = client.submit("sleep 600")
    with pytest.raises(TimedOut):
        sleeper.wait(timeout_s=0.5)
    sleeper.cancel()
    assert sleeper.wait(timeout_s=PATIENCE_S).state is State.CANCELLED


def test_the_sdk_outlasts_a_server_that_is_killed(stage: Stage, tmp_path: Path) -> None:
    """Submits and waits begun while there is no server, and one begun before: each job is made once."""
    with Client(stage.url, stage.token, retry_s=PATIENCE_S) as client:
        outlasting(stage, client, tmp_path / "gate")


def outlasting(stage: Stage, client: Client, gate: Path) -> None:
    before = client.submit(["sh", "-c", waiting_for(gate)], labels={"outage": "yes"})
    made: list[State] = []

    def work(number: int) -> None:
        if number == 0:
            made.append(before.wait(timeout_s=PATIENCE_S).state)
        else:
            made.append(client.submit(["true"], labels={"outage": "yes"}).wait(timeout_s=PATIENCE_S).state)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    threads[0].start()
    stage.server.kill()
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.3)  # the outage is the subject: all of them meet a server that is not there
    assert made == []
    stage.server.start().wait_ready()
    gate.touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert made == [State.SUCCEEDED] * 4
    assert len(list(client.jobs(labels={"outage": "yes"}))) == 4


def test_a_command_outlasts_a_restart_of_the_server(stage: Stage) -> None:
    for _ in range(RESTARTS_MAX):
        stage.server.kill()
        begun = time.monotonic()
        stage.server.start()  # not ready for about a second
        done = stage.yard("submit", "--wait", "--", "echo", "back")
        stage.server.wait_ready()
        if time.monotonic() - begun < SUBMIT_RETRY_S:
            break  # a start that took longer than the command tries again says nothing
    assert (done.returncode, done.stdout) == (EXIT_OK, "back\n"), done.stderr
