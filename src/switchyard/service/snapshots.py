"""What is kept in memory: clusters, access and policy, as immutable snapshots by version. A change makes a new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.model.access import ROLE_RANK, Grant, GranteeKind, GrantTarget, Role
from switchyard.model.cluster import POLLING_BACKEND, Health, Load
from switchyard.model.layout import NO_LAYOUT, Layout
from switchyard.model.scope import level_of
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.policy.admit import ProjectEntry
from switchyard.policy.platform_layout import platform_with_layout
from switchyard.policy.resolve import Policy, RuleRow
from switchyard.route.world import Member, World
from switchyard.service.fleet import ClusterEntry, Fleet, load_fleet
from switchyard.service.layout_snapshot import LayoutSnapshot, load_layout_snapshot
from switchyard.service.rights import LOCAL_ADMIN, RAINBOW_OWNER, Actor, Rights, local_admin, rights_of
from switchyard.service.token.settings import PoolEntry
from switchyard.service.unreadable_rows import log_unreadable, read_each
from switchyard.store import access as access_store
from switchyard.store import attributes as attribute_store
from switchyard.store import clusters as cluster_store
from switchyard.store import events
from switchyard.store import token_pools as token_store
from switchyard.store.database import Database, Tx

log = structlog.get_logger()
INTERRUPTIBLE = "interruptible"  # the label of a cluster whose nodes may be taken away


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What is needed to check a token without the database."""

    id: str
    user_id: str
    hash: str
    expires_us: int | None
    is_revoked: bool


@dataclass(frozen=True)
class Access:
    """Users, tokens, grants and projects at one version."""

    version: int
    users: dict[str, tuple[str, tuple[str, ...], bool]]  # id → name, groups, enabled
    tokens: dict[str, TokenEntry]
    grants: tuple[Grant, ...]
    projects: dict[str, ProjectEntry] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    callers: dict[str, Actor] = field(default_factory=dict)  # token → its user, as a caller who showed it

    def is_open(self, member: Member) -> bool:
        """Whether everyone may submit to a cluster."""
        return self.everyone.on_cluster(member) >= ROLE_RANK[Role.SUBMIT]

    @cached_property
    def everyone(self) -> Rights:
        """What whoever comes may do."""
        return rights_of("", (), self.grants)

    def actor(self, user_id: str) -> Actor | None:
        """The user with their rights, worked out at first need."""
        found = self.actors.get(user_id)
        if found is None:
            user = self.users.get(user_id)
            if user is None or not user[2]:
                return None
            name, groups, _ = user
            found = Actor(name, rights_of(user_id, groups, self.grants), groups, user_id)
            self.actors[user_id] = found
        return found

    def caller(self, token: TokenEntry) -> Actor | None:
        """The user of a token, as a caller who showed this token."""
        found = self.callers.get(token.id)
        if found is None:
            actor = self.actor(token.user_id)
            if actor is None:
                return None
            found = self.callers[token.id] = replace(actor, token_id=token.id)
        return found

    @cached_property
    def platform_admins(self) -> frozenset[str]:
        """Their ids, as `owner_of` would say it of each; worked out at once, since each lease asks."""
        grants = [
            grant
            for grant in self.grants
            if grant.on is GrantTarget.PLATFORM and ROLE_RANK[grant.role] >= ROLE_RANK[Role.ADMIN]
        ]
        named = {grant.subject for grant in grants if grant.to is GranteeKind.USER}
        of_group = {grant.subject for grant in grants if grant.to is GranteeKind.GROUP}
        is_everyone = any(grant.to is GranteeKind.EVERYONE for grant in grants)
        admins = {LOCAL_ADMIN, *([RAINBOW_OWNER] if is_everyone else [])}
        for user_id, (_, groups, is_enabled) in self.users.items():
            if is_enabled and (is_everyone or user_id in named or not of_group.isdisjoint(groups)):
                admins.add(user_id)
        return frozenset(admins)

    @cached_property
    def live_owners(self) -> frozenset[str]:
        """The ids whose jobs may begin: users who exist and are enabled, and owners that are no users."""
        enabled = (user_id for user_id, (_, _, is_enabled) in self.users.items() if is_enabled)
        return frozenset((LOCAL_ADMIN, RAINBOW_OWNER, *enabled))

    @cached_property
    def admin_names(self) -> frozenset[str]:
        """Their names, for what is kept by name."""
        return frozenset(self.users[each][0] if each in self.users else each for each in self.platform_admins)


