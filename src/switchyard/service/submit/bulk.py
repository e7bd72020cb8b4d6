"""Many jobs in one request: decoded and routed off the loop, ruled once per shape, committed in few writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from switchyard.errors import BadRequest, KeyReused, Malformed, TooLarge, YardError
from switchyard.model.api import BULK_WHOLE_MAX, BulkAnswer, BulkItem, BulkRequest, CreatedJob, Problem
from switchyard.model.decode import JsonReader, refuse_many_values
from switchyard.model.ids import make_id, read_id
from switchyard.model.job import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX, JobRequest
from switchyard.service.clock import IdGenerator
from switchyard.service.committer import Batch
from switchyard.service.rights import Actor
from switchyard.service.submit.new_job import JobInsert, insert_job, unknown_dependencies
from switchyard.service.submit.submit import Submit
from switchyard.store import jobs

MISTAKES_SHOWN_MAX = 20  # mistakes named in one refusal
VALUES_CHECKED_FROM_BYTES = 16 * 1024  # of a job; a smaller one cannot have too many values
SELECTIONS_MAX = 200  # different ones in one request

_reader = JsonReader(JobRequest)


@dataclass(frozen=True, slots=True)
class BulkInsert:
    """All jobs of one request, with those already refused."""

    writes: tuple[JobInsert, ...]
    refused: dict[int, YardError]  # by place in the request
    first_id: str
    each: bool
    key: str | None
    body_hash: str
    owner: str  # by id

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class AcceptedBulk:
    answer: BulkAnswer
    is_new: bool


class BulkSubmit:
    """The use case, on top of the single submit."""

    def __init__(self, submit: Submit, ids: IdGenerator) -> None:
        self._submit = submit
        self._ids = ids

    def decide(self, actor: Actor, request: BulkRequest, *, key: str | None, body: bytes) -> BulkInsert:
        """Decode and decide every job. All or none: the first mistakes refuse the request."""
        if not request.each:
            _refuse_too_many(len(request.jobs), "made all or none")
        ids = self._ids.many(len(request.jobs))
        writes: list[JobInsert] = []
        refused: dict[int, YardError] = {}
        parsed: dict[int, JobRequest] = {}
        for place, raw in enumerate(request.jobs):
            try:
                parsed[place] = _read(bytes(raw))
            except YardError as exc:
                refused[place] = _without_traceback(exc)
        if any(text.startswith("#") for job in parsed.values() for text in job.after):
            _refuse_too_many(len(request.jobs), "in a request where one waits for another (`#3`)")
        refused |= _bad_references(parsed, len(request.jobs))
        refused |= _dependents_of_refused(parsed, refused)
        self._refuse_many_selections(parsed.values())
        for place, job in parsed.items():
            if place in refused:
                continue
            named = [_resolve_reference(text, ids) for text in job.after]
            try:
                decided = self._submit.decide(
                    actor,
                    msgspec.structs.replace(job, after=named) if named else job,
                    key=None,
                    body=b"",
                    job_id=ids[place],
                    is_one_of_many=True,
                )
                writes.append(decided)
            except YardError as exc:
                refused[place] = _without_traceback(exc)
        self._submit.count_refused(refused.values())
        if refused and not request.each:
            raise _refusal(refused, len(request.jobs))
        self._submit.refuse_many(actor, writes, key=key)
        return BulkInsert(
            tuple(writes),
            refused,
            ids[0],
            request.each,
            key,
            sha256(body).hexdigest() if key else "",
            actor.id,
        )

    def _refuse_many_selections(self, several: Iterable[JobRequest]) -> None:
        """Each has to be read and followed by itself, and one may take up to a second."""
        is_quick = self._submit.is_quick
        different = {msgspec.json.encode((job.select, job.parameters)) for job in several if not is_quick(job)}
        if len(different) > SELECTIONS_MAX:
            raise BadRequest(
                f"The jobs have {len(different)} different selections and parameters, and at most {SELECTIONS_MAX} go.",
                next_step="Send them in several requests.",
            )

    def apply(self, batch: Batch, bulks: list[BulkInsert]) -> list[Any]:
        return [self._apply(batch, bulk) for bulk in bulks]

    def _apply(self, batch: Batch, bulk: BulkInsert) -> Any:
        missing = unknown_dependencies(batch, list(bulk.writes))
        if missing and not bulk.each:
            return next(iter(missing.values()))
        if bulk.key is not None and (held := self._held(batch, bulk)) is not None:
            return held
        self._submit.put_shared(batch, list(bulk.writes))
        refused = dict(bulk.refused)
        made: dict[str, CreatedJob] = {}
        places = {write.row["id"]: place for place, write in writes_with_positions(bulk)}
        for write in bulk.writes:
            if id(write) in missing:
                refused[places[write.row["id"]]] = missing[id(write)]
                continue
            insert_job(batch, write)
            made[write.row["id"]] = write.created
        self._submit.settle(batch, [write for write in bulk.writes if write.row["id"] in made])
        return AcceptedBulk(_answer(bulk, made, refused), is_new=True)

    def _held(self, batch: Batch, bulk: BulkInsert) -> Any:
        """The answer an earlier request with this key got, if there was one."""
        total = len(bulk.writes) + len(bulk.refused)
        row = {
            "owner": bulk.owner,
            "key": bulk.key,
            "body_hash": bulk.body_hash,
            "job_id": f"{bulk.first_id}+{total}",
            "created_us": batch.now_us,
        }
        held = next(iter(jobs.idempotency_claim(batch.tx, [row]).values()))
        if held.job_id == row["job_id"]:
            return None
        if held.body_hash != bulk.body_hash:
            return KeyReused(f"The idempotency key {bulk.key!r} was used for another request.")
        first, _, count = held.job_id.partition("+")
        ids = consecutive_ids(first, int(count or 1))
        found = jobs.job_states(batch.tx, ids)
        items = [
            BulkItem(job=CreatedJob(one.id, one.state, one.cluster, one.reason))
            if (one := found.get(job_id)) is not None
            else BulkItem(problem=_problem(bulk.refused.get(place) or BadRequest("It was refused the first time.")))
            for place, job_id in enumerate(ids)
        ]
        made = sum(item.job is not None for item in items)
        return AcceptedBulk(BulkAnswer(items, made=made, refused=len(items) - made), is_new=False)


def _read(body: bytes) -> JobRequest:
    """One job of many has the bounds of a job that comes alone."""
    if len(body) > VALUES_CHECKED_FROM_BYTES:
        if len(body) > REQUEST_BYTES_MAX:
            raise TooLarge(f"The job has {len(body)} bytes; the most is {REQUEST_BYTES_MAX}.")
        refuse_many_values(body, REQUEST_VALUES_MAX)
    request: JobRequest = _reader.read(body)
    return request


def _refuse_too_many(count: int, what: str) -> None:
    """All jobs that depend on each other are one transaction, and everybody's writes wait for its end."""
    if count > BULK_WHOLE_MAX:
        raise TooLarge(
            f"The request has {count} jobs, and at most {BULK_WHOLE_MAX} are {what}.",
            next_step="Send them in several requests, or jobs that wait for no other with `each: true`.",
        )


