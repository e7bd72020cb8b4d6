"""What a reader may see of a job that they may view: no name of a cluster hidden from them, and no other's secrets.

The environment often holds passwords, so its values are for the job's owner and for operators of its project; so are
the other secrets of a spec (`model/spec_secrets.py`). Where a job ran is told to its owner; others learn no more than
what they may see of clusters.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from switchyard.model.access import ROLE_RANK, Role
from switchyard.model.attributes import JobPolicy
from switchyard.model.job import JobSpec
from switchyard.model.spec_secrets import may_hold_secrets, redact_policy, redact_spec
from switchyard.route.world import World
from switchyard.service.context import Context
from switchyard.service.rights import Actor

HIDDEN = "(hidden)"  # in the place of a cluster's name
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._@+-]*[A-Za-z0-9_])?")  # whatever a cluster can be called


NO_CLUSTERS: frozenset[str] = frozenset()
READERS_MAX = 1024  # of whom it is remembered what is hidden from them


def _hidden(context: Context, actor: Actor, world: World) -> tuple[frozenset[str], frozenset[str]]:
    """The ids of clusters hidden from a reader, and the names; worked out once for a world, a fleet and its grants."""
    snapshots = context.snapshots
    key = (actor.id, world.version, snapshots.access.version, snapshots.fleet.version)
    found = snapshots.hidden.get(key)
    if found is None:
        ids = actor.hidden_clusters(world)
        gone = (name for name in snapshots.fleet.gone if name not in world.by_name)
        found = ids, frozenset(world.by_id[each].name for each in ids).union(gone)
        if len(snapshots.hidden) >= READERS_MAX:
            snapshots.hidden.clear()
        snapshots.hidden[key] = found
    return found


class Visibility:
    """One reader, and what is hidden from them at this moment."""

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
        """Whether the reader may know that this cluster is there, or was."""
        if is_own or cluster_id is None or self._sees_all:
            return True
        if cluster_id in self._world.by_id:
            return cluster_id not in self._hidden
        return name not in self._names

    def cluster(self, cluster_id: str | None, name: str | None, *, is_own: bool = False) -> str | None:
        return name if self.sees(cluster_id, name, is_own=is_own) else None

    def text(self, text: str, *, is_own: bool = False) -> str:
        """A reason without the names of hidden clusters."""
        if is_own or not self._names or not text:
            return text
        return _WORD.sub(lambda word: HIDDEN if word[0] in self._names else word[0], text)

    def sees_secrets(self, row: Any) -> bool:
        """Whether the reader may see the secrets of a job: its owner may, and so may operators of its project."""
        return self.is_own(row) or self._actor.may_project(Role.OPERATE, row.project)

    def spec(self, row: Any, body: str) -> tuple[msgspec.Raw, bool]:
        """The spec as it is shown, and whether secrets were left out of it."""
        if not may_hold_secrets(body) or self.sees_secrets(row):
            return msgspec.Raw(body.encode()), False
        spec = msgspec.json.decode(body, type=JobSpec)
        shown = redact_spec(spec)
        if shown is spec:
            return msgspec.Raw(body.encode()), False
        return msgspec.Raw(msgspec.json.encode(shown, order="sorted")), True

    def policy(self, row: Any, policy: JobPolicy | None) -> JobPolicy | None:
        """The rules a job was admitted under, as they are shown."""
        return policy if policy is None or self.sees_secrets(row) else redact_policy(policy)
