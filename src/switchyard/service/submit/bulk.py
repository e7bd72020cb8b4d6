"""Submit many jobs in one request. Jobs of one shape are evaluated once, and few writes commit all jobs.

A request of up to `BULK_WHOLE_MAX` jobs is one write. Requests without `each` or with references are never larger. A
larger one is split into pieces, each a write of its own, so writes of other users go between them (`BulkPieces`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from switchyard.errors import BadRequest, KeyReused, Malformed, TooLarge, YardError
from switchyard.model.job.job import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX, JobRequest
from switchyard.model.wire.api import BULK_WHOLE_MAX, BulkAnswer, BulkItem, BulkRequest, CreatedJob, Problem
from switchyard.model.wire.decode import JsonReader, refuse_many_values
from switchyard.model.wire.ids import make_id, read_id
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.clock import IdGenerator
from switchyard.service.submit.job_files import refused_inserts
from switchyard.service.submit.new_job import JobInsert, insert_job
from switchyard.service.submit.submit import Submit
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import IdempotencyClaim

ERRORS_SHOWN_MAX = 20  # errors listed in one refusal
VALUES_CHECKED_FROM_BYTES = 16 * 1024  # size of one job; a smaller job cannot have too many values
SELECTIONS_MAX = 200  # distinct selections in one request

_reader = JsonReader(JobRequest)
PIECE_JOBS = 2_000  # jobs in one transaction, which takes some tenths of a second
LARGE_FROM_JOBS = 100  # writes of more jobs wait in the committer's queue of large writes
KEY_SEPARATOR = "\x1f"  # idempotency keys of users never contain this character


@dataclass(frozen=True, slots=True)
class BulkInsert:
    """All jobs of one request: the jobs to insert, and the errors of refused jobs."""

    writes: tuple[JobInsert, ...]
    refused: dict[int, YardError]  # by position in the request
    first_id: str
    is_partial_ok: bool  # insert the valid jobs even if others are refused (`each` in the request)
    key: str | None
    body_hash: str
    owner: str  # user id

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class AcceptedBulk:
    answer: BulkAnswer
    is_new: bool


class BulkSubmit:
    """Decide and insert the jobs of bulk requests, with the functions of a single submit."""

    def __init__(self, submit: Submit, ids: IdGenerator) -> None:
        self._submit = submit
        self._ids = ids

    def decide(self, actor: Actor, request: BulkRequest, *, key: str | None, body: bytes) -> BulkInsert:
        """Decode and route every job. Without `each`, one refused job refuses the whole request."""
        if not request.each:
            _refuse_too_many(len(request.jobs), "made all or none")
        ids = self._ids.many(len(request.jobs))
        writes: list[JobInsert] = []
        refused: dict[int, YardError] = {}
        parsed: dict[int, JobRequest] = {}
        for position, raw in enumerate(request.jobs):
            try:
                parsed[position] = _read(bytes(raw))
            except YardError as exc:
                refused[position] = _without_traceback(exc)
        if any(text.startswith("#") for job in parsed.values() for text in job.after):
            _refuse_too_many(len(request.jobs), "accepted when one of them waits for another (`#3`)")
        refused |= _bad_references(parsed, len(request.jobs))
        refused |= _dependents_of_refused(parsed, refused)
        self._refuse_many_selections(parsed.values())
        until_us = self._submit.bulk_until_us()
        for position, job in parsed.items():
            if position in refused:
                continue
            after = [_resolve_reference(text, ids) for text in job.after]
            try:
                prepared = self._submit.prepare(actor, job, until_us=until_us)
                write = self._submit.decide(
                    actor,
                    msgspec.structs.replace(prepared, after=after) if after else prepared,
                    key=None,
                    body=b"",
                    job_id=ids[position],
                    is_one_of_many=True,
                )
                writes.append(write)
            except YardError as exc:
                refused[position] = _without_traceback(exc)
        self._submit.count_refused(refused.values())
        if refused and not request.each:
            raise _refusal(refused, len(request.jobs))
        self._submit.refuse_many(actor, writes, key=key)
        body_hash = sha256(body).hexdigest() if key else ""
        return BulkInsert(
            tuple(writes),
            refused,
            first_id=ids[0],
            is_partial_ok=request.each,
            key=key,
            body_hash=body_hash,
            owner=actor.id,
        )

    def _refuse_many_selections(self, requests: Iterable[JobRequest]) -> None:
        """Refuse too many distinct selections: evaluating one may take up to a second."""
        is_quick = self._submit.is_quick
        distinct = {msgspec.json.encode((job.select, job.parameters)) for job in requests if not is_quick(job)}
        if len(distinct) > SELECTIONS_MAX:
            raise BadRequest(
                f"The jobs have {len(distinct)} different selections and parameters; the limit is {SELECTIONS_MAX}.",
                next_step="Send the jobs in several requests.",
            )

    def apply(self, batch: Batch, bulks: list[BulkInsert]) -> list[Any]:
        return [self._apply(batch, bulk) for bulk in bulks]

    def _apply(self, batch: Batch, bulk: BulkInsert) -> Any:
        missing = refused_inserts(batch, self._submit.file_limits, list(bulk.writes))
        if missing and not bulk.is_partial_ok:
            return next(iter(missing.values()))
        if bulk.key is not None and (earlier := self._earlier_answer(batch, bulk, bulk.key)) is not None:
            return earlier
        self._submit.put_shared(batch, list(bulk.writes))
        refused = dict(bulk.refused)
        created: dict[str, CreatedJob] = {}
        positions = {write.row.id: position for position, write in writes_with_positions(bulk)}
        for write in bulk.writes:
            if id(write) in missing:
                refused[positions[write.row.id]] = missing[id(write)]
                continue
            insert_job(batch, write)
            created[write.row.id] = write.created
        self._submit.settle(batch, [write for write in bulk.writes if write.row.id in created])
        return AcceptedBulk(_answer(bulk, created, refused), is_new=True)

    def _earlier_answer(self, batch: Batch, bulk: BulkInsert, key: str) -> Any:
        """Claim the idempotency key. Return the answer that an earlier request with this key got, else none."""
        total = len(bulk.writes) + len(bulk.refused)
        row = IdempotencyClaim(
            bulk.owner, key, body_hash=bulk.body_hash, job_id=f"{bulk.first_id}+{total}", created_us=batch.now_us
        )
        claim = next(iter(jobs.idempotency_claim(batch.tx, [row]).values()))
        if claim.job_id == row.job_id:
            return None
        if claim.body_hash != bulk.body_hash:
            return KeyReused(f"The idempotency key {key!r} was used for another request.")
        first, _, count = claim.job_id.partition("+")
        ids = consecutive_ids(first, int(count or 1))
        states = jobs.job_states(batch.tx, ids)
        items = [
            BulkItem(job=CreatedJob(job.id, job.state, job.cluster, job.reason))
            if (job := states.get(job_id)) is not None
            else BulkItem(problem=_problem(bulk.refused.get(position) or BadRequest("It was refused the first time.")))
            for position, job_id in enumerate(ids)
        ]
        made = sum(item.job is not None for item in items)
        return AcceptedBulk(BulkAnswer(items, made=made, refused=len(items) - made), is_new=False)


def _read(body: bytes) -> JobRequest:
    """Decode one job, within the size limits of a single submit."""
    if len(body) > VALUES_CHECKED_FROM_BYTES:
        if len(body) > REQUEST_BYTES_MAX:
            raise TooLarge(f"The job has {len(body)} bytes; the most is {REQUEST_BYTES_MAX}.")
        refuse_many_values(body, REQUEST_VALUES_MAX)
    request: JobRequest = _reader.read(body)
    return request


def _refuse_too_many(count: int, condition: str) -> None:
    """Refuse too many jobs for one transaction: the writes of all users wait until it ends."""
    if count > BULK_WHOLE_MAX:
        raise TooLarge(
            f"The request has {count} jobs, and at most {BULK_WHOLE_MAX} are {condition}.",
            next_step="Send several requests. Jobs that wait for no other may be sent with `each: true`.",
        )


def _without_traceback(error: YardError) -> YardError:
    """Drop the traceback. 100,000 errors would keep a million frames, and freeing them together takes long."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def writes_with_positions(bulk: BulkInsert) -> list[tuple[int, JobInsert]]:
    ids = consecutive_ids(bulk.first_id, len(bulk.writes) + len(bulk.refused))
    positions = {job_id: position for position, job_id in enumerate(ids)}
    return [(positions[write.row.id], write) for write in bulk.writes]