def _without_traceback(error: YardError) -> YardError:
    """Without its frames: of 100,000 refusals they would be a million objects, that are freed all at once."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def bulk_answer_without_commit(bulk: BulkInsert) -> AcceptedBulk:
    """What a bulk request would answer, with the commit left out: the benchmark's upper bound."""
    made = {write.row["id"]: write.created for write in bulk.writes}
    return AcceptedBulk(_answer(bulk, made, bulk.refused), is_new=True)


def writes_with_positions(bulk: BulkInsert) -> list[tuple[int, JobInsert]]:
    ids = consecutive_ids(bulk.first_id, len(bulk.writes) + len(bulk.refused))
    place = {job_id: number for number, job_id in enumerate(ids)}
    return [(place[write.row["id"]], write) for write in bulk.writes]


def _answer(bulk: BulkInsert, made: dict[str, CreatedJob], refused: dict[int, YardError]) -> BulkAnswer:
    by_place = {
        place: BulkItem(job=made[write.row["id"]])
        for place, write in writes_with_positions(bulk)
        if write.row["id"] in made
    }
    by_place |= {place: BulkItem(problem=_problem(error)) for place, error in refused.items()}
    return BulkAnswer([by_place[place] for place in sorted(by_place)], made=len(made), refused=len(refused))


