"""Submit: admit, route, and one row. `decide` reads only snapshots; `apply_inserts` writes a whole batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from switchyard.errors import Denied, KeyReused, UnknownName
from switchyard.match.demand import demand_of
from switchyard.model.access import Role
from switchyard.model.api import Created
from switchyard.model.job import JobRequest, JobSpec, State
from switchyard.model.lifecycle import Life, assign, reject
from switchyard.model.quantity import parse_duration_s
from switchyard.model.verdict import Plan, Verdict
from switchyard.policy.admit import Admitted, admit
from switchyard.route.route import Ask, Ruling, plan, rule
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.credential import hash_secret, holds, split_credential
from switchyard.service.rights import Actor
from switchyard.service.snapshots import Snapshots
from switchyard.store import jobs
from switchyard.store.database import Tx

RULINGS_MAX = 4096  # one per shape and actor, kept for one version of the world
INTEGER_MAX = 2**63 - 1  # what the database's integers hold
KNOWN_MAX = 65_536  # hashes known to be stored; forgetting one costs an insert that does nothing

_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Kept:
    """A ruling with the stored form of its verdicts."""

    ruling: Ruling
    verdicts_hash: str
    verdicts_body: str


@dataclass(frozen=True, slots=True)
class JobInsert:
    """A job that waits for its commit."""

    row: dict[str, Any]
    spec_body: str
    kept: Kept
    created: Created
    key: str | None
    body_hash: str

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a submit; `is_new` is false when the idempotency key had been used for the same body."""

    created: Created
    is_new: bool