def owner_of(access: Access, owner_id: str | None, name: str) -> Actor:
    """Who owns a job, with the grants of now; one who is gone or disabled has none."""
    if owner_id in access.users:
        return access.actor(owner_id) or Actor(name, Rights(), user_id=owner_id)
    if owner_id == RAINBOW_OWNER:
        return submit_token_owner(access)
    admin = local_admin()
    return admin if owner_id == admin.id else Actor(name, Rights(), user_id=owner_id)


def missing_owner_reason(access: Access, owner_id: str | None, name: str) -> str:
    """Why the job of an owner may not begin: the owner was deleted or is disabled. Empty: it may begin."""
    if owner_id in access.live_owners:
        return ""
    return owner_problem(name, is_known=owner_id in access.users)


def owner_problem(name: str, *, is_known: bool) -> str:
    """What is said of a job whose owner may run none. `is_known`: the user exists, and is disabled."""
    return f"its owner {name} {'is disabled' if is_known else 'was deleted'}"


def submit_token_owner(access: Access) -> Actor:
    """Who owns a job that came with a submit token of nobody in particular: it may what everyone may."""
    if RAINBOW_OWNER not in access.actors:
        access.actors[RAINBOW_OWNER] = Actor(RAINBOW_OWNER, access.everyone)
    return access.actors[RAINBOW_OWNER]


@dataclass(frozen=True, slots=True)
class TokenPoolsSnapshot:
    """The token pools there are, at one version."""

    version: int
    entries: dict[str, PoolEntry]


