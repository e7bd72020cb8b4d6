"""What only pools in Redis do: one leader at a time acts for jobs, and counters that others spoilt are put right."""

from __future__ import annotations

import pytest

from switchyard.errors import Unavailable
from switchyard.model.tokens import ResourceConstraintsSpec
from switchyard.tokens.lines import Lines
from switchyard.tokens.pools import JobToken
from switchyard.tokens.redis import TAG, RedisPools
from tests.redis_service import RedisServer


def test_a_leader_that_was_replaced_takes_and_gives_back_nothing(redis_server: RedisServer) -> None:
    redis_server.client().flushall()
    old, new = (RedisPools(Lines([redis_server.address]), quota_max=10) for _ in range(2))
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
    pools = RedisPools(Lines([redis_server.address]), quota_max=10)
    pools.register_resource("a", 5)
    pools.begin(is_first=True)
    pools.allocate_resource("a", "t", units=2, project="p")
    pools.allocate_resource("a", "u", project="p")
    redis_server.client().hdel(f"{TAG}:callers:a", "p/development/t")
    assert not pools.stand("a").is_sound
    pools.recount("a")
    assert pools.stand("a")[:2] == (5, 1)
    assert pools.stand("a").is_sound
    assert not pools.allocate_resource("a", "v", ResourceConstraintsSpec(project=1), project="p").is_granted
