"""What every kind of token pools promises: one suite, each kind that counts, on a real Redis where that is the kind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import BadRequest, Conflict, Malformed, NoSuchPool, Rebuilding
from switchyard.features.memory.memory_pools import MemoryPools
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import MANAGER_ID, RedisPools
from switchyard.model.rules.tokens import (
    AllocateRequest,
    AllocationStatus,
    LimitedBy,
    ResourceConstraintsSpec,
    plugin_namespace,
    token_prefix,
)
from switchyard.tokens.noop import NoopPools
from switchyard.tokens.pools import JobToken, TokenPools
from tests.processes import PATIENCE_S, until
from tests.redis_service import RedisServer

KINDS = ("memory", "redis")
TRIES = 20
QUOTA_MAX = 2_000_000
CASES = json.loads((Path(__file__).parents[1] / "data" / "flyte_tokens.json").read_text(encoding="utf-8"))
Make = Callable[..., TokenPools]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[TokenPools] = []

    def one(*, is_open: bool = True, lease_s_max: int = 300) -> TokenPools:
        pools: TokenPools
        if request.param == "memory":
            pools = MemoryPools(quota_max=QUOTA_MAX, lease_s_max=lease_s_max)
        else:
            server: RedisServer = request.getfixturevalue("redis_server")
            server.client().flushall()
            pools = RedisPools(RedisConnectionPool([server.address]), quota_max=QUOTA_MAX, lease_s_max=lease_s_max)
        made.append(pools)
        if is_open:
            assert pools.begin(is_first=True)
        return pools

    yield one
    for pools in made:
        pools.close()


@pytest.fixture
def pools(make: Make) -> TokenPools:
    return make()


def test_same_token_twice_is_granted_and_counted_once_even_when_the_pool_is_full(pools: TokenPools) -> None:
    pools.register_resource("a", 1)
    assert pools.allocate_resource("a", "t").status is AllocationStatus.GRANTED
    assert pools.allocate_resource("a", "t").status is AllocationStatus.GRANTED
    refused = pools.allocate_resource("a", "u")
    assert (refused.status, refused.limited_by) == (AllocationStatus.EXHAUSTED, LimitedBy.POOL)
    assert pools.stand("a").used == 1


def test_same_word_in_another_project_or_domain_is_another_token(pools: TokenPools) -> None:
    pools.register_resource("a", 3)
    for project, domain in (("p", "d"), ("q", "d"), ("p", "e")):
        assert pools.allocate_resource("a", "t", project=project, domain=domain).is_granted
    assert pools.stand("a").used == 3
    assert not pools.release_resource("a", "t", project="q", domain="e")
    assert pools.release_resource("a", "t", project="q", domain="d")
    assert pools.stand("a").used == 2


def test_caps_bound_the_project_and_the_project_and_domain_but_no_others(pools: TokenPools) -> None:
    pools.register_resource("a", 100)
    caps = ResourceConstraintsSpec(project=3, namespace=2)

    def take(token: str, project: str, domain: str) -> LimitedBy | None:
        return pools.allocate_resource("a", token, caps, project=project, domain=domain).limited_by

    assert [take("1", "flyte", "dev"), take("2", "flyte", "dev"), take("3", "flyte", "dev")] == [
        None,
        None,
        LimitedBy.NAMESPACE,
    ]
    assert take("4", "flyte", "development") is None  # another domain that begins alike
    assert take("5", "flyte", "prod") is LimitedBy.PROJECT
    assert take("6", "flytesnacks", "dev") is None  # another project that begins alike
    assert pools.release_resource("a", "1", project="flyte", domain="dev")
    assert take("3", "flyte", "dev") is None
    assert pools.stand("a").used == 4


def test_a_cap_that_is_absent_binds_nothing_and_of_zero_allows_none(pools: TokenPools) -> None:
    pools.register_resource("a", 10)
    no_project = pools.allocate_resource("a", "t", ResourceConstraintsSpec(project=0))
    no_namespace = pools.allocate_resource("a", "t", ResourceConstraintsSpec(namespace=0))
    assert (no_project.limited_by, no_namespace.limited_by) == (LimitedBy.PROJECT, LimitedBy.NAMESPACE)
    assert pools.allocate_resource("a", "t", ResourceConstraintsSpec(namespace=1)).is_granted
    assert pools.allocate_resource("a", "u").is_granted


def test_units_are_taken_all_or_none(pools: TokenPools) -> None:
    pools.register_resource("a", 10)
    assert pools.allocate_resource("a", "t", units=7).is_granted
    assert not pools.allocate_resource("a", "u", units=4).is_granted
    assert pools.stand("a").used == 7
    assert pools.allocate_resource("a", "u", units=3).is_granted
    with pytest.raises(Conflict, match="another number of units"):
        pools.allocate_resource("a", "u", units=2)
    assert pools.release_resource("a", "t")
    assert pools.stand("a").used == 3


@pytest.mark.parametrize("quota", [0, -1, QUOTA_MAX + 1])
def test_quota_out_of_range_is_refused(pools: TokenPools, quota: int) -> None:
    with pytest.raises(BadRequest, match=f"from 1 to {QUOTA_MAX}.*{quota}"):
        pools.register_resource("a", quota)
    pools.register_resource("a", 1)
    with pytest.raises(BadRequest):
        pools.set_quota("a", quota)
    assert pools.stand("a").quota == 1


def test_registering_again_is_fine_with_the_same_quota_and_an_error_with_another(pools: TokenPools) -> None:
    pools.register_resource("a", 5)
    pools.allocate_resource("a", "t")
    pools.register_resource("a", 5)
    assert pools.stand("a").used == 1
    for quota, per_s in ((6, None), (5, 60)):
        with pytest.raises(Conflict, match="another quota: 5"):
            pools.register_resource("a", quota, per_s=per_s)


def test_what_is_not_registered_is_an_error(pools: TokenPools) -> None:
    for call in (
        lambda: pools.allocate_resource("none", "t"),
        lambda: pools.release_resource("none", "t"),
        lambda: pools.renew_resource("none", "t"),
        lambda: pools.stand("none"),
        lambda: pools.set_quota("none", 1),
        lambda: pools.holders("none"),
    ):
        with pytest.raises(NoSuchPool, match="none"):
            call()


def test_release_of_what_was_never_taken_changes_nothing(pools: TokenPools) -> None:
    pools.register_resource("a", 1)
    assert not pools.release_resource("a", "t")
    assert pools.allocate_resource("a", "t").is_granted
    assert pools.release_resource("a", "t")
    assert not pools.release_resource("a", "t")
    assert pools.stand("a")[:2] == (1, 0)


@pytest.mark.parametrize("token", ["", "x" * 1025, "x" * 10_240, "a\nb", "a\0b"])
def test_tokens_that_nobody_can_name_are_refused(pools: TokenPools, token: str) -> None:
    pools.register_resource("a", 1)
    with pytest.raises(Malformed, match="1 to 1024 printable"):
        pools.allocate_resource("a", token)


@pytest.mark.parametrize("token", ["a/b", "/", "a:b", "ex:p:d:e-t", "a b", "é{}[]*?", "x" * 1024])
def test_separators_in_a_token_are_part_of_it(pools: TokenPools, token: str) -> None:
    pools.register_resource("a", 10)
    assert pools.allocate_resource("a", token, project="p", domain="d").is_granted
    (holder,), _ = pools.holders("a")
    assert (holder.token, holder.project, holder.domain) == (token, "p", "d")
    assert pools.allocate_resource("a", "u", ResourceConstraintsSpec(project=1), project="p").limited_by
    assert pools.release_resource("a", token, project="p", domain="d")
    assert pools.stand("a").used == 0


@pytest.mark.parametrize("where", [{"project": "p/d"}, {"domain": "d/t"}, {"project": ""}, {"domain": ""}])
def test_separators_in_a_project_or_domain_are_refused(pools: TokenPools, where: dict[str, Any]) -> None:
    """Else project p, domain d and token t/u would be one with project p, domain d/t and token u."""
    pools.register_resource("a", 10)
    for call in (
        lambda: pools.allocate_resource("a", "t", **where),
        lambda: pools.renew_resource("a", "t", **where),
        lambda: pools.allocate_many("a", [AllocateRequest("t", **where)]),
    ):
        with pytest.raises(Malformed, match="project and the domain"):
            call()
    assert pools.stand("a").used == 0


def test_lease_that_is_not_renewed_gives_back_and_one_that_is_stays(pools: TokenPools) -> None:
    pools.register_resource("a", 2)

    def is_renewed() -> bool:  # a busy machine may take longer than a second between the two
        assert pools.allocate_resource("a", "lives", lease_s=1).is_granted
        return pools.renew_resource("a", "lives", lease_s=300)

    until(is_renewed, PATIENCE_S, "one is renewed in time")
    assert pools.allocate_resource("a", "dies", lease_s=1).is_granted
    until(lambda: pools.stand("a").used == 1, PATIENCE_S, "the lease of one is over")
    assert [holder.token for holder in pools.holders("a")[0]] == ["lives"]
    assert not pools.renew_resource("a", "dies")
    assert pools.allocate_resource("a", "next").is_granted


def test_rate_pool_grants_so_many_in_its_time_whatever_is_released(pools: TokenPools) -> None:
    for number in range(TRIES):
        web, began = f"web-{number}", time.monotonic()
        pools.register_resource(web, 3, per_s=1)
        granted = [pools.allocate_resource(web, f"t{i}").is_granted for i in range(4)]
        pools.release_resource(web, "t0")
        refused = pools.allocate_resource(web, "t4")
        if time.monotonic() - began < 0.9:
            break  # a machine that took longer says nothing
    assert granted == [True] * 3 + [False]
    assert refused.limited_by is LimitedBy.POOL
    assert refused.retry_after_s is not None
    assert 0 < refused.retry_after_s <= 1.2
    until(lambda: pools.allocate_resource(web, "t4").is_granted, PATIENCE_S, "the time of the first is over")


def test_quota_below_use_lets_holders_finish_and_grants_none_meanwhile(pools: TokenPools) -> None:
    pools.register_resource("a", 3)
    for token in "xyz":
        assert pools.allocate_resource("a", token).is_granted
    pools.set_quota("a", 1)
    assert pools.renew_resource("a", "x")
    assert pools.allocate_resource("a", "x").is_granted
    for token in "xy":
        assert not pools.allocate_resource("a", "new").is_granted
        pools.release_resource("a", token)
    assert not pools.allocate_resource("a", "new").is_granted
    pools.release_resource("a", "z")
    assert pools.allocate_resource("a", "new").is_granted


def test_many_at_once_are_each_granted_or_refused(pools: TokenPools) -> None:
    pools.register_resource("a", 5)
    caps = ResourceConstraintsSpec(project=2)
    claims = [AllocateRequest(f"t{i}", constraints=caps, project="p") for i in range(3)] + [
        AllocateRequest("t0", project="p"),
        AllocateRequest("u", project="q"),
    ]
    found = [allocation.limited_by for allocation in pools.allocate_many("a", claims)]
    assert found == [None, None, LimitedBy.PROJECT, None, None]
    assert pools.stand("a").used == 3
    assert pools.release_many("a", claims) == [True, True, False, False, True]
    assert pools.stand("a").used == 0
    with pytest.raises(Malformed, match="the most is 1000"):
        pools.allocate_many("a", [AllocateRequest("t")] * 1001)


def test_a_million_tokens_in_one_pool(pools: TokenPools) -> None:
    pools.register_resource("big", 1_000_000)
    some = [AllocateRequest(f"t{i}", units=1000) for i in range(500)]
    assert all(allocation.is_granted for allocation in pools.allocate_many("big", some))
    assert pools.allocate_resource("big", "half", units=500_000).is_granted
    assert not pools.allocate_resource("big", "more").is_granted
    assert pools.stand("big").used == 1_000_000
    seen, after = 0, ""
    while True:
        holders, after = pools.holders("big", after=after, limit=100)
        seen += len(holders)
        if not after:
            break
    assert seen == 501


def test_jobs_hold_until_they_give_back_and_count_like_callers(pools: TokenPools) -> None:
    pools.register_resource("a", 3)
    job = JobToken("01JOB", 2, "p", "d")
    assert pools.job_take("a", job).is_granted
    assert pools.job_take("a", job).is_granted
    assert not pools.job_take("a", JobToken("01OTHER", 2, "p", "d")).is_granted
    assert pools.allocate_resource("a", "t", ResourceConstraintsSpec(project=2), project="p").limited_by
    assert pools.allocate_resource("a", "01JOB", project="p", domain="d").is_granted  # a caller's, not the job's
    assert pools.jobs("a") == {"01JOB": job}
    pools.job_give("a", [job])
    pools.job_give("a", [job])
    assert pools.stand("a").used == 1
    pools.job_restore("a", [job, JobToken("01OTHER", 2, "p", "d")])
    assert pools.stand("a").used == 5  # what jobs have counts, whatever the quota says


def test_jobs_take_of_a_rate_pool_once_within_its_time(pools: TokenPools) -> None:
    pools.register_resource("web", 2, per_s=60)
    job = JobToken("01JOB", 2, "p", "d")
    assert pools.job_take("web", job).is_granted
    assert pools.job_take("web", job).is_granted
    assert not pools.job_take("web", JobToken("01OTHER", 1, "p", "d")).is_granted
    assert pools.jobs("web") == {}
    assert [(holder.job, holder.units) for holder in pools.holders("web")[0]] == [("01JOB", 2)]


def test_nothing_is_granted_before_all_is_known_and_after_a_loss_until_leases_are_over(make: Make) -> None:
    pools = make(is_open=False, lease_s_max=1)
    pools.settle("a", 2, None)
    assert not pools.is_whole()
    for call in (lambda: pools.allocate_resource("a", "t"), lambda: pools.job_take("a", JobToken("j", 1, "p", "d"))):
        with pytest.raises(Rebuilding):
            call()
    pools.job_restore("a", [JobToken("job", 1, "p", "d")])
    assert pools.renew_resource("a", "held")  # by one who held it before
    assert not pools.begin(is_first=False)
    assert pools.is_whole()
    with pytest.raises(Rebuilding, match="rebuilding"):
        pools.allocate_resource("a", "t")

    def is_open() -> bool:
        assert pools.renew_resource("a", "held")
        return pools.stand("a").opens_in_s == 0

    until(is_open, PATIENCE_S, "the longest lease is over")
    assert pools.allocate_resource("a", "held").is_granted
    assert not pools.allocate_resource("a", "t").is_granted
    assert not pools.renew_resource("a", "t")
    assert pools.stand("a").used == 2


def test_pool_is_removed_only_when_nothing_of_it_is_held(pools: TokenPools) -> None:
    pools.register_resource("a", 1)
    pools.allocate_resource("a", "t")
    assert not pools.remove("a")
    pools.release_resource("a", "t")
    assert pools.remove("a")
    with pytest.raises(NoSuchPool):
        pools.stand("a")


def test_threads_at_once_never_exceed_quota_or_caps(pools: TokenPools) -> None:
    pools.register_resource("a", 5)
    caps = ResourceConstraintsSpec(project=3)
    barrier = threading.Barrier(8)

    def one(number: int) -> int:
        barrier.wait(60)
        project = f"p{number % 2}"
        return sum(pools.allocate_resource("a", f"{number}-{i}", caps, project=project).is_granted for i in range(20))

    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(one, range(8)))
    assert sum(granted) == pools.stand("a").used == 5
    assert max(sum(granted[0::2]), sum(granted[1::2])) <= 3


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["area"] in ("allocate", "race")], ids=lambda c: c["id"]
)
def test_cases_of_allocation(pools: TokenPools, case: dict[str, Any]) -> None:
    given, when = case["given"], case["when"]
    if "quota" not in given:
        with pytest.raises(NoSuchPool):
            pools.allocate_resource(when["namespace"], "t")
        return
    pools.register_resource("ns", given["quota"])
    for token in given["tokens"]:
        project, domain, word = _parts(token)
        assert pools.allocate_resource("ns", word, project=project, domain=domain).is_granted
    if "concurrent_allocate" in when:
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda token: pools.allocate_resource("ns", token), when["concurrent_allocate"]))
        assert sum(each.is_granted for each in found) == case["then"]["granted"]
        return
    project, domain, word = _parts(when["token"])
    caps = {"namespace" if each["prefix"].count(":") == 2 else "project": each["value"] for each in when["constraints"]}
    found_one = pools.allocate_resource("ns", word, ResourceConstraintsSpec(**caps), project=project, domain=domain)
    assert found_one.status.name == case["then"]["status"]


def _parts(token: str) -> tuple[str, str, str]:
    """Flyte's tokens begin with their project and domain; those of its unit tests with one word."""
    if token.startswith("ex:"):
        _, project, domain, word = token.split(":", 3)
        return project, domain, word
    return token.partition("-")[0], "d", token


