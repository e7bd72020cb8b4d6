"""Many callers on one real Redis, which is also killed: no quota and no cap is exceeded at any moment, nothing is left.

Two witnesses. Redis's own log of every change, read again from the first to the last, says what was held after each.
And each caller notes when it certainly held what, so a Redis that lost everything cannot hide a grant too many.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import KEY_PREFIX, RedisPools
from tests.processes import until
from tests.redis_service import RedisServer, redis_running
from tests.tokens.hammer import CAPS, POOL, QUOTA_MAX

pytestmark = pytest.mark.xdist_group("token-stress")
PROCESSES, THREADS = 4, 16
QUOTA = 20
GRANTS, GRANTS_SOAK = 20_000, 500_000
KILLS = 10


def start(redis: RedisServer, folder: Path, *, grants: int, lease_s: int) -> list[subprocess.Popen[bytes]]:
    each = [str(THREADS), str(max(1, grants // (PROCESSES * THREADS))), str(lease_s)]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tokens.hammer", redis.address, f"c{i}", *each, str(folder / f"{i}")],
            cwd=Path(__file__).parents[2],
        )
        for i in range(PROCESSES)
    ]


def finish(callers: list[subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> list[str]:
    for caller in callers:
        assert caller.wait(timeout_s) == 0
    return [line for i in range(PROCESSES) for line in (folder / f"{i}").read_text(encoding="utf-8").splitlines()]


def open_pool(redis: RedisServer, *, lease_s_max: int, is_first: bool) -> RedisPools:
    """As the server that leads does it."""
    pools = RedisPools(RedisConnectionPool([redis.address]), quota_max=QUOTA_MAX, lease_s_max=lease_s_max)
    pools.settle(POOL, QUOTA, None)
    pools.begin(is_first=is_first)
    return pools


def assert_never_exceeded(lines: list[str]) -> None:
    """By the callers' notes: at no moment too much was held."""
    changes: list[tuple[float, int, str, str]] = []
    for line in lines:
        heard, done, units, project, domain = line.split()
        changes += [(float(heard), int(units), project, domain), (float(done), -int(units), project, domain)]
    held: Counter[str] = Counter()
    for _, change, project, domain in sorted(changes, key=lambda change: change[:2]):
        held["all"] += change
        held[project] += change
        held[f"{project}/{domain}"] += change
        _assert_within(held, project, domain)


def assert_log_never_exceeds(redis: RedisServer) -> int:
    """By Redis's log of all changes: after each of them. How many there were."""
    held: dict[str, int] = {}
    sums: Counter[str] = Counter()
    changes = 0
    for words in read_log(redis):
        name, key = words[0].upper(), words[1] if len(words) > 1 else ""
        if key != f"{KEY_PREFIX}:callers:{POOL}" or name not in ("HSET", "HDEL"):
            continue
        pairs = zip(words[2::2], words[3::2], strict=True) if name == "HSET" else ((word, "0") for word in words[2:])
        for token, value in pairs:
            project, domain, _ = token.split("/", 2)
            units = int(value.split(" ")[0]) - held.pop(token, 0)
            if name == "HSET":
                held[token] = int(value.split(" ")[0])
            for place in ("all", project, f"{project}/{domain}"):
                sums[place] += units
            _assert_within(sums, project, domain)
            changes += 1
    assert not held
    return changes


def _assert_within(sums: Counter[str], project: str, domain: str) -> None:
    assert sums["all"] <= QUOTA
    assert CAPS.project is not None
    assert CAPS.namespace is not None
    assert sums[project] <= CAPS.project
    assert sums[f"{project}/{domain}"] <= CAPS.namespace


def read_log(redis: RedisServer) -> Iterator[list[str]]:
    for file in sorted((redis.folder / "appendonlydir").glob("*.incr.aof")):
        with file.open("rb") as log:
            while line := log.readline():
                if not line.startswith(b"*"):
                    continue  # a note of the log itself
                words = []
                for _ in range(int(line[1:])):
                    size = int(log.readline()[1:])
                    words.append(log.read(size + 2)[:-2].decode())
                yield words


@pytest.mark.parametrize(
    "grants", [GRANTS, pytest.param(GRANTS_SOAK, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_callers_in_processes_and_threads_never_exceed(tmp_path: Path, grants: int) -> None:
    with redis_running(is_durable=True) as redis:
        redis.client().config_set("appendfsync", "no")  # the log is only read here, and from its beginning
        redis.client().config_set("auto-aof-rewrite-percentage", 0)
        pools = open_pool(redis, lease_s_max=60, is_first=True)
        lines = finish(start(redis, tmp_path, grants=grants, lease_s=60), tmp_path, 3600)
        assert len(lines) >= grants * 0.99
        assert_never_exceeded(lines)
        assert assert_log_never_exceeds(redis) >= 2 * len(lines)
        assert pools.stand(POOL)[:2] == (QUOTA, 0)
        left = {key: redis.client().hgetall(key) for key in redis.client().scan_iter(f"{KEY_PREFIX}:*")}
        assert set(left) == {f"{KEY_PREFIX}:pool:{POOL}", f"{KEY_PREFIX}:epoch"}
        assert {name for name in left[f"{KEY_PREFIX}:pool:{POOL}"] if ":" in name} == set()  # no counter of a project


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "lossy"])
def test_redis_killed_again_and_again(tmp_path: Path, is_durable: bool) -> None:
    """A durable one goes on where it was; one that loses all grants nothing until the longest lease is over."""
    with redis_running(is_durable=is_durable) as redis:
        lease_s = 1
        open_pool(redis, lease_s_max=lease_s, is_first=True)
        callers = start(redis, tmp_path, grants=GRANTS // 4, lease_s=lease_s)
        for _ in range(KILLS):
            before = _commands(redis)
            until(lambda before=before: _commands(redis) > before + 200, 60, "callers are at work")  # type: ignore[misc]
            redis.kill()
            redis.start()
            pools = open_pool(redis, lease_s_max=lease_s, is_first=False)
            if not is_durable:
                assert pools.stand(POOL).opens_in_s != 0
            else:
                assert pools.stand(POOL).opens_in_s == 0
        lines = finish(callers, tmp_path, 600)
        assert_never_exceeded(lines)
        until(lambda: pools.stand(POOL).used == 0, 60, "nothing is left")
        assert not pools.recount(POOL)
        if is_durable:
            assert_log_never_exceeds(redis)


def _commands(redis: RedisServer) -> int:
    with redis.client() as line:
        return int(line.info("stats")["total_commands_processed"])  # type: ignore[index]
