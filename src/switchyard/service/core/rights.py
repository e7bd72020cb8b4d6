"""Permissions of users, computed once per user and version of the grants. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

from switchyard.errors import Denied
from switchyard.model.rules.access import EVERYONE, ROLE_RANK, Grant, GranteeKind, GrantTarget, Role
from switchyard.route.member import Member
from switchyard.route.world import World

LOCAL_ADMIN = "local-admin"
RAINBOW_OWNER = "rainbow"  # owner of jobs that came with a submit token without a user
_NO_ROLE = -1


@dataclass(frozen=True)
class Rights:
    """The ranks of a user's highest roles: on the platform, on projects, on clusters and on cluster groups."""

    platform: int = _NO_ROLE
    projects: dict[str, int] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    cluster_groups: dict[str, int] = field(default_factory=dict)

    @cached_property
    def cluster_key(self) -> Hashable:
        """The roles on the platform, on clusters and on groups, to compare. Made once: there may be 10,000 clusters."""
        return self.platform, frozenset(self.clusters.items()), frozenset(self.cluster_groups.items())

    @cached_property
    def project_key(self) -> Hashable:
        """The roles on projects, to compare."""
        return frozenset(self.projects.items())

    def on_project(self, name: str) -> int:
        return max(self.platform, self.projects.get(name, _NO_ROLE))

    def on_cluster(self, member: Member) -> int:
        by_group = [self.cluster_groups.get(group, _NO_ROLE) for group in member.groups]
        return max(self.platform, self.clusters.get(member.id, _NO_ROLE), *by_group, _NO_ROLE)


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller of a request, or the owner of a job."""

    name: str
    rights: Rights
    groups: tuple[str, ...] = ()
    user_id: str | None = None
    token_id: str | None = None  # of the user token in the request, if any

    @property
    def id(self) -> str:
        """The permanent id. A name may later belong to another user."""
        return self.user_id or self.name

    @property
    def is_platform_admin(self) -> bool:
        return self.rights.platform >= ROLE_RANK[Role.ADMIN]

    @property
    def is_platform_operator(self) -> bool:
        return self.rights.platform >= ROLE_RANK[Role.OPERATE]

    def may_project(self, role: Role, project: str) -> bool:
        return self.rights.on_project(project) >= ROLE_RANK[role]

    def may_cluster(self, role: Role, member: Member) -> bool:
        return self.rights.on_cluster(member) >= ROLE_RANK[role]

    def need_platform(self, role: Role) -> None:
        if self.rights.platform < ROLE_RANK[role]:
            raise Denied(
                f"This needs the role {role.value} on the platform; {self.name} has {_role_name(self.rights.platform)}."
            )

    def need_project(self, role: Role, project: str) -> None:
        rank = self.rights.on_project(project)
        if rank < ROLE_RANK[role]:
            own_role = _role_name(rank)
            raise Denied(
                f"This needs the role {role.value} on project {project}; {self.name} has {own_role}.",
                next_step="`yard project ls` lists the projects you may use; an administrator grants others "
                "(`yard grant add`).",
            )

    def need_cluster(self, role: Role, member: Member) -> None:
        if not self.may_cluster(role, member):
            own_role = _role_name(self.rights.on_cluster(member))
            raise Denied(f"This needs the role {role.value} on cluster {member.name}; {self.name} has {own_role}.")

    def viewable_projects(self) -> list[str] | None:
        """Return the projects whose jobs this actor may view; None: all projects."""
        if self.rights.platform >= ROLE_RANK[Role.VIEW]:
            return None
        return sorted(name for name, rank in self.rights.projects.items() if rank >= ROLE_RANK[Role.VIEW])

    def hidden_clusters(self, world: World) -> frozenset[str]:
        """Return the clusters that this actor may not see."""
        visible, all_ids = self._clusters(Role.VIEW, world), world.rosters.ids
        return frozenset() if visible is all_ids else all_ids - visible

    def granted_clusters(self, world: World) -> frozenset[str]:
        """Return the clusters that this actor may submit to."""
        return self._clusters(Role.SUBMIT, world)

    def _clusters(self, role: Role, world: World) -> frozenset[str]:
        """Return the clusters on which this actor has a role. Faster than `may_cluster` for thousands of clusters."""
        rank, rights = ROLE_RANK[role], self.rights
        if rights.platform >= rank:
            return world.rosters.ids
        direct = {cluster for cluster, own_rank in rights.clusters.items() if own_rank >= rank}
        groups = {group for group, own_rank in rights.cluster_groups.items() if own_rank >= rank}
        by_group = (member.id for member in world.members if member.groups and not groups.isdisjoint(member.groups))
        return frozenset(direct & world.by_id.keys()).union(by_group if groups else ())


def rights_of(user_id: str, groups: tuple[str, ...], grants: tuple[Grant, ...]) -> Rights:
    """Return a user's rights from all grants to the user, to the user's groups and to everyone."""
    platform = _NO_ROLE
    tables: dict[GrantTarget, dict[str, int]] = {
        GrantTarget.PROJECT: {},
        GrantTarget.CLUSTER: {},
        GrantTarget.CLUSTER_GROUP: {},
    }
    for grant in grants:
        if not grant_applies(grant, user_id, groups):
            continue
        rank = ROLE_RANK[grant.role]
        if grant.on is GrantTarget.PLATFORM:
            platform = max(platform, rank)
        else:
            table = tables[grant.on]
            table[grant.object] = max(table.get(grant.object, _NO_ROLE), rank)
    return Rights(platform, tables[GrantTarget.PROJECT], tables[GrantTarget.CLUSTER], tables[GrantTarget.CLUSTER_GROUP])


def local_admin() -> Actor:
    """Return the actor of unauthenticated callers with --no-auth."""
    return Actor(LOCAL_ADMIN, Rights(platform=ROLE_RANK[Role.ADMIN]))


def grant_applies(grant: Grant, user_id: str, groups: tuple[str, ...]) -> bool:
    """Whether a grant applies to a user. A grant to a user names the user's id."""
    if grant.to is GranteeKind.EVERYONE:
        return True
    return grant.subject == user_id if grant.to is GranteeKind.USER else grant.subject in groups


def _role_name(rank: int) -> str:
    return "none" if rank == _NO_ROLE else list(Role)[rank].value


__all__ = ["EVERYONE", "LOCAL_ADMIN", "Actor", "Rights", "local_admin", "rights_of"]
