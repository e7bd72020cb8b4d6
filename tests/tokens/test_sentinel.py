"""Redis found by a Sentinel, which knows where the primary is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis

from switchyard.errors import Unavailable
from switchyard.model.tokens import AllocationStatus
from switchyard.tokens.lines import Lines
from switchyard.tokens.redis import RedisPools
from tests.processes import free_port, until
from tests.redis_service import redis_running


def test_the_primary_is_where_the_sentinel_says(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "sentinel.conf"
    with redis_running() as server:
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor yard 127.0.0.1 {server.port} 1\n"
        )
        sentinel = subprocess.Popen(["redis-server", str(file), "--sentinel"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: _answers(port), 20, "the Sentinel answers")
            pools = RedisPools(Lines([f"127.0.0.1:{port}"], primary="yard"), quota_max=10)
            pools.register_resource("matlab", 1)
            pools.begin(is_first=True)
            assert pools.allocate_resource("matlab", "a").status is AllocationStatus.GRANTED
            assert pools.allocate_resource("matlab", "b").status is AllocationStatus.EXHAUSTED
            assert server.client().exists("{redisresourcemanager}:pool:matlab")
            pools.close()
            unknown = RedisPools(Lines([f"127.0.0.1:{port}"], primary="nobody", retries=0), quota_max=10)
            with pytest.raises(Unavailable):
                unknown.register_resource("matlab", 1)
        finally:
            sentinel.terminate()
            sentinel.wait(10)


def _answers(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