@pytest.mark.parametrize("case", [case for case in CASES if case["area"] == "register"], ids=lambda case: case["id"])
def test_cases_of_registration(make: Make, case: dict[str, Any]) -> None:
    pools = make()
    if "quota" in case["when"]:
        with pytest.raises(BadRequest):
            pools.register_resource("ns", case["when"]["quota"])
        return
    name = case["when"]["register"]
    pools.register_resource(name, 5)
    with pytest.raises(Conflict):
        pools.register_resource(name, 6)


def test_cases_of_names_numbers_and_noop() -> None:
    by_id = {case["id"]: case for case in CASES}
    assert token_prefix(*by_id["rm-01"]["given"].values()) == by_id["rm-01"]["then"]["value"]
    plugin, namespace = by_id["rm-03"]["given"].values()
    assert plugin_namespace(MANAGER_ID, plugin, namespace) == by_id["rm-03"]["then"]["value"]
    assert {status.name: status.value for status in AllocationStatus} == by_id["rm-20"]["then"]
    noop = NoopPools()
    assert noop.allocate_resource("whatever", "t").status.name == by_id["rm-19"]["then"]["status"]
    assert noop.get_id() == "noopresourcemanager"
    assert noop.release_resource("whatever", "t")
    assert [each.is_granted for each in noop.allocate_many("x", [AllocateRequest("t")] * 3)] == [True] * 3
