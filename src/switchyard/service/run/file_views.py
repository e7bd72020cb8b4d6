"""Look at a file of an attempt while it runs: find the attempt and its agent, and pass answers between servers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.files.file_views import FileAnswer, FileAsk
from switchyard.model.job.job import JobSpec
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, CommitNotice
from switchyard.service.lifecycle.visibility import Visibility, visible_job
from switchyard.service.run.logs import select_attempt
from switchyard.store.files import file_outputs, file_views


@dataclass(frozen=True, slots=True)
class ViewTarget:
    """The attempt whose file is looked at. No agent: the attempt is not leased, or never was."""

    job: str
    state: str
    attempt: int
    fence: int
    is_over: bool
    agent: str | None
    cluster: str | None
    visibility: Visibility
    is_own: bool

    def text(self, text: str) -> str:
        """An agent's words, without the names of clusters that the reader may not know."""
        return self.visibility.text(text, is_own=self.is_own)


def find_target(context: Context, actor: Actor, ref: str, *, task: int | None, attempt: int | None) -> ViewTarget:
    """Find the attempt; by default the last one. The reader needs the same right as for the job's output."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        spec = msgspec.json.decode(row.spec, type=JobSpec) if row.spec else None
        if spec is not None and spec.files is None:
            raise BadRequest(
                f"Job {row.id} has no folder of its own, so its files cannot be looked at.",
                next_step="Submit it with --in, --out or --workdir; `yard logs` without --file shows what it prints.",
            )
        selected = select_attempt(tx, row, task, attempt)
        place = file_outputs.attempt_place(tx, row.id, selected.fence) if selected.fence is not None else None
    visibility = Visibility(context, actor)
    return ViewTarget(
        job=row.id,
        state=row.state,
        attempt=selected.number,
        fence=selected.fence or 0,
        is_over=selected.is_over,
        agent=place.agent_id if place is not None else None,
        cluster=place.cluster_id if place is not None else None,
        visibility=visibility,
        is_own=visibility.is_own(row),
    )


def silence_of(context: Context, target: ViewTarget) -> str:
    """Since when the agent has been silent; empty: it polls."""
    snapshots = context.snapshots
    if target.agent is None or snapshots.is_live(target.agent):
        return ""
    seen_us = snapshots.seen.get(target.agent, 0)
    if not seen_us:
        return f"The agent that runs job {target.job} is away; this server has not heard of it yet."
    since = datetime.fromtimestamp(seen_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    ago_s = max(0, snapshots.now_us() - seen_us) // 1_000_000
    return f"The agent that runs job {target.job} is away: silent since {since}, {ago_s} s ago."


def announce_ask(context: Context, ask: FileAsk) -> None:
    """Tell the other servers: the agent's poll may be parked at one of them."""
    notice = msgspec.json.encode(CommitNotice(file_asks=[ask])).decode()
    with context.database.read() as tx:
        file_views.view_announce(tx, notice)


def store_answer(context: Context, ask: FileAsk, answer: FileAnswer) -> None:
    """Keep an answer for the server where its reader is, and wake that one."""

    def apply(batch: Batch) -> None:
        file_views.view_put(batch.tx, ask.job, ask.fence, ask.id, msgspec.json.encode(answer))
        batch.jobs.add(ask.job)

    context.committer.call(apply)


def find_answer(context: Context, ask: FileAsk) -> FileAnswer | None:
    """The answer that an agent gave to another server."""
    with context.database.read() as tx:
        body = file_views.view_get(tx, ask.job, ask.fence, ask.id)
    return None if body is None else msgspec.json.decode(body, type=FileAnswer)


def remove_answer(context: Context, ask: FileAsk) -> None:
    context.committer.call(lambda batch: file_views.view_remove(batch.tx, ask.job, ask.fence, ask.id))
