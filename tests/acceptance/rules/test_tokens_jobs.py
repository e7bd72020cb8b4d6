"""Jobs that need tokens: taken at assignment, given back at the end whatever it is, in order, repaired, rebuilt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client, State
from switchyard.errors import BadRequest, UnknownName
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.tokens.pools import JobToken
from tests.acceptance.bed import Ledger
from tests.acceptance.rules.pools import write
from tests.processes import PATIENCE_S, until
from tests.programs import Server, call, isolated_env, start_agent, start_server, yard
from tests.redis_service import RedisServer, redis_running

pytestmark = pytest.mark.xdist_group("tokens-jobs")
NODES = {"nodes": 4, "each": {"core": 16, "memory": "64GiB"}}
CONFIG = """\
resourcemanager:
  type: redis
  resourceMaxQuota: 100
  leaseMax: 2s
  taskTypes: {{hive: {{default_cluster: 1}}}}
  redis: {{hostPaths: ['{}']}}
"""
WAIT = ["/bin/sh", "-c", 'while [ ! -e "$GO" ]; do sleep 0.05; done; exit "${CODE:-0}"']


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_running() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens-jobs")


@pytest.fixture(scope="module")
def server(folder: Path, redis: RedisServer) -> Iterator[Server]:
    config = write(folder, CONFIG.format(redis.address))
    with (
        start_server(folder, extra=["--config", config]) as one,
        start_agent(folder, one.url, "alpha", graph=NODES),
    ):
        yield one


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one


def pool(client: Client, name: str, quota: int) -> str:
    client.register_token_pool(name, quota)
    until(lambda: client.token_pool(name).opens_in_s == 0, PATIENCE_S, f"{name} is open")
    return name


def used(client: Client, name: str) -> int:
    return client.token_pool(name).used


def state(client: Client, job: str) -> State:
    return client.job(job).state


def test_exhausted_it_waits_says_who_holds_and_goes_when_one_frees(
    client: Client, server: Server, folder: Path, tmp_path: Path
) -> None:
    matlab = pool(client, "matlab", 1)
    go = tmp_path / "go"
    first = client.submit(WAIT, env={"GO": str(go)}, tokens={matlab: 1})
    until(lambda: state(client, first.id) is State.RUNNING, PATIENCE_S, "the first runs")
    env = isolated_env(folder, url=server.url)
    second = yard("submit", "--token", "matlab", "-o", "name", "--", "true", env=env, check=True).stdout.strip()
    until(lambda: client.job(second).reason == f"matlab 1/1, held by job {first.id}", PATIENCE_S, "it says who holds")
    assert state(client, second) is State.PENDING
    assert client.token_pool(matlab).waiting == 1
    explained = yard("explain", second, env=env).stdout
    assert "1 of matlab; taken when it is assigned" in explained
    assert "1 more matlab token" in explained
    shown = call("GET", f"{server.url}/metrics").body.decode()
    for word, value in (("used", 1), ("quota", 1), ("waiting", 1), ("refusals_total", 1)):
        assert f'switchyard_token_{word}{{token_pool="matlab"}} {value}.0' in shown
    assert [(holder.job, holder.units) for holder in client.token_holders(matlab)] == [(first.id, 1)]
    go.touch()
    assert client.handle(second).wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
    until(lambda: used(client, matlab) == 0, PATIENCE_S, "all is given back")
    assert client.token_pool(matlab).repaired == 0


def test_given_back_whatever_the_end(client: Client, tmp_path: Path) -> None:
    name = pool(client, "ends", 10)
    go = tmp_path / "go"
    env = {"GO": str(go)}
    failed = client.submit(WAIT, env={**env, "CODE": "3"}, tokens={name: 2})
    cancelled = client.submit(WAIT, env=env, tokens={name: 3})
    retried = client.submit(WAIT, env={**env, "CODE": "1"}, tokens={name: 1}, retry={"limit": 1, "backoff": 1})
    until(lambda: used(client, name) == 6, PATIENCE_S, "all hold")
    cancelled.cancel()
    until(lambda: used(client, name) == 3, PATIENCE_S, "the cancelled one gave back")
    go.touch()
    assert {failed.wait(timeout_s=PATIENCE_S).state, retried.wait(timeout_s=PATIENCE_S).state} == {State.FAILED}
    until(lambda: used(client, name) == 0, PATIENCE_S, "all gave back")


def test_next_in_fair_order_and_nobody_overtakes(client: Client, tmp_path: Path) -> None:
    """A job that needs much stands before those that need little; a higher priority before all; projects in turn."""
    name = pool(client, "order", 4)
    client.create_project("other")
    ledger, go = Ledger(tmp_path), tmp_path / "go"
    holder = client.submit(WAIT, env={"GO": str(go)}, tokens={name: 1})
    until(lambda: state(client, holder.id) is State.RUNNING, PATIENCE_S, "one holds")
    command = ledger.command("sleep 0.1")
    large = client.submit(command, env=ledger.env, tokens={name: 4})
    small = [client.submit(command, env=ledger.env, tokens={name: 4}) for _ in range(2)]
    other = client.submit(command, env=ledger.env, tokens={name: 4}, project="other")
    urgent = client.submit(command, env=ledger.env, tokens={name: 4}, priority=10)
    little = client.submit(["true"], tokens={name: 1})
    until(lambda: client.token_pool(name).waiting == 6, PATIENCE_S, "all wait")
    assert state(client, little.id) is State.PENDING, "it would fit, but others stand before it"
    go.touch()
    for job in (large, *small, other, urgent, little):
        assert job.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
    ran = ledger.file.read_text().split()
    assert ran == [urgent.id, other.id, large.id, small[0].id, small[1].id]


def test_by_type_of_task_and_by_attribute_merged_by_key(client: Client, server: Server, folder: Path) -> None:
    for name in ("default_cluster", "licence", "extra"):
        pool(client, name, 50)
    client.create_project("ruled")
    env = isolated_env(folder, url=server.url)
    for text, where in (
        ("tokens: {licence: 1, extra: 2}\nproject: ruled\n", "project"),
        ("tokens: {extra: 0}\nproject: ruled\ndomain: staging\n", "domain"),
    ):
        file = write(folder, text, f"tokens-{where}.yaml")
        yard("update", "tokens", "--attrFile", file, "--force", env=env, check=True)
    needs = {
        domain: client.job(
            client.submit(["true"], task_type="hive", project="ruled", domain=domain, tokens={"licence": 3}).id
        ).tokens
        for domain in ("development", "staging")
    }
    assert needs == {
        "development": {"default_cluster": 1, "licence": 3, "extra": 2},
        "staging": {"default_cluster": 1, "licence": 3},
    }
    less = client.submit(["true"], project="ruled", tokens={"extra": 1})
    assert client.job(less.id).tokens == {
        "licence": 1,
        "extra": 2,
    }  # a job may ask for more than its rules, not for less
    kinds = json.loads(yard("get", "tokens", "-p", "ruled", "-o", "json", env=env).stdout)
    assert "licence" in json.dumps(kinds)


def test_an_array_holds_as_many_as_its_tasks_can_use_at_once(client: Client, tmp_path: Path) -> None:
    name = pool(client, "array", 10)
    go = tmp_path / "go"
    job = client.submit(WAIT, env={"GO": str(go)}, tokens={name: 2}, array="0-7%3")
    until(lambda: used(client, name) == 6, PATIENCE_S, "three tasks at once")
    go.touch()
    assert job.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
    until(lambda: used(client, name) == 0, PATIENCE_S, "all is given back")


def test_what_could_never_be_granted_is_refused(client: Client) -> None:
    pool(client, "known", 5)
    with pytest.raises(UnknownName, match="no token pool 'nobody'"):
        client.submit(["true"], tokens={"nobody": 1})
    with pytest.raises(BadRequest, match="no pool has more than 100"):
        client.submit(["true"], tokens={"known": 101})
    with pytest.raises(BadRequest, match="no pool has more than 100"):
        client.submit(["true"], tokens={"known": 2}, array="0-99")
    for units in (0, -1):
        with pytest.raises(BadRequest):
            client.submit(["true"], tokens={"known": units})


def test_a_difference_is_repaired_and_counted(client: Client, redis: RedisServer, tmp_path: Path) -> None:
    """Somebody meddles with Redis: a token of a job that is none, and a job's token that is gone."""
    name = pool(client, "meddled", 5)
    go = tmp_path / "go"
    job = client.submit(WAIT, env={"GO": str(go)}, tokens={name: 2})
    until(lambda: used(client, name) == 2, PATIENCE_S, "it holds")
    pools = RedisPools(RedisConnectionPool([redis.address]), quota_max=100)
    pools._term = str(redis.client().hget("{redisresourcemanager}:epoch", "term"))
    pools.job_restore(name, [JobToken("01NOBODY", 3, "default", "development")])
    pools.job_give(name, [JobToken(job.id, 2, "default", "development")])
    assert used(client, name) == 3 or client.token_pool(name).repaired, "unless the leader has compared already"
    until(lambda: client.token_pool(name).repaired >= 2, PATIENCE_S, "the leader compares")
    assert [holder.job for holder in client.token_holders(name)] == [job.id]
    go.touch()
    assert job.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED


