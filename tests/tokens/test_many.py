"""A pool with very many tokens, each an entry of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchyard.features.memory.memory_pools import MemoryPools
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import AllocateRequest
from switchyard.tokens.pools import TokenPools
from tests.redis_service import RedisServer

QUOTA_MAX = 1_000_000


@pytest.fixture(params=["memory", "redis"])
def pools(request: pytest.FixtureRequest) -> Iterator[TokenPools]:
    made: TokenPools = MemoryPools(quota_max=QUOTA_MAX)
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.client().flushall()
        made = RedisPools(RedisConnectionPool([server.address]), quota_max=QUOTA_MAX)
    made.begin(is_first=True)
    yield made
    made.close()


@pytest.mark.parametrize("many", [50_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_that_many_tokens_each_held_by_itself(pools: TokenPools, many: int) -> None:
    """Not by units: each is an entry of its own, and all end with their lease."""
    pools.register_resource("big", many)
    for first in range(0, many, 1000):
        some = [AllocateRequest(f"t{i}", project=f"p{i % 7}", lease_s=300) for i in range(first, first + 1000)]
        assert all(allocation.is_granted for allocation in pools.allocate_many("big", some))
    assert not pools.allocate_resource("big", "more").is_granted
    assert pools.allocate_resource("big", f"t{many - 1}", project=f"p{(many - 1) % 7}").is_granted
    standing = pools.stand("big")
    assert (standing.used, standing.callers, pools.recount("big")) == (many, many, False)
    for first in range(0, many, 1000):
        pools.release_many("big", [AllocateRequest(f"t{i}", project=f"p{i % 7}") for i in range(first, first + 1000)])
    assert pools.stand("big")[1] == 0
