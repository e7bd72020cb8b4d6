"""Token pools: one allocate and one release, against Flyte's four calls and against PING, on one real Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import redis
from tests.redis_service import redis_running

from bench.table import Table
from switchyard.features.memory.memory_pools import MemoryPools
from switchyard.features.redis.redis_connections import RedisConnectionPool, encode_word
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import AllocateRequest, ResourceConstraintsSpec

SIZES = (10, 1_000, 100_000)
ROUNDS_S = 0.6  # of each kind, in turn with the others, so that the machine's mood is the same for all
TURNS = 5
MANY = 100
QUOTA = 1_000_000
CAPS = ResourceConstraintsSpec(project=QUOTA, namespace=QUOTA)
REQUEST = AllocateRequest("token", project="p", constraints=CAPS)
ABOUT = (
    "One caller, one Redis without persistence on the same machine; the pool holds so many other tokens. *Flyte*: what "
    "its resource manager sends for a token with both caps (SISMEMBER, SCARD, SMEMBERS, SADD; SREM), each by redis-py. "
    "*Share of PING*: our calls in a second as a part of the PINGs in a second that redis-py makes, as a caller would; "
    f"*of raw PING*: of those by a connection of ours, which does nothing but send and read. *{MANY} "
    f"per call*: tokens in a second, as a multiple of either. The best of {TURNS} turns each."
)


def measure(_folder: Path) -> list[Table]:
    table = Table(
        "Token pools",
        ABOUT,
        [
            "tokens held",
            "pairs/s",
            "Flyte pairs/s",
            "ratio",
            "PING/s",
            "share of PING",
            f"{MANY} per call",
            "raw PING/s",
            "share of raw PING",
            f"{MANY} per call, of raw PING",
        ],
    )
    with redis_running() as server:
        for size in SIZES:
            _one(table, server.address, server.port, size)
    memory = Table("Token pools in memory", "One thread, one allocate and one release, both caps.", ["µs per call"])
    memory.add(f"{1e6 / (2 * _best(_memory_pair())):.2f}")
    return [table, memory]


def _one(table: Table, address: str, port: int, size: int) -> None:
    client = redis.Redis(port=port)
    client.flushall()
    lines = RedisConnectionPool([address])
    pools = RedisPools(lines, quota_max=QUOTA)
    pools.register_resource("bench", QUOTA)
    pools.begin(is_first=True)
    for first in range(0, size, 1000):
        pools.allocate_many(
            "bench", [AllocateRequest(f"t{i}", project="other") for i in range(first, min(first + 1000, size))]
        )
        client.sadd("flyte", *(f"ex:other:development:e-t{i}" for i in range(first, min(first + 1000, size))))
    claims = [AllocateRequest(f"m{i}", constraints=CAPS, project="p") for i in range(MANY)]
    ping = b"*1\r\n" + encode_word(b"PING")
    kinds: dict[str, Callable[[], object]] = {
        "ours": lambda: (
            pools.allocate("bench", REQUEST),
            pools.release("bench", REQUEST),
        ),
        "flyte": lambda: _flyte(client),
        "ping": client.ping,
        "raw": lambda: lines.ask(lambda _: ping),
        "many": lambda: (pools.allocate_many("bench", claims), pools.release_many("bench", claims)),
    }
    best = dict.fromkeys(kinds, 0.0)
    for _ in range(TURNS):
        for name, call in kinds.items():
            best[name] = max(best[name], _rate(call))
    ours, flyte, pings, many = best["ours"], best["flyte"], best["ping"], best["many"] * 2 * MANY
    ratios = (
        f"{ours / flyte:.1f}x",
        float(pings),
        f"{2 * ours / pings:.2f}",
        f"{many / pings:.1f}x",
        float(best["raw"]),
        f"{2 * ours / best['raw']:.2f}",
        f"{many / best['raw']:.1f}x",
    )
    table.add(f"{size:,}", float(ours), float(flyte), *ratios)
    lines.close()


def _flyte(client: redis.Redis) -> None:
    """One token by Flyte's sequence: four calls and a look at every member, then the release."""
    member = "ex:p:development:e-token"
    if not client.sismember("flyte", member) and client.scard("flyte") < QUOTA:
        members = cast("set[bytes]", client.smembers("flyte"))
        for prefix in (b"ex:p", b"ex:p:development"):
            sum(each.startswith(prefix) for each in members)
        client.sadd("flyte", member)
    client.srem("flyte", member)


def _memory_pair() -> Callable[[], object]:
    pools = MemoryPools(quota_max=QUOTA)
    pools.register_resource("bench", QUOTA)
    pools.begin(is_first=True)
    return lambda: (
        pools.allocate("bench", REQUEST),
        pools.release("bench", REQUEST),
    )


def _best(call: Callable[[], object]) -> float:
    return max(_rate(call) for _ in range(TURNS))


def _rate(call: Callable[[], object]) -> float:
    """Calls in a second."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < ROUNDS_S or not count:
        call()
        count += 1
    return count / took
