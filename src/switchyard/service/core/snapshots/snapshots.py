"""In-memory snapshots of clusters, access, layout and policy. Snapshots are immutable; a change makes a new version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.model.cluster.cluster import POLLING_BACKEND, Health, Load
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import ROLE_RANK, Grant, GranteeKind, GrantTarget, Role
from switchyard.model.rules.layout import NO_LAYOUT, Layout
from switchyard.model.rules.scope import level_of
from switchyard.policy.admit import ProjectEntry
from switchyard.policy.platform_layout import platform_with_layout
from switchyard.policy.resolve import Policy, RuleRow
from switchyard.route.member import Member
from switchyard.route.world import World
from switchyard.service.core.agents.agent_conditions import (
    NO_TROUBLE,
    AgentEnds,
    AgentTrouble,
    AgentTroubles,
    TimesLeft,
    Troubles,
    common_time_left,
    common_trouble,
)
from switchyard.service.core.agents.fleet import ClusterEntry, Fleet, load_fleet
from switchyard.service.core.resource_set import NO_RESOURCES, load_resource_set
from switchyard.service.core.rights import LOCAL_ADMIN, RAINBOW_OWNER, Actor, Rights, local_admin, rights_of
from switchyard.service.core.snapshots.layout_snapshot import LayoutSnapshot, load_layout_snapshot
from switchyard.service.core.snapshots.probation_snapshot import NO_PROBATION, ProbationSnapshot, load_probation
from switchyard.service.core.snapshots.token_settings import PoolEntry
from switchyard.service.core.unreadable_rows import log_unreadable, read_each
from switchyard.store.access import access as access_store
from switchyard.store.clusters import clusters as cluster_store
from switchyard.store.engine.database import Database, Tx
from switchyard.store.jobs import events
from switchyard.store.rules import attributes as attribute_store
from switchyard.store.rules import token_pools as token_store

log = structlog.get_logger()
NO_LOAD = Load()
INTERRUPTIBLE = "interruptible"  # the label of a cluster that may preempt jobs


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """The data that checks a user token without a database query."""

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
    callers: dict[str, Actor] = field(default_factory=dict)  # by token id

    def is_open(self, member: Member) -> bool:
        """Whether everyone may submit to a cluster."""
        return self.everyone.on_cluster(member) >= ROLE_RANK[Role.SUBMIT]

    @cached_property
    def everyone(self) -> Rights:
        """The rights that every user has."""
        return rights_of("", (), self.grants)

    def actor(self, user_id: str) -> Actor | None:
        """Return an enabled user with rights, cached; None for unknown and disabled users."""
        cached = self.actors.get(user_id)
        if cached is None:
            user = self.users.get(user_id)
            if user is None or not user[2]:
                return None
            name, groups, _ = user
            cached = Actor(name, rights_of(user_id, groups, self.grants), groups, user_id)
            self.actors[user_id] = cached
        return cached

    def caller(self, token: TokenEntry) -> Actor | None:
        """Return the user of a token as the caller of a request, cached; None for unknown and disabled users."""
        cached = self.callers.get(token.id)
        if cached is None:
            actor = self.actor(token.user_id)
            if actor is None:
                return None
            cached = self.callers[token.id] = replace(actor, token_id=token.id)
        return cached

    @cached_property
    def platform_admins(self) -> frozenset[str]:
        """The ids of all platform administrators, consistent with `owner_of`. Cached: every lease reads it."""
        grants = [
            grant
            for grant in self.grants
            if grant.on is GrantTarget.PLATFORM and ROLE_RANK[grant.role] >= ROLE_RANK[Role.ADMIN]
        ]
        user_ids = {grant.subject for grant in grants if grant.to is GranteeKind.USER}
        group_names = {grant.subject for grant in grants if grant.to is GranteeKind.GROUP}
        is_everyone = any(grant.to is GranteeKind.EVERYONE for grant in grants)
        admins = {LOCAL_ADMIN, *([RAINBOW_OWNER] if is_everyone else [])}
        for user_id, (_, groups, is_enabled) in self.users.items():
            if is_enabled and (is_everyone or user_id in user_ids or not group_names.isdisjoint(groups)):
                admins.add(user_id)
        return frozenset(admins)

    @cached_property
    def live_owners(self) -> frozenset[str]:
        """The owner ids whose jobs may start: enabled users, and the built-in owners."""
        enabled = (user_id for user_id, (_, _, is_enabled) in self.users.items() if is_enabled)
        return frozenset((LOCAL_ADMIN, RAINBOW_OWNER, *enabled))

    @cached_property
    def admin_names(self) -> frozenset[str]:
        """The names of all platform administrators, for data that is stored by name."""
        return frozenset(
            self.users[user_id][0] if user_id in self.users else user_id for user_id in self.platform_admins
        )


def owner_of(access: Access, owner_id: str | None, name: str) -> Actor:
    """Return a job's owner with current rights. Deleted and disabled users have no rights."""
    if owner_id in access.users:
        return access.actor(owner_id) or Actor(name, Rights(), user_id=owner_id)
    if owner_id == RAINBOW_OWNER:
        return submit_token_owner(access)
    admin = local_admin()
    return admin if owner_id == admin.id else Actor(name, Rights(), user_id=owner_id)