def _answer(bulk: BulkInsert, created: dict[str, CreatedJob], refused: dict[int, YardError]) -> BulkAnswer:
    items = {
        position: BulkItem(job=created[write.row.id])
        for position, write in writes_with_positions(bulk)
        if write.row.id in created
    }
    items |= {position: BulkItem(problem=_problem(error)) for position, error in refused.items()}
    return BulkAnswer([items[position] for position in sorted(items)], made=len(created), refused=len(refused))


def consecutive_ids(first: str, count: int) -> list[str]:
    at_us, entropy = read_id(first)
    return [make_id(at_us, entropy + offset) for offset in range(count)]


def id_at(first: str, position: int) -> str:
    """Return the id at a position among the consecutive ids that begin with `first`."""
    at_us, entropy = read_id(first)
    return make_id(at_us, entropy + position)


def _resolve_reference(text: str, ids: list[str]) -> str:
    """Replace a reference such as `#3:ok` by the id of the fourth job of this request."""
    reference, colon, condition = text.partition(":")
    return f"{ids[int(reference[1:])]}{colon}{condition}" if reference.startswith("#") else text


def _bad_references(parsed: dict[int, JobRequest], count: int) -> dict[int, YardError]:
    """Return an error for each job that waits for an unknown position, for itself, or in a cycle."""
    edges = {
        position: [int(text.partition(":")[0][1:]) for text in job.after if text.startswith("#")]
        for position, job in parsed.items()
    }
    refused: dict[int, YardError] = {}
    for position, targets in edges.items():
        if any(target >= count for target in targets):
            refused[position] = BadRequest(f"It waits for #{max(targets)}, and the request has {count} jobs.")
        elif position in targets:
            refused[position] = BadRequest("It waits for itself.")
    for position in _in_cycle(edges, set(refused)):
        refused[position] = BadRequest("It waits for itself, round through others of the request.")
    return refused