class Snapshots:
    """The current snapshots. Reading one is a plain attribute; `refresh` is called after commits and each second."""

    def __init__(
        self,
        database: Database,
        *,
        policy: Policy,
        now_us: Callable[[], int],
        silent_after_us: int,
        layout: Layout = NO_LAYOUT,
    ) -> None:
        self._database = database
        self._now_us = now_us
        self.silent_after_us = silent_after_us
        self._refreshing = threading.Lock()
        # Never held while the database is asked: the event loop takes it too, and would hang as long as that does.
        self._lock = threading.Lock()
        self._world_number = 0
        self._reckoned: tuple[Fleet | None, frozenset[str]] = (None, frozenset())  # what the world was made from
        self._has_read_seen = False
        self._stored: dict[str, int] = {}  # agent → when it was last seen, as the store says
        self.seen: dict[str, int] = {}  # agent → when it was last seen, by us or (read from the store) by another
        self.loads: dict[str, Load] = {}
        self.told: dict[str, int] = {}  # agent → when it said its load
        self.loads_number = 0  # grows when a load is another one
        self.access = Access(-1, {}, {}, ())
        self.policy = policy  # the config alone, until the first refresh
        self.laid = LayoutSnapshot.by_file(layout)  # likewise
        self.fleet = Fleet(-1, {}, {}, {})
        # Which clusters are hidden from a reader (service/job/visibility.py): by who reads, and by the versions above.
        self.hidden: dict[tuple[str, int, int, int], tuple[frozenset[str], frozenset[str]]] = {}
        self.token_pools = TokenPoolsSnapshot(-1, {})
        self.world = World.of(0, [], layout=layout)

    def refresh(self, *, force: bool = False) -> bool:
        """Load what has a new version; true if the router's world changed."""
        with self._refreshing, self._database.read() as tx:
            versions = events.counters_read(tx)
            if force or versions.get("access", 0) != self.access.version:
                self.access = self._load_access(tx, versions.get("access", 0))
            if versions.get("layout", 0) != self.laid.version:
                self._take_laid(load_layout_snapshot(tx, versions.get("layout", 0), before=self.laid))
            if versions.get("policy", 0) != self.policy.version:
                self.policy = _next_policy(tx, self.policy, versions.get("policy", 0))
            if force or versions.get("clusters", 0) != self.fleet.version:
                self.fleet = load_fleet(tx, versions.get("clusters", 0), before=self.fleet)
            if force or versions.get("tokens", 0) != self.token_pools.version:
                self.token_pools = _load_token_pools(tx, versions.get("tokens", 0))
            elsewhere = set()
            # SQLite has one server, and what it wrote itself it need not read back each second.
            is_read = self._database.is_sqlite and self._has_read_seen and not force
            for agent_id, stored_us in () if is_read else cluster_store.agent_last_seen(tx).items():
                if stored_us is None or stored_us == self._stored.get(agent_id):
                    continue
                self._stored[agent_id] = stored_us
                seen_us = min(stored_us, self._now_us())  # nobody is seen in the future, and stays alive until then
                if seen_us > self.seen.get(agent_id, 0):
                    self.seen[agent_id] = seen_us
                    elsewhere.add(agent_id)
            self._has_read_seen = True
            if elsewhere:
                self._load_loads(tx, elsewhere)
            return self.reckon()

    @property
    def known(self) -> tuple[int, ...]:
        """The versions of all of it."""
        parts = (self.access, self.policy, self.fleet, self.laid, self.token_pools, self.world)
        return tuple(part.version for part in parts)

    @property
    def versions(self) -> tuple[int, int]:
        """Of what decides about jobs: the router's world, and access."""
        return self.world.version, self.access.version

    def _take_laid(self, laid: LayoutSnapshot) -> None:
        if laid.base != self.laid.base:
            log.warning("the clusters section of another server's file holds from here on")
        self.laid = laid
        self.policy = self.policy.on(platform_with_layout(self.policy.platform, laid.layout))

    def _load_loads(self, tx: Tx, agent_ids: Collection[str]) -> None:
        """What agents said of their clusters at another replica, or before this one started."""
        for agent_id, load in cluster_store.agent_loads(tx).items():
            if agent_id in agent_ids:
                try:
                    said = msgspec.json.decode(load, type=Load)
                except UNREADABLE_ERRORS as exc:
                    log_unreadable("agents", agent_id, f"column load: {exc}")
                    continue
                self.take_load(agent_id, said, self.seen[agent_id])

    def take_load(self, agent_id: str, load: Load, at_us: int) -> None:
        """How an agent says its cluster is."""
        if self.loads.get(agent_id) != load:
            self.loads_number += 1
        self.loads[agent_id], self.told[agent_id] = load, at_us

    def follow_jump(self, by_us: int) -> None:
        """The clock jumped by so much, and with it what is kept here: nobody was silent for longer, or less long."""
        for times in (self.seen, self.told):
            for agent_id in list(times):
                times[agent_id] += by_us

    def now_us(self) -> int:
        return self._now_us()

    def mark_seen(self, agent_id: str, at_us: int) -> bool:
        """An agent spoke; true if it was silent before, so that the world is to be reckoned anew."""
        was_live = self.is_live(agent_id)
        self.seen[agent_id] = max(at_us, self.seen.get(agent_id, 0))
        return not was_live

    def is_live(self, agent_id: str) -> bool:
        entry = self.fleet.agents.get(agent_id)
        if entry is not None and entry.backend == POLLING_BACKEND:
            return True
        return self._now_us() - self.seen.get(agent_id, 0) < self.silent_after_us

    def load_of(self, cluster_id: str) -> Load | None:
        """How a cluster is, as the agent of it says that spoke last: another may be gone for long."""
        agents = [agent for agent in self.fleet.by_cluster.get(cluster_id, ()) if agent in self.loads]
        last = max(agents, key=lambda agent: self.seen.get(agent, 0), default=None)
        return self.loads.get(last) if last else None

    def told_of(self, cluster_id: str) -> int:
        """When an agent of a cluster last said how it is."""
        return max((self.told.get(agent, 0) for agent in self.fleet.by_cluster.get(cluster_id, ())), default=0)

    def reckon(self) -> bool:
        """Work out the router's world from the fleet and from who is alive; true if it changed.

        As long as the fleet is the same, only clusters are looked at whose agents fell silent or came back: this is
        asked each second, and there may be thousands.
        """
        with self._lock:
            fleet, world, layout = self.fleet, self.world, self.laid.layout
            horizon_us = self._now_us() - self.silent_after_us
            live = frozenset(agent for agent, at_us in self.seen.copy().items() if at_us > horizon_us)
            before = self._reckoned
            rows: Iterable[ClusterEntry] = fleet.rows.values()
            if fleet is before[0]:
                turned = {fleet.agents[agent].cluster_id for agent in live ^ before[1] if agent in fleet.agents}
                rows = [fleet.rows[cluster] for cluster in turned if cluster in fleet.rows]
            judged = (self._member(row, fleet, live) for row in rows)
            new = {member.id: member for member in judged if member != world.by_id.get(member.id)}
            is_same = layout.pools is world.pools and layout.labels is world.labels
            if is_same and not new and fleet.rows.keys() == world.by_id.keys():
                self._reckoned = (fleet, live)
                return False
            self._world_number += 1
            members = [new.get(cluster) or world.by_id[cluster] for cluster in fleet.rows]
            self.world = World.of(self._world_number, members, layout=layout, after=world)
            self._reckoned = (fleet, live)  # last: what failed is reckoned again
            return True

    def _member(self, row: ClusterEntry, fleet: Fleet, live: Collection[str]) -> Member:
        agents = fleet.by_cluster.get(row.id, ())
        alive = [each for each in agents if each in live or fleet.agents[each].backend == POLLING_BACKEND]
        health, reason = self._health(row, fleet, alive)
        return Member(
            id=row.id,
            name=row.name,
            health=health,
            reason=reason,
            graph=row.graph,
            groups=row.groups,
            is_private=row.is_private,
            backends=frozenset(fleet.agents[agent].backend for agent in fleet.by_cluster.get(row.id, ())),
            is_interruptible=row.labels.get(INTERRUPTIBLE) == "true",
            is_silent=health is Health.CORDONED and not alive,
        )

    def _health(self, row: ClusterEntry, fleet: Fleet, live: list[str]) -> tuple[Health, str]:
        if row.is_cordoned:
            return Health.CORDONED, row.reason
        agents = fleet.by_cluster.get(row.id, ())
        if not agents:
            return Health.DOWN, "no agent has joined"
        if row.graph is None:
            return Health.DOWN, "its agent has not told what it has"
        if not live:
            return Health.DOWN, "its agent is silent"
        if all(fleet.agents[agent].is_paused for agent in live):
            return Health.PAUSED, fleet.agents[live[0]].reason
        return Health.UP, ""

    def _load_access(self, tx: Tx, version: int) -> Access:
        users = dict(read_each("users", access_store.user_all(tx), _user_entry))  # of one left out nobody gets in
        tokens = {
            row.id: TokenEntry(row.id, row.user_id, row.hash, row.expires_us, row.revoked_us is not None)
            for row in access_store.token_all(tx)
        }
        grants = tuple(read_each("grants", access_store.grant_all(tx), _grant))
        projects = dict(read_each("projects", access_store.project_all(tx), _project, key="name"))
        return Access(version, users, tokens, grants, projects)


