"""The `resourcemanager` section of the config file: the token pools of a server, and the section's mistakes."""

from __future__ import annotations

from typing import Protocol

from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.tokens import LEASE_S_MAX, QUOTA_MAX, TOKENS_OF_JOB_MAX, UNITS_MAX, is_namespace
from switchyard.plugins import PluginGroup
from switchyard.server.config.config import ResourceManagerSection
from switchyard.service.core.snapshots.token_settings import TokenSettings
from switchyard.tokens.noop import NoopPools
from switchyard.tokens.pools import TokenPools

POOLS_KINDS = PluginGroup("switchyard.token_pools", "kind of token pools")  # beside `noop`


class PoolsKind(Protocol):
    """Token pools of one `type` of the section: a class without arguments."""

    def mistakes(self, section: ResourceManagerSection) -> list[str]: ...

    def make(self, section: ResourceManagerSection, *, lease_s_max: int) -> TokenPools:
        """Make the pools of a section without mistakes."""
        ...


def token_mistakes(section: ResourceManagerSection) -> list[str]:
    """The mistakes in the section."""
    mistakes: list[str] = []
    if not 1 <= section.resourceMaxQuota <= QUOTA_MAX:
        mistakes.append(f"resourcemanager.resourceMaxQuota: from 1 to {QUOTA_MAX}")
    if not 1 <= _lease_s_max(section) <= LEASE_S_MAX:
        mistakes.append(f"resourcemanager.leaseMax: from 1 s to {LEASE_S_MAX} s")
    if section.type in POOLS_KINDS.names():
        mistakes += _kind(section).mistakes(section)
    for name, needs in section.taskTypes.items():
        where = f"resourcemanager.taskTypes.{name}"
        if len(needs) > TOKENS_OF_JOB_MAX:
            mistakes.append(f"{where}: at most {TOKENS_OF_JOB_MAX} pools")
        for namespace, units in needs.items():
            if not is_namespace(namespace):
                mistakes.append(f"{where}: {namespace[:80]!r} is not a namespace")
            if not 0 <= units <= UNITS_MAX:
                mistakes.append(f"{where}.{namespace}: from 0 to {UNITS_MAX}")
    return mistakes


def make_token_pools(section: ResourceManagerSection) -> TokenSettings:
    """Make the token pools of a section without mistakes."""
    lease_s_max = _lease_s_max(section)
    return TokenSettings(
        _pools(section, lease_s_max),
        type=section.type,
        quota_max=section.resourceMaxQuota,
        lease_s_max=lease_s_max,
        task_types=section.taskTypes,
    )


def _pools(section: ResourceManagerSection, lease_s_max: int) -> TokenPools:
    if section.type == "noop":
        return NoopPools()
    return _kind(section).make(section, lease_s_max=lease_s_max)


def _kind(section: ResourceManagerSection) -> PoolsKind:
    kind: PoolsKind = POOLS_KINDS.make(section.type)
    return kind


def _lease_s_max(section: ResourceManagerSection) -> int:
    return parse_duration_s(section.leaseMax)