def test_redis_lost_and_back_is_rebuilt_from_the_store(client: Client, redis: RedisServer, tmp_path: Path) -> None:
    name = pool(client, "rebuilt", 2)
    go = tmp_path / "go"
    holding = client.submit(WAIT, env={"GO": str(go)}, tokens={name: 1})
    until(lambda: used(client, name) == 1, PATIENCE_S, "it holds")
    redis.kill()
    waiting = client.submit(["true"], tokens={name: 2})
    until(lambda: "do not answer" in client.job(waiting.id).reason, PATIENCE_S, "it waits, and says for what")
    redis.start()
    until(lambda: used_if_known(client, name) == 1, PATIENCE_S, "what jobs hold is restored")
    assert state(client, waiting.id) is State.PENDING
    go.touch()
    assert holding.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
    assert waiting.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
    until(lambda: used(client, name) == 0, PATIENCE_S, "all is given back")


def used_if_known(client: Client, name: str) -> int:
    found = client.token_pool(name)
    return -1 if found.opens_in_s is None else found.used


def test_noop_says_that_nothing_is_enforced(folder: Path) -> None:
    with (
        start_server(folder, name="unenforced") as server,
        start_agent(folder, server.url, "beta", graph=NODES),
        Client(server.url) as client,
    ):
        job = client.submit(["sleep", "600"], tokens={"whatever": 5})
        until(lambda: state(client, job.id) is State.RUNNING, PATIENCE_S, "it runs")
        assert "not enforced" in yard("explain", job.id, env=isolated_env(folder, url=server.url)).stdout
        job.cancel()