def missing_owner_reason(access: Access, owner_id: str | None, name: str) -> str:
    """Return why an owner's job may not start: the owner was deleted or is disabled. Empty: the job may start."""
    if owner_id in access.live_owners:
        return ""
    return owner_problem(name, is_known=owner_id in access.users)


def owner_problem(name: str, *, is_known: bool) -> str:
    """Return the reason for a job whose owner is disabled (`is_known`) or deleted."""
    return f"its owner {name} {'is disabled' if is_known else 'was deleted'}"


def submit_token_owner(access: Access) -> Actor:
    """Return the owner of jobs that came with a submit token without a user. It has the rights of everyone."""
    if RAINBOW_OWNER not in access.actors:
        access.actors[RAINBOW_OWNER] = Actor(RAINBOW_OWNER, access.everyone)
    return access.actors[RAINBOW_OWNER]


class Snapshots:
    """The current snapshots, as plain attributes. The server calls `refresh` after commits and every second."""

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
        # Never held during a database query: the event loop takes this lock too, and would block.
        self._lock = threading.Lock()
        self._world_number = 0
        # The fleet, the live agents, their troubles, their times left and the probations that `world` was built from.
        self._built_from: tuple[Fleet | None, frozenset[str], Troubles, TimesLeft, ProbationSnapshot] = (
            None,
            frozenset(),
            {},
            {},
            NO_PROBATION,
        )
        self._has_read_seen = False
        self._stored_seen: dict[str, int] = {}  # agent → when it was last seen, as stored in the database
        self.seen: dict[str, int] = {}  # agent → when this or another server last saw it
        self.loads: dict[str, Load] = {}
        self.load_times: dict[str, int] = {}  # agent → when the load that it reported was true
        self.loads_number = 0  # grows when a load changes
        self._troubles = AgentTroubles()
        self._ends = AgentEnds()
        self.access = Access(-1, {}, {}, ())
        self.policy = policy  # only the config, until the first refresh
        self.laid = LayoutSnapshot.by_file(layout)  # only the config file, until the first refresh
        self.fleet = Fleet(-1, {}, {}, {})
        # Clusters hidden from a reader, by reader and snapshot versions (service/lifecycle/visibility.py).
        self.hidden: dict[tuple[str, int, int, int], tuple[frozenset[str], frozenset[str]]] = {}
        self.token_pools = TokenPoolsSnapshot(-1, {})
        self.resources = NO_RESOURCES
        self.probation = NO_PROBATION
        self.world = World.of(0, [], layout=layout)

    def refresh(self, *, force: bool = False) -> bool:
        """Reload the snapshots whose version changed. Returns whether the router's world changed."""
        with self._refreshing, self._database.read() as tx:
            versions = events.counters_read(tx)
            if force or versions.get("access", 0) != self.access.version:
                self.access = self._load_access(tx, versions.get("access", 0))
            if versions.get("layout", 0) != self.laid.version:
                self._take_layout(load_layout_snapshot(tx, versions.get("layout", 0), before=self.laid))
            if versions.get("policy", 0) != self.policy.version:
                self.policy = next_policy(tx, self.policy, versions.get("policy", 0))
            if force or versions.get("clusters", 0) != self.fleet.version:
                before = self.fleet
                self.fleet = load_fleet(tx, versions.get("clusters", 0), before=before)
                self._forget_agents(before.agents.keys() - self.fleet.agents.keys())
            if force or versions.get("tokens", 0) != self.token_pools.version:
                self.token_pools = load_token_pools(tx, versions.get("tokens", 0))
            if force or versions.get("resources", 0) != self.resources.version:
                self.resources = load_resource_set(tx, versions.get("resources", 0))
            if force or versions.get("probation", 0) != max(0, self.probation.version):
                self.probation = load_probation(tx, versions.get("probation", 0))
            seen_elsewhere = set()
            # SQLite has one server, which need not read back its own values every second.
            is_current = self._database.is_sqlite and self._has_read_seen and not force
            for agent_id, stored_us in () if is_current else cluster_store.agent_last_seen(tx).items():
                if stored_us is None or stored_us == self._stored_seen.get(agent_id):
                    continue
                self._stored_seen[agent_id] = stored_us
                seen_us = min(stored_us, self._now_us())  # a future time would keep a silent agent alive
                if seen_us > self.seen.get(agent_id, 0):
                    self.seen[agent_id] = seen_us
                    seen_elsewhere.add(agent_id)
            self._has_read_seen = True
            if seen_elsewhere:
                self._read_loads(tx, seen_elsewhere)
            return self.rebuild_world()

    @property
    def all_versions(self) -> tuple[int, ...]:
        """The versions of all snapshots."""
        parts = (self.access, self.policy, self.fleet, self.laid, self.token_pools, self.world)
        return tuple(part.version for part in parts)

    @property
    def versions(self) -> tuple[int, int]:
        """The versions that routing depends on: the router's world, and access."""
        return self.world.version, self.access.version

    def _take_layout(self, snapshot: LayoutSnapshot) -> None:
        if snapshot.base != self.laid.base:
            log.warning("the clusters section of another server's file holds from here on")
        self.laid = snapshot
        self.policy = self.policy.on(platform_with_layout(self.policy.platform, snapshot.layout))

    def _read_loads(self, tx: Tx, agent_ids: Collection[str]) -> None:
        """Read the loads that agents reported to another server, or before this server started."""
        for agent_id, text in cluster_store.agent_loads(tx).items():
            if agent_id in agent_ids:
                try:
                    load = msgspec.json.decode(text, type=Load)
                except UNREADABLE_ERRORS as exc:
                    log_unreadable("agents", agent_id, f"column load: {exc}")
                    continue
                self.take_load(agent_id, load, self.seen[agent_id])

    def take_load(self, agent_id: str, load: Load, at_us: int) -> bool:
        """Remember the load that an agent reported. Returns whether a trouble began or ended, or an end became known:
        then the caller rebuilds the world.
        """
        if self.loads.get(agent_id) != load:
            self.loads_number += 1
        # What an agent knows of a silent batch system is as old as the silence.
        self.loads[agent_id], self.load_times[agent_id] = load, at_us - (load.silent_s or 0) * 1_000_000
        is_end_new = self._ends.take(agent_id, load, at_us)
        return self._troubles.take(agent_id, load) or is_end_new

    def _forget_agents(self, removed: Iterable[str]) -> None:
        """Drop what is kept of agents that were removed: each ephemeral cluster and each pilot has had agents."""
        for agent_id in removed:
            for table in (self._stored_seen, self.seen, self.loads, self.load_times):
                table.pop(agent_id, None)
            self._troubles.forget(agent_id)
            self._ends.forget(agent_id)

    def follow_jump(self, by_us: int) -> None:
        """Shift all remembered times after a jump of the clock, so that no agent's silence gets longer or shorter."""
        for times in (self.seen, self.load_times):
            for agent_id, at_us in list(times.items()):
                times[agent_id] = at_us + by_us
        self._ends.follow_jump(by_us)

    def now_us(self) -> int:
        return self._now_us()

    def mark_seen(self, agent_id: str, at_us: int) -> bool:
        """Record a call of an agent. Returns whether the agent was silent: then the caller rebuilds the world."""
        was_live = self.is_live(agent_id)
        self.seen[agent_id] = max(at_us, self.seen.get(agent_id, 0))
        return not was_live

    def is_live(self, agent_id: str) -> bool:
        entry = self.fleet.agents.get(agent_id)
        if entry is not None and entry.backend == POLLING_BACKEND:
            return True
        return self._now_us() - self.seen.get(agent_id, 0) < self.silent_after_us

    def agent_time_left_s(self, agent_id: str) -> int | None:
        """Return how long an agent of an ephemeral cluster goes on, rounded up; None: it has no end."""
        return self._ends.left_of(agent_id, self._now_us())

    def is_agent_time_over(self, agent_id: str) -> bool:
        """Return whether the agent of an ephemeral cluster said when it ends, and that time is over."""
        return self._ends.is_over(agent_id, self._now_us())

    def load_of(self, cluster_id: str) -> Load | None:
        """Return the load from the cluster's last seen agent. Its other agents may be gone."""
        agents = [agent for agent in self.fleet.by_cluster.get(cluster_id, ()) if agent in self.loads]
        if len(agents) == 1:
            return self.loads.get(agents[0])
        last_seen = max(agents, key=lambda agent: self.seen.get(agent, 0), default=None)
        return self.loads.get(last_seen) if last_seen else None

    def trouble_of(self, cluster_id: str) -> str:
        """Return why no agent of the cluster takes new work now, such as a full disk; empty: one of them does."""
        return common_trouble(load.trouble for load in self._live_loads(cluster_id))

    def silence_of(self, cluster_id: str) -> str:
        """Return that the batch system behind all agents of the cluster does not answer; empty: it answers."""
        return common_trouble(AgentTrouble.of(load).silence for load in self._live_loads(cluster_id))

    def files_trouble_of(self, cluster_id: str) -> str:
        """Return why no agent of the cluster takes jobs with files now; empty: one of them does."""
        return common_trouble(load.files_trouble for load in self._live_loads(cluster_id))

    def _live_loads(self, cluster_id: str) -> list[Load]:
        live = (agent for agent in self.fleet.by_cluster.get(cluster_id, ()) if self.is_live(agent))
        return [self.loads.get(agent, NO_LOAD) for agent in live]

    def reported_us(self, cluster_id: str) -> int:
        """Return when the load that an agent of the cluster reported was last true; 0: never."""
        return max((self.load_times.get(agent, 0) for agent in self.fleet.by_cluster.get(cluster_id, ())), default=0)

    def rebuild_world(self) -> bool:
        """Rebuild the router's world from the fleet and the live agents. Returns whether the world changed.

        If the fleet is unchanged, only clusters whose agents fell silent, came back, or are in trouble or out of it
        are checked. This runs every second, and there may be thousands of clusters.
        """
        with self._lock:
            fleet, world, layout = self.fleet, self.world, self.laid.layout
            horizon_us = self._now_us() - self.silent_after_us
            live = frozenset(agent for agent, at_us in self.seen.copy().items() if at_us > horizon_us)
            troubles, left = self._troubles.now(), self._ends.left(self._now_us())
            probation = self.probation
            built = fleet, live, troubles, left, probation
            old_fleet, old_live, old_troubles, old_left, old_probation = self._built_from
            rows: Iterable[ClusterEntry] = fleet.rows.values()
            if fleet is old_fleet:
                agents = (live ^ old_live) | {agent for agent, _ in troubles.items() ^ old_troubles.items()}
                agents |= {agent for agent, _ in left.items() ^ old_left.items()}
                affected = {fleet.agents[agent].cluster_id for agent in agents if agent in fleet.agents}
                if probation is not old_probation:
                    affected |= {cluster for cluster, _ in probation.reasons.items() ^ old_probation.reasons.items()}
                rows = [fleet.rows[cluster] for cluster in affected if cluster in fleet.rows]
            checked = (self._member(row, fleet, live, troubles, left) for row in rows)
            changed = {member.id: member for member in checked if member != world.by_id.get(member.id)}
            is_same_layout = layout.pools is world.pools and layout.labels is world.labels
            is_same_probation = probation is old_probation or probation.by_owner == world.owner_probations
            if is_same_layout and is_same_probation and not changed and fleet.rows.keys() == world.by_id.keys():
                self._built_from = built
                return False
            self._world_number += 1
            members = [changed.get(cluster) or world.by_id[cluster] for cluster in fleet.rows]
            self.world = World.of(
                self._world_number, members, layout=layout, after=world, owner_probations=probation.by_owner
            )
            self._built_from = built  # last, so that a failed rebuild is repeated
            return True

    def _member(
        self, row: ClusterEntry, fleet: Fleet, live: Collection[str], troubles: Troubles, left: TimesLeft
    ) -> Member:
        agents = fleet.by_cluster.get(row.id, ())
        alive = [agent for agent in agents if agent in live or fleet.agents[agent].backend == POLLING_BACKEND]
        silence = common_trouble(troubles.get(agent, NO_TROUBLE).silence for agent in alive)
        health, reason = self._health(row, fleet, alive, silence)
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
            trouble=common_trouble(troubles.get(agent, NO_TROUBLE).any_job for agent in alive),
            files_trouble=common_trouble(troubles.get(agent, NO_TROUBLE).files for agent in alive),
            left_s=common_time_left(left.get(agent) for agent in alive),
            is_silent=health is Health.CORDONED and not alive,
            is_batch_silent=bool(silence),
            probation=self.probation.reasons.get(row.id, ""),
        )

    def _health(self, row: ClusterEntry, fleet: Fleet, live: list[str], silence: str) -> tuple[Health, str]:
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
        if silence:
            return Health.DOWN, silence
        return Health.UP, ""

    def _load_access(self, tx: Tx, version: int) -> Access:
        users = dict(read_each("users", access_store.user_all(tx), _user_entry))  # skipped users cannot log in
        tokens = {
            row.id: TokenEntry(row.id, row.user_id, row.hash, row.expires_us, row.revoked_us is not None)
            for row in access_store.token_all(tx)
        }
        grants = tuple(read_each("grants", access_store.grant_all(tx), _grant))
        projects = dict(read_each("projects", access_store.project_all(tx), _project, key="name"))
        return Access(version, users, tokens, grants, projects)


