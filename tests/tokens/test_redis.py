"""What only pools in Redis do: one leader at a time acts for jobs, and counters that others spoilt are put right."""

from __future__ import annotations

import time

import pytest

from switchyard.errors import Unavailable
from switchyard.features.memory.memory_pools import MemoryPools
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import KEY_PREFIX, RedisPools
from switchyard.model.rules.tokens import ResourceConstraintsSpec
from switchyard.tokens.pools import JobToken
from tests.processes import until
from tests.redis_service import RedisServer


def test_a_leader_that_was_replaced_takes_and_gives_back_nothing(redis_server: RedisServer) -> None:
    redis_server.client().flushall()
    old, new = (RedisPools(RedisConnectionPool([redis_server.address]), quota_max=10) for _ in range(2))
    new.register_resource("a", 2)
    old.lead("1")
    new.begin(is_first=True)
    job = JobToken("job", 1, "p", "d")
    assert old.job_take("a", job).is_granted
    new.lead("2")
    for call in (old.job_give, old.job_restore):
        with pytest.raises(Unavailable, match="Another server leads"):
            call("a", [job])
    with pytest.raises(Unavailable, match="Another server leads"):
        old.job_take("a", JobToken("other", 1, "p", "d"))
    assert new.jobs("a") == {"job": job}


def test_counters_that_somebody_spoilt_are_put_right(redis_server: RedisServer) -> None:
    redis_server.client().flushall()
    pools = RedisPools(RedisConnectionPool([redis_server.address]), quota_max=10)
    pools.register_resource("a", 5)
    pools.begin(is_first=True)
    pools.allocate_resource("a", "t", units=2, project="p")
    pools.allocate_resource("a", "u", project="p")
    assert not pools.recount("a")
    redis_server.client().hdel(f"{KEY_PREFIX}:callers:a", "p/development/t")
    assert pools.recount("a")
    assert pools.stand("a")[:2] == (5, 1)
    for field, wrong in (("used", 99), ("tokens", 0), ("p:p", 7), ("n:p/development", 0), ("p:gone", 3)):
        redis_server.client().hset(f"{KEY_PREFIX}:pool:a", field, wrong)
        assert pools.recount("a"), field
        assert not pools.recount("a")
    redis_server.client().hdel(f"{KEY_PREFIX}:pool:a", "p:p")
    redis_server.client().zrem(f"{KEY_PREFIX}:expiry:a", "p/development/u")
    assert pools.recount("a")
    assert redis_server.client().zscore(f"{KEY_PREFIX}:expiry:a", "p/development/u") is not None
    assert pools.stand("a")[:2] == (5, 1)
    assert not pools.allocate_resource("a", "v", ResourceConstraintsSpec(project=1), project="p").is_granted


@pytest.mark.long
def test_one_that_hangs_is_waited_for_once_and_tried_by_one_at_a_time(redis_server: RedisServer) -> None:
    redis_server.client().flushall()
    pools = RedisPools(RedisConnectionPool([redis_server.address]), quota_max=10)
    pools.register_resource("a", 5)
    pools.begin(is_first=True)
    with redis_server.hung():
        began = time.monotonic()
        for number in range(200):
            with pytest.raises(Unavailable, match="does not answer"):
                pools.allocate_resource("a", f"t{number}")
        assert time.monotonic() - began < 200  # each by itself would have waited for two seconds, or eight
    until(lambda: _answers(pools), 30, "it answers again")
    assert pools.allocate_resource("a", "t").is_granted


def _answers(pools: RedisPools) -> bool:
    try:
        return pools.stand("a").quota == 5
    except Unavailable:
        return False


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_while_it_is_rebuilt_no_more_is_believed_than_there_is(redis_server: RedisServer, kind: str) -> None:
    redis_server.client().flushall()
    pools = (
        RedisPools(RedisConnectionPool([redis_server.address]), quota_max=10)
        if kind == "redis"
        else MemoryPools(quota_max=10)
    )
    pools.settle("a", 4, None)
    said = [pools.renew_resource("a", token, units=units) for token, units in (("x", 10), ("y", 3), ("z", 2), ("w", 1))]
    assert said == [False, True, False, True]
    assert pools.stand("a")[:2] == (4, 4)
