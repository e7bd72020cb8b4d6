"""The services on a real database, driven without a server: a clock that stands still, agents that speak when told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from switchyard import plugins
from switchyard.errors import YardError
from switchyard.model.cluster.cluster import ClusterRequest
from switchyard.model.cluster.poll import AttemptRef, Join, Lease, OutputChunk, Report, Room
from switchyard.model.graph import Graph
from switchyard.model.job.job import Job, JobRequest
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.access import GranteeKind, GrantRequest, GrantTarget, Role, UserRequest
from switchyard.model.wire.api import CreatedJob, ProjectRequest
from switchyard.server import app, wiring
from switchyard.server.config.config import Config
from switchyard.server.config.settings import ServerBounds, Settings
from switchyard.service.access import projects, users
from switchyard.service.cluster import agent_join, clusters, graphs
from switchyard.service.core.rights import Actor, local_admin
from switchyard.service.core.writes.clock import IdGenerator
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.job import jobs
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.run.lease import LeaseAnswer, SyncRequest
from switchyard.service.run.report import ReportWrite
from switchyard.service.submit.new_job import AcceptedJob
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs as job_store
from switchyard.store.tables import schema_check
from tests.builders import a_graph, a_request

WAIT_S = 30
ADMIN = local_admin()
_compare = schema_check.compare
_differences_of: dict[frozenset[str], list[schema_check.Difference]] = {}
_entry_points = cache(entry_points)  # the packages that are installed do not change while tests run


@dataclass
class Clock:
    """Time passes only when it is told to."""

    at_us: int = field(default_factory=wall_us)
    passed_us: int = 10**15
    unseen_us: int = 0  # by how much the database's clock jumped since the server's last look

    def __call__(self) -> int:
        return self.at_us

    def steady_us(self) -> int:
        """Time that passes, passes on both; a jump is `at_us` set to another time."""
        return self.passed_us

    def is_right(self, _: Tx) -> bool:
        return not self.unseen_us

    def wait(self, seconds: float) -> None:
        self.at_us += int(seconds * 1_000_000)
        self.passed_us += int(seconds * 1_000_000)


class Rig:
    """One server's insides. Closed, it leaves the database as a stopped server does."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        clock: Clock | None = None,
        ids: Callable[[], str] | None = None,
        config: Config | None = None,
        **bounds: int,
    ) -> None:
        self.clock = clock or Clock()
        settings = Settings(folder, ("127.0.0.1", 1), url, config=config or Config(), bounds=ServerBounds(**bounds))
        with (
            patch.object(wiring, "Clock", lambda _: self.clock),
            patch.object(wiring, "IdGenerator", lambda _: ids or IdGenerator()),
            patch.object(schema_check, "compare", _differences),
            patch.object(plugins, "entry_points", _entry_points),
        ):
            self.yard = app.build(settings)
        self.context, self.submits = self.yard.context, self.yard.services.submit
        self.committer = self.context.committer
        self.committer.after_commit = self.yard.wakeups.after_commit
        self.committer.start()
        users.prepare_first_start(self.context, is_open=True)
        self.context.snapshots.refresh(force=True)
        self.leader = Leadership("one")
        self.leader.take(self.context)

    def close(self) -> None:
        self.committer.close()
        self.yard.workers.close(wait=True)
        self.context.database.close()

    # --- people

    def user(self, name: str, *grants: tuple[Role, GrantTarget, str], groups: Iterable[str] = ()) -> Actor:
        """A user with these grants."""
        made = users.user_create(self.context, ADMIN, UserRequest(name, groups=list(groups)))
        for role, on, what in grants:
            self.grant(name, role, on, what)
        return self.actor(made.id)

    def actor(self, user_id: str) -> Actor:
        found = self.context.snapshots.access.actor(user_id)
        assert found is not None
        return found

    def grant(
        self, name: str, role: Role, on: GrantTarget, what: str = "all", to: GranteeKind = GranteeKind.USER
    ) -> str:
        return users.grant_create(self.context, ADMIN, GrantRequest(role, to, on, name, what)).id

    def project(self, name: str) -> str:
        return projects.project_create(self.context, ADMIN, ProjectRequest(name)).name

    # --- clusters

    def cluster(self, name: str, *, graph: Graph | None = None, is_private: bool = False) -> RigAgent:
        """A cluster that is up, with one agent that has said hello."""
        if is_private:
            clusters.cluster_create(self.context, ADMIN, ClusterRequest(name, is_private=True))
        agent = self.join(name)
        graphs.store_agent_graph(self.context, agent.id, graph or a_graph(count=2))
        agent.sync()
        return agent

    def join(
        self, cluster: str, name: str = "agent", *, journal: str = "j1", token: str = "", backend: str = "fake"
    ) -> RigAgent:
        asked = Join(cluster=cluster, name=name, journal=journal, backend=backend)
        joined = agent_join.join_agent(self.context, token, asked, is_open=not token)
        return RigAgent(self, joined.agent, cluster)

    # --- jobs

    def submit(self, request: JobRequest | None = None, *, actor: Actor = ADMIN, key: str | None = None) -> CreatedJob:
        return self.accept(request, actor=actor, key=key).created

    def accept(self, request: JobRequest | None = None, *, actor: Actor = ADMIN, key: str | None = None) -> AcceptedJob:
        accepted: AcceptedJob = self.committer.do(self.decided(request, actor=actor, key=key))
        return accepted

    def decided(self, request: JobRequest | None = None, *, actor: Actor = ADMIN, key: str | None = None) -> Any:
        request = request or a_request()
        return self.submits.decide(actor, request, key=key, body=msgspec.json.encode(request))

    def job(self, job_id: str) -> Job:
        return jobs.job_get(self.context, ADMIN, job_id)

    def row(self, job_id: str) -> Any:
        with self.context.database.read() as tx:
            return job_store.job_get(tx, job_id)

    def kinds(self, job_id: str) -> list[str]:
        """What happened to a job, in a word each."""
        return [item.kind for item in jobs.job_events(self.context, ADMIN, job_id, after=0, limit=500).items]

    # --- writes

    def together(self, *writes: Any) -> list[Any]:
        """The results of writes that go into one batch: the committer is held until all of them wait."""
        held, let_go, done = threading.Event(), threading.Event(), threading.Semaphore(0)
        results: dict[int, Any] = {}

        def hold(_batch: Any) -> None:
            held.set()
            assert let_go.wait(WAIT_S)

        def note(index: int, result: Any) -> None:
            results[index] = result
            done.release()

        self.committer.put(BatchCall(hold), lambda _: None)
        assert held.wait(WAIT_S)
        for index, write in enumerate(writes):
            self.committer.put(write, lambda result, index=index: note(index, result))
        let_go.set()
        for _ in writes:
            assert done.acquire(timeout=WAIT_S)
        return [results[index] for index in range(len(writes))]

    def failure(self, write: Any) -> YardError:
        """The error that a write ends in."""
        try:
            self.committer.do(write)
        except YardError as exc:
            return exc
        raise AssertionError("it did not fail")


