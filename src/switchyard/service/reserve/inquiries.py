"""Ask clusters for quotes.

An open inquiry is one row per shape and cluster. An answer deletes the row; the quote is stored until it expires.
A job is due when its last inquiry is answered, or at its deadline (quote_decisions.py). The deadline is stored, so it
holds even if servers or agents fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.alternatives import spec_with_set
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.reserve.quotes import shape_of
from switchyard.store.clusters import quotes as store
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow

OPEN_INQUIRIES_MAX = 256  # per cluster; further inquiries are not sent and count as unanswered (`_OpenInquiries`)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to clusters about one shape. `body` is the spec that represents the shape."""

    shape: str
    body: str
    cluster_ids: tuple[str, ...]
    owner: str  # id of the user who asks


def inquiry_of(spec: JobSpec, names: Iterable[str], world: World, *, owner: str) -> Inquiry:
    shape, body = shape_of(spec)
    cluster_ids = tuple(sorted(world.by_name[name].id for name in names if name in world.by_name))
    return Inquiry(shape, body, cluster_ids, owner)


def further_inquiries(
    spec: JobSpec, eligibility: Eligibility, names: Collection[str], world: World, *, owner: str
) -> tuple[Inquiry, ...]:
    """Return the questions about the further sets that fit each cluster: `inquiry_of` asks it about the first one.

    No job waits for these answers. They come before the first one's, which agents are asked for last.
    """
    if eligibility.sets is None:
        return ()
    by_number: dict[int, list[str]] = {}
    for name in names:
        for number in eligibility.sets.fitting.get(name, ())[1:]:
            by_number.setdefault(number, []).append(name)
    return tuple(
        inquiry_of(spec_with_set(spec, number), by_number[number], world, owner=owner) for number in sorted(by_number)
    )


class _OpenInquiries:
    """The open inquiries of clusters. A user may open one more while fewer of theirs are open than places are free.

    So one user gets at most half of a cluster's places, two users a third each, and a newcomer always finds some.
    """

    def __init__(self, counts: Mapping[tuple[str, str], int]) -> None:
        self._by_user = Counter(counts)
        self._by_cluster: Counter[str] = Counter()
        for (cluster_id, _), count in counts.items():
            self._by_cluster[cluster_id] += count

    def take(self, cluster_id: str, owner: str) -> bool:
        """Take a place for one more inquiry. Returns false if the user has had their part."""
        if self._by_user[cluster_id, owner] >= OPEN_INQUIRIES_MAX - self._by_cluster[cluster_id]:
            return False
        self._by_user[cluster_id, owner] += 1
        self._by_cluster[cluster_id] += 1
        return True


@dataclass(frozen=True, slots=True)
class JobInquiry:
    """An inquiry and the job that waits for its answers. `further`: questions that it does not wait for."""

    job_id: str
    inquiry: Inquiry
    further: tuple[Inquiry, ...] = ()


def ask_clusters(batch: Batch, inquiries: Collection[Inquiry], *, wait_us: int) -> None:
    """Open the inquiries at their clusters. The commit wakes the parked polls of their agents.

    The number of statements does not depend on the number of inquiries. A user may submit thousands of jobs of
    different shapes, and other writes wait for this transaction.
    """
    cluster_ids = {cluster_id for inquiry in inquiries for cluster_id in inquiry.cluster_ids}
    if not cluster_ids:
        return
    places = _OpenInquiries(store.ask_counts(batch.tx, sorted(cluster_ids), now_us=batch.now_us))
    deadline_us = batch.now_us + wait_us
    bodies: dict[str, str] = {}
    asks: dict[tuple[str, str], store.AskRow] = {}
    for inquiry in inquiries:
        for cluster_id in inquiry.cluster_ids:
            key = (inquiry.shape, cluster_id)
            if key not in asks and places.take(cluster_id, inquiry.owner):
                bodies[inquiry.shape] = inquiry.body
                asks[key] = store.AskRow(
                    shape=inquiry.shape,
                    cluster_id=cluster_id,
                    asked_us=batch.now_us,
                    deadline_us=deadline_us,
                    refused="",
                    owner=inquiry.owner,
                )
    jobs.spec_put(batch.tx, bodies, at_us=batch.now_us)
    store.ask_put(batch.tx, list(asks.values()))
    batch.clusters.update(cluster_id for _, cluster_id in asks)
    batch.topics.add(Topic.QUOTES)


def ask_for_jobs(batch: Batch, waiting: Collection[JobInquiry], *, wait_us: int) -> None:
    """Ask for the quotes of these jobs. A job is due when all clusters have answered, or at its deadline."""
    ask_clusters(batch, [asked for job in waiting for asked in (job.inquiry, *job.further)], wait_us=wait_us)
    store.wait_put(
        batch.tx,
        [
            store.QuoteWaitRow(
                job_id=job.job_id,
                shape=job.inquiry.shape,
                asked=",".join(job.inquiry.cluster_ids),
                asked_us=batch.now_us,
                deadline_us=batch.now_us + wait_us,
                due_us=batch.now_us + wait_us,
            )
            for job in waiting
        ],
    )


def ask_for_pending(
    batch: Batch, eligibilities: Collection[tuple[JobRow, Eligibility]], world: World, *, wait_us: int
) -> None:
    """Ask for the quotes that the router needs to decide these PENDING jobs."""
    if not eligibilities:
        return
    bodies = jobs.spec_get_many(batch.tx, {row.spec_hash for row, _ in eligibilities})
    specs = {key: msgspec.json.decode(body, type=JobSpec) for key, body in bodies.items()}
    waiting = []
    for row, eligibility in eligibilities:
        spec, asks, owner = specs[row.spec_hash], eligibility.asks, row.owner_id or row.owner
        inquiry = inquiry_of(spec, asks, world, owner=owner)
        waiting.append(JobInquiry(row.id, inquiry, further_inquiries(spec, eligibility, asks, world, owner=owner)))
    ask_for_jobs(batch, waiting, wait_us=wait_us)
