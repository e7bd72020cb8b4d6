"""`yard agent` as its user meets it: joining, refusals, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.agent.server import credential as credentials
from switchyard.errors import EXIT_UNAVAILABLE, AgentLives, Unauthenticated
from tests.agent.conftest import Starter
from tests.agent.peer import AGENT, Peer
from tests.processes import free_port
from tests.programs import isolated_env, yard

SOON_S = 60.0  # it gives up after 3; starting takes its time on a busy machine


def test_join_prints_one_line_and_keeps_a_private_credential(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url, "--token", "join_x", "--name", "first")
    peer.wait_parked()
    assert f"joined cluster alpha as agent first ({AGENT})\n" in running.log
    [join] = peer.joins
    assert (join.cluster, join.name, join.backend) == ("alpha", "first", "local")
    kept = tmp_path / "data" / credentials.CREDENTIAL_FILE
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["journal"] == join.journal


def test_unreachable_server_is_told_at_once(agent: Starter) -> None:
    running = agent(f"http://127.0.0.1:{free_port()}")
    assert running.wait(SOON_S) == EXIT_UNAVAILABLE
    assert "connection refused" in running.log
    assert "next: Check the server's address" in running.log


def test_server_that_never_answers_is_not_waited_for(agent: Starter) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        running = agent(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert running.wait(SOON_S) == EXIT_UNAVAILABLE
    assert "no answer in time" in running.log


@pytest.mark.parametrize(
    ("refusal", "code", "says"),
    [
        (Unauthenticated("This join token has expired."), 4, "This join token has expired."),
        (AgentLives("An agent first of cluster alpha is alive."), 6, "start this one with another --name"),
    ],
)
def test_refused_join_says_why(peer: Peer, agent: Starter, refusal: Exception, code: int, says: str) -> None:
    peer.refuse_join = refusal  # type: ignore[assignment]
    running = agent(peer.url)
    assert running.wait(SOON_S) == code
    assert says in running.log
    assert peer.polls == []


def test_second_agent_on_one_folder_is_refused(peer: Peer, agent: Starter) -> None:
    first = agent(peer.url)
    peer.wait_parked()
    second = agent(peer.url)
    assert second.wait(SOON_S) == 6
    assert f"Another agent (pid {first.pid}) already uses" in second.log


def test_folder_of_another_cluster_is_refused(peer: Peer, agent: Starter) -> None:
    first = agent(peer.url)
    peer.wait_parked()
    first.terminate()
    second = agent(peer.url, cluster="beta")
    assert second.wait(SOON_S) == 2
    assert "belongs to an agent of cluster alpha, not beta" in second.log


def test_next_server_is_tried_when_the_first_is_down(peer: Peer, agent: Starter) -> None:
    agent(f"http://127.0.0.1:{free_port()}", "--server", peer.url)
    peer.wait_parked()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cluster", "a b", "--backend", "local"], "is not a name"),
        (["--cluster", "alpha", "--backend", "condor"], "Installed are: fake, flux, kubernetes, local, slurm"),
        (["--cluster", "alpha", "--backend", "local", "--server", "ftp://x"], "is not a server's URL"),
        (["--cluster", "alpha", "--backend", "local", "--jobs-max", "0"], "--jobs-max must be from 1"),
        (["--cluster", "alpha", "--backend", "slurm", "--jobs-end-with-agent"], "goes with --backend local"),
        (["--cluster", "alpha"], "--backend"),
    ],
)
def test_wrong_use_is_exit_two_with_the_reason(tmp_path: Path, args: list[str], says: str) -> None:
    done = yard("agent", *args, env=isolated_env(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "home/.local").exists(), "nothing was touched"


def test_missing_graph_file_is_told(tmp_path: Path) -> None:
    done = yard("agent", "--cluster", "a", "--backend", "local", "--graph", "/no/such.yaml", env=isolated_env(tmp_path))
    assert done.returncode == 3
    assert "There is no graph file /no/such.yaml" in done.stderr


def test_discover_prints_what_graph_reads(tmp_path: Path) -> None:
    env = isolated_env(tmp_path)
    found = yard("agent", "discover", env=env, check=True).stdout
    (tmp_path / "graph.yaml").write_text(found)
    words = ["agent", "discover", "--graph", str(tmp_path / "graph.yaml"), "-o", "json"]
    read = json.loads(yard(*words, env=env, check=True).stdout)
    plain = json.loads(yard("agent", "discover", "-o", "json", env=env, check=True).stdout)
    assert (read["nodes"], read["totals"]["core"]) == (plain["nodes"], plain["each"]["core"])
    assert plain["each"]["core"] == len(os.sched_getaffinity(0)) or plain["each"]["core"] >= 1


def test_default_folder_is_private_and_under_home(tmp_path: Path, peer: Peer) -> None:
    env = isolated_env(tmp_path, url=peer.url) | {"YARD_JOIN_TOKEN": "join_secret"}
    argv = [sys.executable, "-m", "switchyard.main", "agent", "--cluster", "alpha", "--backend", "local"]
    running = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        peer.wait_parked()
        folder = tmp_path / "home/.local/share/switchyard/agents/alpha"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "journal.db").exists()
    finally:
        running.terminate()
        running.wait(SOON_S)
