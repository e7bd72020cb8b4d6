"""A lease of a token pool is its owner's, in memory and in Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchyard.errors import Denied
from switchyard.features.memory.memory_pools import MemoryPools
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import AllocateRequest
from switchyard.tokens.pools import TokenPools
from tests.redis_service import RedisServer


@pytest.fixture(params=["memory", "redis"])
def pools(request: pytest.FixtureRequest) -> Iterator[TokenPools]:
    made: TokenPools = MemoryPools(quota_max=10)
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.client().flushall()
        made = RedisPools(RedisConnectionPool([server.address]), quota_max=10)
    made.begin(is_first=True)
    yield made
    made.close()


def test_what_one_owner_holds_no_other_claims_renews_or_gives_back(pools: TokenPools) -> None:
    pools.register_resource("a", 2)
    request = AllocateRequest("t")
    assert pools.allocate("a", request, owner="ann").is_granted
    for steal in (pools.release, pools.allocate):
        with pytest.raises(Denied, match="another user"):
            steal("a", request, owner="bob")
    with pytest.raises(Denied, match="another user"):
        pools.allocate_many("a", [AllocateRequest("u"), request], owner="bob")
    assert not pools.renew("a", request, owner="bob")
    assert pools.renew("a", request, owner="ann")
    assert pools.allocate("a", request, owner="ann").is_granted
    assert pools.release("a", request, owner="ann")
    assert pools.allocate("a", request, owner="bob").is_granted
    assert pools.release_resource("a", "t"), "without an owner: whoever leads"
    assert pools.recount("a") is False, "the counters agree"
