"""Redis found by a Sentinel, which knows where the primary is, and makes another one of a replica."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from switchyard.errors import Rebuilding, Unavailable
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import AllocationStatus
from switchyard.tokens.pools import JobToken
from tests.processes import free_port, until
from tests.redis_service import RedisServer, redis_running


@contextmanager
def sentinel_of(primary: RedisServer, folder: Path) -> Iterator[int]:
    """The port of a Sentinel that finds a primary gone after a second."""
    port, file = free_port(), folder / "sentinel.conf"
    watch = f"sentinel monitor yard 127.0.0.1 {primary.port} 1\nsentinel down-after-milliseconds yard 1000\n"
    file.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n{watch}sentinel failover-timeout yard 5000\n")
    sentinel = subprocess.Popen(["redis-server", str(file), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: _answers(port), 60, "the Sentinel answers")
        yield port
    finally:
        sentinel.terminate()
        sentinel.wait(60)


def test_the_primary_is_where_the_sentinel_says(tmp_path: Path) -> None:
    with redis_running() as server, sentinel_of(server, tmp_path) as port:
        pools = RedisPools(RedisConnectionPool([f"127.0.0.1:{port}"], primary="yard"), quota_max=10)
        pools.register_resource("matlab", 1)
        pools.begin(is_first=True)
        assert pools.allocate_resource("matlab", "a").status is AllocationStatus.GRANTED
        assert pools.allocate_resource("matlab", "b").status is AllocationStatus.EXHAUSTED
        assert server.client().exists("{redisresourcemanager}:pool:matlab")
        pools.close()
        unknown = RedisPools(RedisConnectionPool([f"127.0.0.1:{port}"], primary="nobody", retries=0), quota_max=10)
        with pytest.raises(Unavailable):
            unknown.register_resource("matlab", 1)


def test_a_replica_that_took_over_grants_nothing_before_it_is_known_who_holds_what(tmp_path: Path) -> None:
    """The primary may have granted what the replica never heard of."""
    with redis_running() as old, redis_running() as new, sentinel_of(old, tmp_path) as port:
        new.client().replicaof("127.0.0.1", str(old.port))
        pools = RedisPools(RedisConnectionPool([f"127.0.0.1:{port}"], primary="yard"), quota_max=10, lease_s_max=2)
        pools.lead("1")
        pools.register_resource("matlab", 2)
        pools.begin(is_first=True)
        assert pools.allocate_resource("matlab", "a", lease_s=2).is_granted
        assert pools.job_take("matlab", JobToken("j", 1, "p", "d")).is_granted
        sentinel: Any = redis.Redis(port=port, decode_responses=True)
        until(lambda: sentinel.sentinel_master("yard")["num-slaves"] == 1, 60, "the Sentinel knows the replica")
        until(lambda: new.client().hlen("{redisresourcemanager}:jobs:matlab") == 1, 60, "the replica has it")
        old.kill()
        until(lambda: _state(pools) == "rebuilding", 60, "the replica leads, and grants nothing")
        pools.lead("2")
        pools.settle("matlab", 2, None)
        pools.job_restore("matlab", [JobToken("j", 1, "p", "d")])
        assert not pools.begin(is_first=False), "what callers held is not known for sure"
        assert _state(pools) == "rebuilding", "until the longest lease has passed"
        until(lambda: _state(pools) == "open", 60, "it grants again")
        assert pools.stand("matlab").used == 2, "the job's, and the one that was just granted"
        assert not pools.allocate_resource("matlab", "c").is_granted


def _state(pools: RedisPools) -> str:
    try:
        pools.allocate_resource("matlab", "b")
    except Rebuilding:
        return "rebuilding"
    except Unavailable:
        return "away"
    return "open"


def _answers(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
