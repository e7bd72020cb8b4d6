"""The kind `redis` of token pools: what is wrong with its section of the config, and the pools of a right one."""

from __future__ import annotations

from switchyard.server.config.config import ResourceManagerSection
from switchyard.tokens.pools import TokenPools


class RedisKind:
    """It is a `server.config.token_pools_section.PoolsKind`."""

    def mistakes(self, section: ResourceManagerSection) -> list[str]:
        if not section.redis.hostPaths:
            return ["resourcemanager.redis.hostPaths: name the Redis, as host:port"]
        if len(section.redis.hostPaths) > 1 and not section.redis.primaryName:
            return [
                "resourcemanager.redis.hostPaths: several are Sentinels, and need primaryName; a Redis is one address"
            ]
        return []

    def make(self, section: ResourceManagerSection, *, lease_s_max: int) -> TokenPools:
        """The server also starts while Redis is unreachable."""
        from switchyard.features.redis.redis_connections import RedisConnectionPool  # takes 60 ms
        from switchyard.features.redis.redis_pools import RedisPools

        there = section.redis
        lines = RedisConnectionPool(
            there.hostPaths, password=there.hostKey, primary=there.primaryName, retries=there.maxRetries
        )
        return RedisPools(lines, quota_max=section.resourceMaxQuota, lease_s_max=lease_s_max)