def _user_entry(row: access_store.Row) -> tuple[str, tuple[str, tuple[str, ...], bool]]:
    return row.id, (row.name, tuple(msgspec.json.decode(row.groups, type=list[str])), bool(row.is_enabled))


def _grant(row: access_store.Row) -> Grant:
    return Grant(
        row.id,
        Role(row.role),
        GranteeKind(row.to_kind),
        row.subject,
        GrantTarget(row.on_kind),
        row.object,
        row.created_us,
    )


def _project(row: access_store.Row) -> tuple[str, ProjectEntry]:
    return row.name, ProjectEntry(msgspec.json.decode(row.labels, type=dict[str, str]), row.archived_us is not None)


def _next_policy(tx: Tx, policy: Policy, version: int) -> Policy:
    """The rows that changed since, on top of those we have. A restored database has a lower version: all anew."""
    if version < policy.version:
        policy = Policy(-1, kinds=policy.kinds, platform=policy.platform)
    return policy.changed(
        version, (_rule_row(policy, row) for row in attribute_store.attribute_list_since(tx, policy.version))
    )


def _rule_row(policy: Policy, row: attribute_store.Row) -> RuleRow:
    kind, key = policy.kinds.by_name.get(row.kind), (row.domain, row.project, row.workflow, row.launch_plan)
    value = None
    try:
        if kind is not None and row.value is not None:
            value, ignored = kind.restrict(kind.read(msgspec.json.decode(row.value)), level_of(key))
            if ignored:
                log.warning("part of a rule is ignored", kind=row.kind, row=row.id, scope=key, reason=ignored)
    except YardError as exc:  # written by another version of the kind's package; the other rules must hold all the same
        log.error("attribute not understood", kind=row.kind, row=row.id, error=exc.detail)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("attributes", row.id, f"{row.kind}: {exc}")
    return RuleRow(row.id, row.kind, key, value)


def _load_token_pools(tx: Tx, version: int) -> TokenPoolsSnapshot:
    return TokenPoolsSnapshot(
        version,
        {
            row.namespace: PoolEntry(
                row.quota, row.per_s, row.leased_until_us, row.created_us, row.changed_us, row.changed_by
            )
            for row in token_store.pool_all(tx)
        },
    )