class Submit:
    """The use case, with what it remembers between requests: rulings by shape, hashes known to be stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rulings: dict[tuple[object, ...], Kept] = {}
        self._rulings_of: tuple[int, int] = (-1, -1)
        self._known: set[str] = set()

    def decide(self, actor: Actor, request: JobRequest, *, key: str | None, body: bytes) -> JobInsert:
        """Admit and route, from memory alone."""
        admitted = admit(request, self._context.snapshots.access.rules)
        actor.need_project(Role.SUBMIT, request.project)
        named, by_token = named_clusters(self._context.snapshots, actor, request)
        kept = self._rule(actor, request.spec, named, by_token)
        job_id = self._context.new_id()
        return self._insert(
            actor,
            admitted,
            kept=kept,
            decided=plan(kept.ruling, seed=job_id),
            bounds=encode_bounds(named, by_token),
            key=key,
            body=body,
        )

    def repeated(self, actor: Actor, *, key: str, body: bytes) -> Accepted | None:
        """The job that this key and body made before: it is accepted, even if it would be refused by now."""
        with self._context.database.read() as tx:
            held = jobs.key_get(tx, actor.name, key)
            answer = _answer_again(tx, held, key=key, body_hash=sha256(body).hexdigest(), here={}) if held else None
        if isinstance(answer, KeyReused):
            raise answer
        return answer

    def plan(self, actor: Actor, request: JobRequest) -> Plan:
        """Decide and show, store nothing."""
        admit(request, self._context.snapshots.access.rules)
        actor.need_project(Role.SUBMIT, request.project)
        named, by_token = named_clusters(self._context.snapshots, actor, request)
        return plan(self._rule(actor, request.spec, named, by_token).ruling, seed=self._context.new_id())

    def _rule(self, actor: Actor, spec: JobSpec, named: frozenset[str] | None, by_token: frozenset[str]) -> Kept:
        world, access = self._context.snapshots.world, self._context.snapshots.access
        if self._rulings_of != (world.version, access.version) or len(self._rulings) > RULINGS_MAX:
            self._rulings, self._rulings_of = {}, (world.version, access.version)
        demand = demand_of(spec.resources)
        key = (actor.name, demand, named, by_token)
        kept = self._rulings.get(key)
        if kept is None:
            ask = Ask(
                demand,
                granted=actor.granted_clusters(world) | by_token,
                hidden=actor.hidden_clusters(world) - by_token,
                named=named,
            )
            kept = keep(rule(ask, world))
            self._rulings[key] = kept
        return kept

    def _insert(
        self,
        actor: Actor,
        admitted: Admitted,
        *,
        kept: Kept,
        decided: Plan,
        bounds: str,
        key: str | None,
        body: bytes,
    ) -> JobInsert:
        request, now_us = admitted.request, self._context.now_us()
        spec_body = _SORTED.encode(request.spec).decode()
        life = life_after(decided)
        cluster = self._context.snapshots.world.by_name[decided.chosen] if decided.chosen else None
        demand = demand_of(request.spec.resources)
        row = {
            "id": decided.seed,
            "name": request.name or _name_of(request.spec.command[0]),
            "owner": actor.name,
            "project": request.project,
            "domain": request.domain,
            "lane": f"{admitted.queue}/{request.project}",
            "state": life.state.value,
            "reason": decided.reason,
            "priority": request.priority,
            "labels": _SORTED.encode(request.labels).decode(),
            "spec_hash": sha256(spec_body.encode()).hexdigest(),
            "bounds": bounds,
            "plan_hash": kept.verdicts_hash,
            # What no column holds, no cluster has: such a job is rejected, and still stored.
            "cores": min(demand.cores_total, INTEGER_MAX),
            "gpus": min(demand.gpus_total, INTEGER_MAX),
            "memory_bytes": min(demand.memory_bytes_total, INTEGER_MAX),
            "on_lost": request.spec.on_lost.value,
            "lost_after_s": None if request.spec.lost_after is None else parse_duration_s(request.spec.lost_after),
            "cluster_id": cluster.id if cluster else None,
            "agent_id": None,
            "attempt": life.attempt,
            "fence": life.fence,
            "native_id": None,
            "exit_code": None,
            "signal": None,
            "created_us": now_us,
            "assigned_us": now_us if cluster else None,
            "leased_us": None,
            "started_us": None,
            "ended_us": now_us if life.state is State.REJECTED else None,
            "cancel_us": None,
        }
        created = Created(decided.seed, life.state.value, decided.chosen, decided.reason)
        return JobInsert(row, spec_body, kept, created, key, sha256(body).hexdigest() if key else "")

    def apply_inserts(self, batch: Batch, writes: list[JobInsert]) -> list[Any]:
        """Put the specs, verdicts and keys of a batch, then its rows. A key already taken is that write's result."""
        self._put_shared(batch, writes)
        keyed = {id(write): write for write in writes if write.key is not None}
        earlier = self._claim(batch, list(keyed.values()))
        created = {write.row["id"]: write.created for write in writes}
        results: list[Any] = []
        for write in writes:
            held = earlier.get((write.row["owner"], write.key)) if write.key else None
            if held is not None and held.job_id != write.row["id"]:
                results.append(_answer_again(batch.tx, held, key=write.key, body_hash=write.body_hash, here=created))
                continue
            batch.inserts.append(dict(write.row))
            batch.jobs.add(write.row["id"])
            if write.row["cluster_id"]:
                batch.clusters.add(write.row["cluster_id"])
            results.append(Accepted(write.created, is_new=True))
        return results

    def _put_shared(self, batch: Batch, writes: list[JobInsert]) -> None:
        if batch.is_replay or len(self._known) > KNOWN_MAX:
            self._known = set()  # a row believed to be there was not: believe nothing
        specs = {write.row["spec_hash"]: write.spec_body for write in writes}
        verdicts = {write.kept.verdicts_hash: write.kept.verdicts_body for write in writes}
        jobs.spec_put(batch.tx, {key: body for key, body in specs.items() if key not in self._known})
        jobs.verdicts_put(batch.tx, {key: body for key, body in verdicts.items() if key not in self._known})
        batch.settled.append(lambda: self._known.update(specs, verdicts))  # only what is durable counts as known

    def _claim(self, batch: Batch, writes: list[JobInsert]) -> dict[tuple[str, str], jobs.Row]:
        if not writes:
            return {}
        return jobs.key_claim(
            batch.tx,
            [
                {
                    "owner": write.row["owner"],
                    "key": write.key,
                    "body_hash": write.body_hash,
                    "job_id": write.row["id"],
                    "created_us": batch.now_us,
                }
                for write in writes
            ],
        )