def _differences(tx: Tx) -> list[schema_check.Difference]:
    """What differs in the schema. It is compared once for each definition: that is a third of a start.

    On PostgreSQL once for each database: no test of the services changes the schema of the one that they all empty.
    """
    if tx.dialect.name == "sqlite":
        definition = frozenset(str(row) for row in tx.exec_driver_sql("SELECT sql FROM sqlite_schema"))
    else:
        definition = frozenset([str(tx.engine.url)])
    if definition not in _differences_of:
        _differences_of[definition] = _compare(tx)
    return _differences_of[definition]


@dataclass
class RigAgent:
    """An agent as the server knows it: what it says, it says now."""

    rig: Rig
    id: str
    cluster: str
    session: int = 0

    @property
    def cluster_id(self) -> str:
        return self.rig.context.snapshots.fleet.agents[self.id].cluster_id

    def seen(self) -> None:
        """It spoke; the server writes that down within seconds, here at once."""
        snapshots = self.rig.context.snapshots
        snapshots.mark_seen(self.id, self.rig.clock())
        snapshots.rebuild_world()

    def sync(self, *held: tuple[str, int]) -> LeaseAnswer:
        self.seen()
        given: LeaseAnswer = self.rig.committer.do(self.sync_ask(*held))
        self.session = given.session
        return given

    def sync_ask(self, *held: tuple[str, int]) -> SyncRequest:
        return SyncRequest(self.id, self.cluster, "i1", frozenset(held))

    def ask(self, want: int = 10, room: Room | None = None, cancelling: Iterable[tuple[str, int]] = ()) -> LeaseRequest:
        snapshots = self.rig.context.snapshots
        return LeaseRequest(
            self.id,
            self.cluster_id,
            self.cluster,
            self.session,
            want,
            room,
            frozenset(cancelling),
            snapshots.fleet.agents[self.id].backend,
            snapshots.world.by_id[self.cluster_id].backends,
            left_s=snapshots.agent_time_left_s(self.id),
        )

    def poll(self, want: int = 10, room: Room | None = None) -> LeaseAnswer:
        given: LeaseAnswer = self.rig.committer.do(self.ask(want, room))
        return given

    def lease(self, want: int = 10, room: Room | None = None) -> list[Lease]:
        return self.poll(want, room).leases

    def lease_one(self) -> AttemptRef:
        (lease,) = self.lease(1)
        return AttemptRef(lease.job, lease.fence)

    def write(self, *reports: Report, output: Iterable[OutputChunk] = ()) -> ReportWrite:
        return ReportWrite(self.id, reports, tuple(output))

    def report(self, held: AttemptRef, seen: ObservedState, **fields: Any) -> ReportAnswer:
        settled = self.rig.committer.do(self.write(Report(held.job, held.fence, seen, **fields)))
        (answer,) = settled.answers
        return answer


@contextmanager
def running(url: str, folder: Path, **fields: Any) -> Iterator[Rig]:
    rig = Rig(url, folder, **fields)
    try:
        yield rig
    finally:
        rig.close()
