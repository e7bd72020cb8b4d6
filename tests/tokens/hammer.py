"""A process of callers that claim and give back without rest, for the tests of token pools. Run with `python -m`.

Each line it writes is one time that a token was certainly held: from after the grant was heard until before it was
given back or its lease was over, on the machine's monotonic clock.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from switchyard.errors import Rebuilding, Unavailable
from switchyard.features.redis.redis_connections import RedisConnectionPool
from switchyard.features.redis.redis_pools import RedisPools
from switchyard.model.rules.tokens import ResourceConstraintsSpec

POOL = "stress"
QUOTA_MAX = 10_000
PROJECTS = ("flyte", "flytesnacks", "p-q")
DOMAINS = ("dev", "development")
CAPS = ResourceConstraintsSpec(project=9, namespace=6)


def main(address: str, name: str, threads: int, grants: int, lease_s: int, out: str) -> None:
    pools = RedisPools(RedisConnectionPool([address], retries=0), quota_max=QUOTA_MAX, lease_s_max=lease_s)
    lines: list[str] = []
    each = [threading.Thread(target=_one, args=(pools, f"{name}-{i}", grants, lease_s, lines)) for i in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    Path(out).write_text("".join(lines), encoding="utf-8")


def _one(pools: RedisPools, name: str, grants: int, lease_s: int, lines: list[str]) -> None:
    chance = random.Random(name)
    for number in range(grants):
        token, units = f"{name}-{number}", chance.choice((1, 1, 1, 2))
        project, domain = chance.choice(PROJECTS), chance.choice(DOMAINS)
        while True:
            asked = time.monotonic()
            try:
                if pools.allocate_resource(
                    POOL, token, CAPS, project=project, domain=domain, units=units, lease_s=lease_s
                ).is_granted:
                    break
                time.sleep(0.003)  # a caller who tries again
            except (Rebuilding, Unavailable):
                time.sleep(0.05)  # a caller who tries again
        heard = time.monotonic()
        if chance.random() < 0.05:
            time.sleep(0.01)  # some hold their tokens for longer
        done = min(time.monotonic(), asked + lease_s)
        if done > heard:
            lines.append(f"{heard} {done} {units} {project} {domain}\n")
        while True:
            try:
                pools.release_resource(POOL, token, project=project, domain=domain)
                break
            except (Rebuilding, Unavailable):
                time.sleep(0.05)  # a caller who tries again


if __name__ == "__main__":
    address, name, threads, grants, lease_s, out = sys.argv[1:]
    main(address, name, int(threads), int(grants), int(lease_s), out)
