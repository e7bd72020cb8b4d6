"""A plugin that sends Hive commands to a cluster of a service, and never more at once than the service bears.

One cluster of the service is a token pool; each command that is sent holds one token of it. Run it against a server:

    yard token-pool register default_cluster 2
    python hive_plugin.py --commands 6

or, with `--redis HOST:PORT`, against the Redis of the servers' token pools, without a server between.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from switchyard import Client
from switchyard.model.rules.tokens import AllocationStatus, ResourceConstraintsSpec, ResourceManager, token_prefix

CLUSTER = "default_cluster"
LEASE_S = 30
AGAIN_S = 0.2


class HiveService:
    """Stands for the service outside, which breaks when more than so many commands come at once."""

    def __init__(self, bears: int) -> None:
        self.bears = bears
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()

    def run(self, command: str) -> str:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            if self._running > self.bears:
                raise RuntimeError("the service is overloaded")
        time.sleep(0.1)
        with self._lock:
            self._running -= 1
        return f"result of {command}"


def execute(
    manager: ResourceManager, service: HiveService, command: str, token: str, caps: ResourceConstraintsSpec
) -> str:
    """One task: claim, send, give back. A claim that is not granted is made again, with the same token."""
    while manager.allocate_resource(CLUSTER, token, caps, lease_s=LEASE_S).status is not AllocationStatus.GRANTED:
        time.sleep(AGAIN_S)
    try:
        return service.run(command)
    finally:
        manager.release_resource(CLUSTER, token)


def connect(args: argparse.Namespace) -> ResourceManager:
    if args.redis is None:
        return Client(args.server).resource_manager()
    from switchyard.features.redis.redis_connections import RedisConnectionPool
    from switchyard.features.redis.redis_pools import RedisPools

    return RedisPools(RedisConnectionPool([args.redis]), quota_max=args.quota)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=12)
    parser.add_argument("--quota", type=int, default=2, help="how many commands the cluster of the service bears")
    parser.add_argument("--project-cap", type=int, help="how many of them this project may use")
    parser.add_argument("--server", help="else YARD_URL")
    parser.add_argument("--redis", metavar="HOST:PORT")
    args = parser.parse_args()
    manager, service = connect(args), HiveService(args.quota)
    manager.register_resource(CLUSTER, args.quota)
    caps = ResourceConstraintsSpec(project=args.project_cap)
    execution = token_prefix("default", "development", f"run-{secrets.token_hex(4)}")
    print(f"{manager.get_id()}: {args.commands} commands, at most {args.quota} at once")
    with ThreadPoolExecutor(args.commands) as threads:
        each = [
            threads.submit(execute, manager, service, f"SELECT {number}", f"{execution}-{number}", caps)
            for number in range(args.commands)
        ]
        for done in each:
            print(done.result())
    print(f"never more than {service.most} at once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