def _user_entry(row: access_store.UserRow) -> tuple[str, tuple[str, tuple[str, ...], bool]]:
    return row.id, (row.name, tuple(msgspec.json.decode(row.groups, type=list[str])), bool(row.is_enabled))


def _grant(row: access_store.GrantRow) -> Grant:
    return Grant(
        row.id,
        Role(row.role),
        GranteeKind(row.to_kind),
        row.subject,
        GrantTarget(row.on_kind),
        row.object,
        row.created_us,
    )


def _project(row: access_store.ProjectRow) -> tuple[str, ProjectEntry]:
    return row.name, ProjectEntry(msgspec.json.decode(row.labels, type=dict[str, str]), row.archived_us is not None)


@dataclass(frozen=True, slots=True)
class TokenPoolsSnapshot:
    """All token pools at one version."""

    version: int
    entries: dict[str, PoolEntry]


def load_token_pools(tx: Tx, version: int) -> TokenPoolsSnapshot:
    return TokenPoolsSnapshot(
        version,
        {
            row.namespace: PoolEntry(
                row.quota, row.per_s, row.leased_until_us, row.created_us, row.changed_us, row.changed_by
            )
            for row in token_store.pool_all(tx)
        },
    )


def next_policy(tx: Tx, policy: Policy, version: int) -> Policy:
    """Return the policy with the rows that changed. A restored database has a lower version: then read all rows."""
    if version < policy.version:
        policy = Policy(-1, kinds=policy.kinds, platform=policy.platform)
    return policy.changed(
        version, (_rule_row(policy, row) for row in attribute_store.attribute_list_since(tx, policy.version))
    )


def _rule_row(policy: Policy, row: attribute_store.StoredAttribute) -> RuleRow:
    kind, key = policy.kinds.by_name.get(row.kind), (row.domain, row.project, row.workflow, row.launch_plan)
    value = None
    try:
        if kind is not None and row.value is not None:
            value, ignored = kind.restrict(kind.read(msgspec.json.decode(row.value)), level_of(key))
            if ignored:
                log.warning("part of a rule is ignored", kind=row.kind, row=row.id, scope=key, reason=ignored)
    except YardError as exc:  # written by another version of the kind's package; the other rules still apply
        log.error("attribute not understood", kind=row.kind, row=row.id, error=exc.detail)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("attributes", row.id, f"{row.kind}: {exc}")
    return RuleRow(row.id, row.kind, key, value)
