"""Look up clusters that a caller may see."""

from __future__ import annotations

from switchyard.errors import NoSuchCluster
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor


def visible_cluster(context: Context, actor: Actor, name: str) -> Member:
    member = context.snapshots.world.by_name.get(name)
    if member is None or not actor.may_cluster(Role.VIEW, member):
        raise NoSuchCluster(f"There is no cluster {name[:128]!r}, or it is not yours to see.")
    return member
