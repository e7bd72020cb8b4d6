"""Redact jobs for a reader: remove the names of hidden clusters and other users' secrets.

Environment values often hold passwords. Only the job's owner and operators of its project see them and the other
secrets of a spec (`spec_secrets.py`), and only the owner sees join tokens. The owner sees where a job ran; other
readers see only visible clusters.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from switchyard.model.job.job import JobSpec
from switchyard.model.job.spec_secrets import (
    hide_join_tokens,
    may_hold_join_token,
    may_hold_secrets,
    redact_policy,
    redact_spec,
)
from switchyard.model.rules.access import ROLE_RANK, Role
from switchyard.model.rules.attributes import JobPolicy
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

HIDDEN = "(hidden)"  # replaces a cluster's name
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._@+-]*[A-Za-z0-9_])?")  # matches every possible cluster name
NO_CLUSTERS: frozenset[str] = frozenset()
READERS_MAX = 1024  # cached sets of hidden clusters


def _hidden(context: Context, actor: Actor, world: World) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids and names of clusters hidden from a reader. Cached per version of the world, access and fleet."""
    snapshots = context.snapshots
    key = (actor.id, world.version, snapshots.access.version, snapshots.fleet.version)
    hidden = snapshots.hidden.get(key)
    if hidden is None:
        ids = actor.hidden_clusters(world)
        deleted_names = (name for name in snapshots.fleet.deleted_private_names if name not in world.by_name)
        hidden = ids, frozenset(world.by_id[cluster_id].name for cluster_id in ids).union(deleted_names)
        if len(snapshots.hidden) >= READERS_MAX:
            snapshots.hidden.clear()
        snapshots.hidden[key] = hidden
    return hidden


class Visibility:
    """The current view of one reader."""

    def __init__(self, context: Context, actor: Actor) -> None:
        self._actor = actor
        self._world = context.snapshots.world
        self._sees_all = actor.rights.platform >= ROLE_RANK[Role.VIEW]
        self._hidden, self._names = (
            (NO_CLUSTERS, NO_CLUSTERS) if self._sees_all else _hidden(context, actor, self._world)
        )

    def is_own(self, row: Any) -> bool:
        return self.is_reader(row.owner_id)

    def is_reader(self, owner_id: str | None) -> bool:
        return owner_id is not None and owner_id == self._actor.id

    def sees_name(self, name: str) -> bool:
        return name not in self._names

    def name(self, name: str | None) -> str | None:
        return None if name in self._names else name

    def sees(self, cluster_id: str | None, name: str | None, *, is_own: bool = False) -> bool:
        """Whether the reader may know that this cluster exists or existed."""
        if is_own or cluster_id is None or self._sees_all:
            return True
        if cluster_id in self._world.by_id:
            return cluster_id not in self._hidden
        return name not in self._names

    def cluster(self, cluster_id: str | None, name: str | None, *, is_own: bool = False) -> str | None:
        return name if self.sees(cluster_id, name, is_own=is_own) else None

    def text(self, text: str, *, is_own: bool = False) -> str:
        """Replace the names of hidden clusters in a reason."""
        if is_own or not self._names or not text:
            return text
        return _WORD.sub(lambda word: HIDDEN if word[0] in self._names else word[0], text)

    def sees_secrets(self, row: Any) -> bool:
        """Whether the reader may see the secrets of a job: the owner and operators of the project may."""
        return self.is_own(row) or self._actor.may_project(Role.OPERATE, row.project)

    def spec(self, row: Any, body: str) -> tuple[msgspec.Raw, bool]:
        """Return the spec to show, and whether secrets were removed from it; hidden join tokens do not count."""
        sees_secrets = not may_hold_secrets(body) or self.sees_secrets(row)
        if sees_secrets and (self.is_own(row) or not may_hold_join_token(body)):
            return msgspec.Raw(body.encode()), False
        spec = msgspec.json.decode(body, type=JobSpec)
        if sees_secrets:
            return msgspec.Raw(msgspec.json.encode(hide_join_tokens(spec), order="sorted")), False
        redacted = redact_spec(spec)
        if redacted is spec:
            return msgspec.Raw(body.encode()), False
        return msgspec.Raw(msgspec.json.encode(redacted, order="sorted")), True

    def policy(self, row: Any, policy: JobPolicy | None) -> JobPolicy | None:
        """Return the rules that a job was admitted under, without secrets the reader may not see."""
        return policy if policy is None or self.sees_secrets(row) else redact_policy(policy)