def _name_of(program: str) -> str:
    """A job that was given no name is called after its program; what would forge a line in a table is left out."""
    return "".join(char for char in program.rpartition("/")[2][:64] if char.isprintable()).strip() or "job"


def unwritten(write: JobInsert) -> Accepted:
    """What a submit would answer, with the commit left out: the benchmark's upper bound."""
    return Accepted(write.created, is_new=True)


def _answer_again(
    tx: Tx, held: jobs.Row, *, key: str | None, body_hash: str, here: dict[str, Created]
) -> Accepted | KeyReused:
    """What a submit gets whose key was used before; `here`: the jobs of this very batch, not inserted yet."""
    if held.body_hash != body_hash:
        return KeyReused(f"The idempotency key {key!r} belongs to job {held.job_id}, made from another body.")
    now = jobs.job_states(tx, [held.job_id]).get(held.job_id)
    created = here[held.job_id] if now is None else Created(now.id, now.state, now.cluster, now.reason)
    return Accepted(created, is_new=False)


def named_clusters(
    snapshots: Snapshots, actor: Actor, request: JobRequest
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The clusters a request bounds itself to, and those it holds a submit token for. Fails closed."""
    world = snapshots.world
    by_token: set[str] = set()
    for given in request.clusters:
        member = world.by_name.get(given.name)
        row = snapshots.fleet.rows.get(member.id) if member else None  # it may be deleted at this very moment
        kept = row.submit_token_hash if row else None
        parts = split_credential(given.token, "submit")
        secret = parts[1] if parts else given.token
        # Compare in any case, so that an unknown cluster takes as long as a known one.
        if not holds(secret, kept or hash_secret("")) or member is None or kept is None:
            raise Denied(
                f"The submit token for cluster {given.name} does not hold.",
                next_step="Correct or remove it under `clusters:` in your file: one that does not hold denies all.",
            )
        by_token.add(member.id)
    named = frozenset(by_token) if request.clusters else None
    if request.cluster is None:
        return named, frozenset(by_token)
    member = world.by_name.get(request.cluster)
    if member is None or not (member.id in by_token or actor.may_cluster(Role.VIEW, member)):
        known = ", ".join(m.name for m in world.members if actor.may_cluster(Role.VIEW, m)) or "none"
        raise UnknownName(f"There is no cluster {request.cluster!r}.", next_step=f"Known clusters: {known}.")
    if member.id not in by_token:
        actor.need_cluster(Role.SUBMIT, member)
    pin = frozenset({member.id})
    return (pin if named is None else named & pin), frozenset(by_token)


def life_after(decided: Plan) -> Life:
    """The life of a new job once the router has spoken."""
    born = Life(State.PENDING, attempt=0, fence=0, is_leased=False)
    if decided.outcome == "assign":
        return assign(born).life
    if decided.outcome == "reject":
        return reject(born, decided.reason).life
    return born


def keep(ruling: Ruling) -> Kept:
    body = msgspec.json.encode([*ruling.verdicts]).decode()
    return Kept(ruling, sha256(body.encode()).hexdigest(), body)


def verdicts_from(body: str) -> list[Verdict]:
    return msgspec.json.decode(body, type=list[Verdict])


class _Bounds(msgspec.Struct, omit_defaults=True):
    named: list[str] | None = None
    by_token: list[str] = []


def encode_bounds(named: frozenset[str] | None, by_token: frozenset[str]) -> str:
    bounds = _Bounds(None if named is None else sorted(named), sorted(by_token))
    return msgspec.json.encode(bounds).decode()


def decode_bounds(text: str) -> tuple[frozenset[str] | None, frozenset[str]]:
    bounds = msgspec.json.decode(text, type=_Bounds)
    return (None if bounds.named is None else frozenset(bounds.named)), frozenset(bounds.by_token)


__all__ = ["Accepted", "JobInsert", "Submit", "decode_bounds", "keep", "named_clusters"]