def _dependents_of_refused(parsed: dict[int, JobRequest], refused: dict[int, YardError]) -> dict[int, YardError]:
    """Refuse the direct and indirect dependents of refused jobs: they would wait forever."""
    refusals: dict[int, YardError] = {}
    while True:
        known = refused | refusals
        references = {f"#{position}" for position in known}
        dependents = [
            position
            for position, job in parsed.items()
            if position not in known and any(text.partition(":")[0] in references for text in job.after)
        ]
        if not dependents:
            return refusals
        refusals |= {
            position: BadRequest("It waits for a job of this request that is refused.") for position in dependents
        }


def _in_cycle(edges: dict[int, list[int]], refused: set[int]) -> set[int]:
    """Return the jobs in or behind a cycle: a topological sort (Kahn's algorithm) never reaches them."""
    waits = {position: {target for target in targets if target not in refused} for position, targets in edges.items()}
    ready = [position for position, targets in waits.items() if not targets]
    dependents: dict[int, list[int]] = {}
    for position, targets in waits.items():
        for target in targets:
            dependents.setdefault(target, []).append(position)
    while ready:
        position = ready.pop()
        waits.pop(position, None)
        for dependent in dependents.get(position, []):
            if dependent in waits:
                waits[dependent].discard(position)
                if not waits[dependent]:
                    ready.append(dependent)
    return set(waits) - refused


def _refusal(refused: dict[int, YardError], count: int) -> YardError:
    shown = [f"jobs[{position}]: {refused[position].detail}" for position in sorted(refused)[:ERRORS_SHOWN_MAX]]
    more = f"\n… and {len(refused) - ERRORS_SHOWN_MAX} more" if len(refused) > ERRORS_SHOWN_MAX else ""
    first = refused[min(refused)]
    kinds = {type(error) for error in refused.values()}
    kind = type(first) if len(kinds) == 1 else Malformed if Malformed in kinds else BadRequest
    return kind(
        f"{len(refused)} of {count} jobs are refused, so none was made:\n" + "\n".join(shown) + more,
        next_step="Correct these jobs, or send the request with `each: true` to make the others.",
    )


def _problem(error: YardError) -> Problem:
    return Problem(
        f"urn:switchyard:error:{error.code}", error.title, error.status, error.code, error.detail, error.next_step
    )


class BulkPieces:
    """Hands out the pieces of one request in order. The answer to a piece decides where the next piece begins.

    Each piece has its own idempotency key: the request's key and the position of the piece's first job. If the server
    stops between two pieces and the client sends the request again, only the missing pieces are inserted.

    Call the constructor on a thread: its time grows with the request. `next` takes the same time for every piece.
    """

    def __init__(self, bulk: BulkInsert) -> None:
        self._bulk = bulk
        self.total = len(bulk.writes) + len(bulk.refused)
        self._writes = writes_with_positions(bulk) if self.total > BULK_WHOLE_MAX else []
        self._positions = [position for position, _ in self._writes]
        self._refused = sorted(bulk.refused)
        self._items: list[BulkItem] = []
        self._is_new = False

    @property
    def done(self) -> int:
        """Return the number of jobs whose result is known."""
        return len(self._items)

    def next(self) -> BulkInsert:
        bulk, start = self._bulk, self.done
        if self.total <= BULK_WHOLE_MAX:
            return bulk
        end = start + PIECE_JOBS
        writes = self._writes[bisect_left(self._positions, start) : bisect_left(self._positions, end)]
        refused = self._refused[bisect_left(self._refused, start) : bisect_left(self._refused, end)]
        return BulkInsert(
            tuple(write for _, write in writes),
            {position - start: bulk.refused[position] for position in refused},
            first_id=id_at(bulk.first_id, start),
            is_partial_ok=bulk.is_partial_ok,
            key=f"{bulk.key}{KEY_SEPARATOR}{start}" if bulk.key is not None and start else bulk.key,
            body_hash=bulk.body_hash,
            owner=bulk.owner,
        )

    def take(self, accepted: AcceptedBulk) -> None:
        """Add the answer to a piece. In a repeated request, it has as many jobs as the first time."""
        self._items += accepted.answer.items
        self._is_new |= accepted.is_new

    def result(self) -> AcceptedBulk:
        made = sum(item.job is not None for item in self._items)
        return AcceptedBulk(BulkAnswer(self._items, made=made, refused=len(self._items) - made), self._is_new)

    def failure(self, error: YardError) -> YardError:
        """Return the error of a piece, with the number of jobs that earlier pieces stored."""
        if not self.done:
            return error
        detail = f"The first {self.done} of {self.total} jobs were stored; the others perhaps not. {error.detail}"
        next_step = "Send the request again with the same Idempotency-Key: stored jobs are not made twice."
        return type(error)(detail, next_step=next_step)