def consecutive_ids(first: str, count: int) -> list[str]:
    at_us, entropy = read_id(first)
    return [make_id(at_us, entropy + number) for number in range(count)]


def id_at(first: str, place: int) -> str:
    """The id at this place among the consecutive ids that begin with `first`."""
    at_us, entropy = read_id(first)
    return make_id(at_us, entropy + place)


def _resolve_reference(text: str, ids: list[str]) -> str:
    """`#3:ok` → the id of the fourth job of this request."""
    reference, colon, condition = text.partition(":")
    return f"{ids[int(reference[1:])]}{colon}{condition}" if reference.startswith("#") else text


def _bad_references(parsed: dict[int, JobRequest], count: int) -> dict[int, YardError]:
    """References within the request that lead nowhere, to oneself, or round in a ring."""
    edges = {
        place: [int(text.partition(":")[0][1:]) for text in job.after if text.startswith("#")]
        for place, job in parsed.items()
    }
    refused: dict[int, YardError] = {}
    for place, targets in edges.items():
        if any(target >= count for target in targets):
            refused[place] = BadRequest(f"It waits for #{max(targets)}, and the request has {count} jobs.")
        elif place in targets:
            refused[place] = BadRequest("It waits for itself.")
    for place in _in_cycle(edges, set(refused)):
        refused[place] = BadRequest("It waits for itself, round through others of the request.")
    return refused


def _dependents_of_refused(parsed: dict[int, JobRequest], refused: dict[int, YardError]) -> dict[int, YardError]:
    """Jobs that wait for a refused one of the same request would wait for ever: they are refused too, in turn."""
    found: dict[int, YardError] = {}
    while True:
        gone = {f"#{place}" for place in (*refused, *found)}
        more = [
            place
            for place, job in parsed.items()
            if place not in refused and place not in found and any(text.partition(":")[0] in gone for text in job.after)
        ]
        if not more:
            return found
        found |= {place: BadRequest("It waits for a job of this request that is refused.") for place in more}


def _in_cycle(edges: dict[int, list[int]], known: set[int]) -> set[int]:
    """What is left when all that can be begun has been taken away, again and again."""
    left = {place: {target for target in targets if target not in known} for place, targets in edges.items()}
    ready = [place for place, targets in left.items() if not targets]
    waiters: dict[int, list[int]] = {}
    for place, targets in left.items():
        for target in targets:
            waiters.setdefault(target, []).append(place)
    while ready:
        place = ready.pop()
        left.pop(place, None)
        for waiter in waiters.get(place, []):
            if waiter in left:
                left[waiter].discard(place)
                if not left[waiter]:
                    ready.append(waiter)
    return set(left) - known


def _refusal(refused: dict[int, YardError], count: int) -> YardError:
    shown = [f"jobs[{place}]: {refused[place].detail}" for place in sorted(refused)[:MISTAKES_SHOWN_MAX]]
    more = f"\n… and {len(refused) - MISTAKES_SHOWN_MAX} more" if len(refused) > MISTAKES_SHOWN_MAX else ""
    first = refused[min(refused)]
    kinds = {type(error) for error in refused.values()}
    kind = type(first) if len(kinds) == 1 else Malformed if Malformed in kinds else BadRequest
    return kind(
        f"{len(refused)} of {count} jobs are refused, so none was made:\n" + "\n".join(shown) + more,
        next_step="Correct them, or send the request with `each: true` to make the others.",
    )


def _problem(error: YardError) -> Problem:
    return Problem(
        f"urn:switchyard:error:{error.code}", error.title, error.status, error.code, error.detail, error.next_step
    )
