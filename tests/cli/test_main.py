"""Finding the command, its help, and the way every failure ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import pytest

from switchyard.commands import all_commands
from tests.cli.conftest import Done
from tests.processes import piped
from tests.sdk.peer import Peer, Say, a_job, problem

OURS = [
    command
    for commands in all_commands().values()
    for command, path, _ in commands
    if path.startswith("switchyard.cli")
]
MODULE_OF = {command: path for commands in all_commands().values() for command, path, _ in commands}
NOUNS = ["cluster", "user", "token", "grant", "project", "cluster-resources"]
VERBS = [(noun, verb.name) for noun in NOUNS for verb in import_module(MODULE_OF[noun]).VERBS]

MODULES = """
import sys
from switchyard.main import main
code = main(sys.argv[1:])
print(" ".join(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def modules_of(*args: str) -> set[str]:
    """All that is imported once a command has run, piped."""
    done = subprocess.run([sys.executable, "-c", MODULES, *args], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def test_help_lists_every_command_in_groups(yard: Callable[..., Done]) -> None:
    done = yard("--help")
    assert done.code == 0
    for group, commands in all_commands().items():
        assert f"\n{group}\n" in done.out
        for command, _, summary in commands:
            assert f"  {command:<17} {summary}\n" in done.out
    assert all(len(line) <= 120 for line in done.out.splitlines())
    assert yard().code == 2
    assert yard("help", "ls").out == yard("ls", "--help").out


@pytest.mark.parametrize(
    "words", [[name] for name in OURS] + [[*pair] for pair in [*VERBS, ("agent", "ls"), ("agent", "rm")]]
)
def test_every_command_has_help(yard: Callable[..., Done], words: list[str]) -> None:
    done = yard(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: yard {' '.join(words)}")
    assert "examples:\n  " in done.out
    if words[0] in NOUNS and len(words) == 1:
        assert "verbs:" in done.out


def test_a_mistyped_command_gets_the_closest_one(yard: Callable[..., Done]) -> None:
    done = yard("sumbit", "--", "x")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == "error: There is no command 'sumbit'.\nnext: Did you mean `yard submit`? `yard --help` lists them all.\n"
    )
    assert "invite" in yard("cluster", "invit", "x").err.splitlines()[1]
    assert yard("cluster").code == 2


def test_a_mistyped_option_says_where_the_options_are(yard: Callable[..., Done]) -> None:
    done = yard("ls", "--stat", "running")
    assert done.code == 2
    assert done.err.endswith("next: `yard ls --help` has the options.\n")
    assert "after the command" in yard("--server", "http://h:1", "ls").err


def test_version(yard: Callable[..., Done], peer: Peer) -> None:
    assert yard("--version").out.startswith("yard 0")
    peer.on("GET", "/v1/version", Say({"version": "9.9", "now_us": 1}))
    assert f"server  9.9  ({peer.url})" in yard("version").out
    peer.on("GET", "/v1/version", Say(text="?", status=500))
    assert (yard("version").code, "does not answer" in yard("version").out) == (0, True)


def test_agent_verbs_ask_the_server(yard: Callable[..., Done], peer: Peer) -> None:
    agent = {"id": "01JCQ0", "name": "one", "cluster": "alpha", "backend": "local", "is_live": True}
    peer.on("GET", "/v1/agents", Say({"items": [agent], "next": None}))
    peer.on("DELETE", "/v1/agents/01JCQ0", Say({"deleted": "01JCQ0"}))
    assert "one" in yard("agent", "ls").out
    assert yard("agent", "show", "one", "-o", "name").out == "01JCQ0\n"
    assert yard("agent", "rm", "01J", "--force").code == 0
    assert yard("agent", "show", "two").code == 3


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "malformed", 2),
        (401, "unauthenticated", 4),
        (403, "denied", 4),
        (404, "no-such-job", 3),
        (409, "conflict", 6),
        (410, "gone", 6),
        (422, "policy-refused", 5),
        (500, "internal", 1),
        (503, "unavailable", 69),
        (504, "timed-out", 7),
    ],
)
def test_a_failure_says_what_and_what_next_and_has_its_code(
    yard: Callable[..., Done], peer: Peer, status: int, code: str, exit_code: int
) -> None:
    peer.on("GET", "/v1/jobs/*", problem(status, code, "It went wrong.", "Do this."))
    done = yard("show", "01JCQ0V7")
    assert (done.code, done.out) == (exit_code, "")
    # On a busy machine the retries of a 503 take so long that they are told first.
    assert done.err.endswith("error: It went wrong.\nnext: Do this.\n")
    assert status == 503 or done.err.startswith("error: ")


def test_a_reader_that_goes_away_is_no_error(peer: Peer) -> None:
    jobs = [a_job(name="x" * 200) for _ in range(2000)]  # far more than a pipe holds
    peer.on("GET", "/v1/jobs", Say({"items": jobs, "next": None}))
    command = [sys.executable, "-m", "switchyard.main", "ls", "--limit", "2000"]
    with piped(command) as listing:
        assert listing.stdout
        assert listing.stderr
        os.read(listing.stdout.fileno(), 1)
        listing.stdout.close()
        assert listing.stderr.read() == ""
        assert listing.wait(60) == 141


def test_an_interrupt_ends_with_130(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", Say(a_job()))
    command = [sys.executable, "-m", "switchyard.main", "wait", "01JCQ0V7"]
    with piped(command) as waiting:
        assert waiting.stderr
        assert "RUNNING" in waiting.stderr.readline()
        os.kill(waiting.pid, signal.SIGINT)
        assert waiting.wait(60) == 130
        assert "Traceback" not in waiting.stderr.read()


def test_a_piped_list_starts_without_the_heavy_libraries(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on("GET", "/v1/whoami", Say({"name": "alice"}))
    peer.on("GET", "/v1/jobs", Say({"items": [a_job()], "next": None}))
    done = subprocess.run(
        [sys.executable, "-m", "switchyard.main", "login", "--token-stdin"],
        input="yard_x_y\n",
        text=True,
        capture_output=True,
        check=True,
    )
    assert "Signed in" in done.stdout
    loaded = modules_of("ls")  # with a stored token, so the user's file is read, too
    assert peer.asked[-1].headers["authorization"] == "Bearer yard_x_y"
    assert not {"rich", "yaml", "asyncio", "tempfile", "switchyard.cli.submit.submit", "switchyard.agent"} & loaded


def test_help_starts_with_next_to_nothing() -> None:
    loaded = modules_of("--help")
    assert not {"argparse", "msgspec", "http.client", "rich", "yaml", "dataclasses"} & loaded
    assert not {"msgspec.json", "http.client", "rich", "yaml"} & modules_of("--version")
