"""Two servers on one PostgreSQL: submit at one, the agent at the other, either killed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard import Client, State
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import call, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.soak import SOAKED
from tests.store.prepared import migrated

TRIES = 5
JOBS = 20
NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}


@pytest.fixture
def shared_url(postgres: Postgres) -> str:
    return migrated(postgres)


def test_a_job_submitted_at_one_server_runs_through_the_other(tmp_path: Path, shared_url: str) -> None:
    with (
        start_server(tmp_path, database=shared_url, name="one") as one,
        start_server(tmp_path, database=shared_url, name="two") as two,
        start_agent(tmp_path, two.url, "alpha", graph=NODES),
        Client(one.url) as client,
    ):
        took_s: list[float] = []
        while len(took_s) < TRIES and min(took_s, default=4) >= 4:  # the best of them: the machine may be busy
            began = time.monotonic()
            job = client.submit(["echo", "hello"]).wait(timeout_s=PATIENCE_S)
            took_s.append(time.monotonic() - began)
            assert job.state is State.SUCCEEDED
            assert client.handle(job.id).output() == b"hello\n"
        # Well under the five seconds of the sweep: the wake-up crossed from one server to the other.
        assert min(took_s) < 4


def test_a_file_is_looked_at_through_another_server_than_the_agents(tmp_path: Path, shared_url: str) -> None:
    gate = tmp_path / "go"
    script = f"head -c 300000 /dev/zero > large; until [ -e {gate} ]; do sleep 0.05; done; printf end >> large"
    with (
        start_server(tmp_path, database=shared_url, name="one") as one,
        start_server(tmp_path, database=shared_url, name="two") as two,
        start_agent(tmp_path, two.url, "alpha", graph=NODES),
        Client(one.url) as client,
    ):
        job = client.submit(["sh", "-c", script], out=["nothing"])
        parts = client.logs(job.id, file="large")
        data = b""
        while len(data) < 300_000:
            data += b"".join(chunk.data for chunk in next(parts).chunks)
        gate.touch()
        data += b"".join(chunk.data for part in parts for chunk in part.chunks)
        assert data == bytes(300_000) + b"end"


# The second has neither the lead nor the client; the agent that loses it is in the next test.
@pytest.mark.parametrize("victim", ["one", SOAKED("two")])
def test_either_server_may_be_killed(tmp_path: Path, shared_url: str, victim: str) -> None:
    ledger = Ledger(tmp_path)
    with (
        start_server(tmp_path, database=shared_url, name="one") as one,
        start_server(tmp_path, database=shared_url, name="two") as two,
        start_agent(tmp_path, two.url, "alpha", graph=NODES),
        start_agent(tmp_path, one.url, "beta", graph=NODES),
        Client(one.url, retry_s=PATIENCE_S) as client,
    ):
        killed = {"one": one, "two": two}[victim]
        with ThreadPoolExecutor(1) as aside:
            ids = aside.submit(
                lambda: [client.submit(ledger.command("sleep 0.1"), env=ledger.env).id for _ in range(JOBS)]
            )
            for _ in range(2):  # here, not aside: the kernel ends a program with the thread that started it
                time.sleep(0.5)  # between two kills: jobs are at every step
                killed.kill()
                killed.start()
            killed.wait_ready()
            assert_each_ran_once(ledger, wait_all_final(client, ids.result(PATIENCE_S), PATIENCE_S))


def test_an_agent_with_both_urls_goes_over_when_its_server_dies(tmp_path: Path, shared_url: str) -> None:
    with (
        start_server(tmp_path, database=shared_url, name="one") as one,
        start_server(tmp_path, database=shared_url, name="two") as two,
        start_agent(tmp_path, two.url, "alpha", graph=NODES, extra=["--server", one.url]),
        Client(one.url) as client,
    ):
        two.kill()
        job = client.submit(["true"]).wait(timeout_s=PATIENCE_S)
        assert job.state is State.SUCCEEDED


def test_no_server_denies_what_another_has_just_made_or_granted(tmp_path: Path, shared_url: str) -> None:
    """Behind a balancer each of these may come to another server, a moment after the one before."""
    with (
        start_server(tmp_path, database=shared_url, name="one", auth=True) as one,
        start_server(tmp_path, database=shared_url, name="two", auth=True) as two,
        Client(one.url, token=one.admin_token) as here,
        Client(two.url, token=one.admin_token) as there,
    ):
        here.create_user("ada")
        token = here.create_token(user="ada").token
        with Client(two.url, token=token) as adas:
            for number in range(5):
                name = f"c{number}"
                here.create_cluster(name)
                assert there.cluster(name).name == name
                here.create_cluster(f"{name}-too")
                there.set_graph(f"{name}-too", b"nodes: 2\neach: {core: 8}")
                here.create_project(name)
                here.create_grant("view", to="user", on="project", subject="ada", object=name)
                assert adas.project(name).name == name
                job = here.submit(["true"], project=name, hold=True)
                assert adas.job(job.id).project == name
                here.create_project(f"{name}-too")
                waiting = here.submit(["true"], project=f"{name}-too", hold=True).id
                here.create_grant("view", to="user", on="project", subject="ada", object=f"{name}-too")
                waited = call("GET", f"{two.url}/v1/jobs/{waiting}/wait?timeout_s=0.1", token=token)
                assert waited.status == 200, waited.body


def test_a_graph_set_at_one_server_is_known_at_the_other(tmp_path: Path, shared_url: str) -> None:
    with (
        start_server(tmp_path, database=shared_url, name="one") as one,
        start_server(tmp_path, database=shared_url, name="two") as two,
        Client(one.url) as here,
        Client(two.url) as there,
    ):
        here.create_cluster("alpha")
        here.set_graph("alpha", b"nodes: 2\neach: {core: 8}")
        until(lambda: there.cluster("alpha").totals.get("core") == 16, PATIENCE_S, "the other server knows it")
        here.set_subsystem("alpha", "io", b"attach: {node0: [{type: shm}]}")
        until(lambda: any(shape.attached for shape in there.graph("alpha").shapes), PATIENCE_S, "and what is attached")
        here.delete_cluster("alpha")
        until(lambda: not list(there.clusters()), PATIENCE_S, "and that it is gone")


def test_a_server_whose_token_pools_are_of_another_type_does_not_start(tmp_path: Path, shared_url: str) -> None:
    """It would let jobs run without the tokens that the others count."""
    file = tmp_path / "tokens.yaml"
    file.write_text("resourcemanager: {type: memory}\n")
    with start_server(tmp_path, database=shared_url, name="one", extra=["--config", str(file)]) as one:
        until(lambda: call("GET", f"{one.url}/v1/token-pools").status == 200, PATIENCE_S, "it serves")
        options = ["--data", str(tmp_path / "two"), "--http", f"127.0.0.1:{free_port()}", "--database", shared_url]
        refused = yard("server", *options, env=isolated_env(tmp_path))
        assert refused.returncode == 6
        assert "token pools of the type memory, and this one has noop (resourcemanager.type)" in refused.stderr
        assert "next: Give all of them one config" in refused.stderr
        assert "for one server" in one.log
    with start_server(tmp_path, database=shared_url, name="two"):
        pass  # all were stopped: another type may come
