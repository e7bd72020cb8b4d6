"""Who may do what, worked out once per user and version of the grants. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from switchyard.errors import Denied
from switchyard.model.access import EVERYONE, ROLE_RANK, Grant, GranteeKind, GrantTarget, Role
from switchyard.route.world import Member, World

LOCAL_ADMIN = "local-admin"
RAINBOW_OWNER = "rainbow"  # who owns a job whose submitter showed a submit token of nobody in particular
_NO_ROLE = -1


@dataclass(frozen=True, slots=True)
class Rights:
    """The highest role a user holds on each thing, as ranks."""

    platform: int = _NO_ROLE
    projects: dict[str, int] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    cluster_groups: dict[str, int] = field(default_factory=dict)

    def on_project(self, name: str) -> int:
        return max(self.platform, self.projects.get(name, _NO_ROLE))

    def on_cluster(self, member: Member) -> int:
        by_group = [self.cluster_groups.get(group, _NO_ROLE) for group in member.groups]
        return max(self.platform, self.clusters.get(member.id, _NO_ROLE), *by_group, _NO_ROLE)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who is asking."""

    name: str
    rights: Rights
    groups: tuple[str, ...] = ()
    user_id: str | None = None
    token_id: str | None = None  # of the token that was shown, where one was

    @property
    def id(self) -> str:
        """Who this is for good: a later user of the same name is another one."""
        return self.user_id or self.name

    @property
    def is_platform_admin(self) -> bool:
        return self.rights.platform >= ROLE_RANK[Role.ADMIN]

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
        if not self.may_project(role, project):
            have = _role_name(self.rights.on_project(project))
            raise Denied(f"This needs the role {role.value} on project {project}; {self.name} has {have}.")

    def need_cluster(self, role: Role, member: Member) -> None:
        if not self.may_cluster(role, member):
            have = _role_name(self.rights.on_cluster(member))
            raise Denied(f"This needs the role {role.value} on cluster {member.name}; {self.name} has {have}.")

    def viewable_projects(self) -> list[str] | None:
        """The projects whose jobs this actor may view; none: all."""
        if self.rights.platform >= ROLE_RANK[Role.VIEW]:
            return None
        return sorted(name for name, rank in self.rights.projects.items() if rank >= ROLE_RANK[Role.VIEW])

    def hidden_clusters(self, world: World) -> frozenset[str]:
        """The clusters this actor may not even see."""
        seen, every = self._clusters(Role.VIEW, world), world.rosters.ids
        return frozenset() if seen is every else every - seen

    def granted_clusters(self, world: World) -> frozenset[str]:
        """The clusters this actor may submit to."""
        return self._clusters(Role.SUBMIT, world)

    def _clusters(self, role: Role, world: World) -> frozenset[str]:
        """As `may_cluster` of each, at once: there may be thousands, and this is asked for each new shape of job."""
        rank, rights = ROLE_RANK[role], self.rights
        if rights.platform >= rank:
            return world.rosters.ids
        own = {cluster for cluster, has in rights.clusters.items() if has >= rank}
        groups = {group for group, has in rights.cluster_groups.items() if has >= rank}
        of_groups = (member.id for member in world.members if member.groups and not groups.isdisjoint(member.groups))
        return frozenset(own & world.by_id.keys()).union(of_groups if groups else ())


def rights_of(user_id: str, groups: tuple[str, ...], grants: tuple[Grant, ...]) -> Rights:
    """Gather all grants that reach a user: their own, their groups', everyone's."""
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
    """Who an unauthenticated caller is with --no-auth."""
    return Actor(LOCAL_ADMIN, Rights(platform=ROLE_RANK[Role.ADMIN]))


def grant_applies(grant: Grant, user_id: str, groups: tuple[str, ...]) -> bool:
    """Whether a user holds a grant. Users hold theirs by id."""
    if grant.to is GranteeKind.EVERYONE:
        return True
    return grant.subject == user_id if grant.to is GranteeKind.USER else grant.subject in groups


def _role_name(rank: int) -> str:
    return "none" if rank == _NO_ROLE else list(Role)[rank].value


__all__ = ["EVERYONE", "LOCAL_ADMIN", "Actor", "Rights", "local_admin", "rights_of"]
