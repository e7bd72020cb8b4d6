"""Start the jobs of nodes: plan each before a transaction, and insert it with its files in the transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Internal, YardError
from switchyard.features.flyte.service.executions.calls.data_places import with_data_place
from switchyard.features.flyte.service.executions.driving.checkpoints import NO_ATTEMPT, previous_attempt
from switchyard.features.flyte.service.executions.nodes.node_jobs import (
    NodeTree,
    inputs_body,
    job_request,
    make_tree,
    node_labels,
    read_spec,
    record_trees,
)
from switchyard.features.flyte.service.executions.nodes.node_rows import attempt_row
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_state import TaskStart
from switchyard.features.flyte.workflow.tasks.pod_task import container_of
from switchyard.model.job.bounds import RetryBounds
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.upload_addresses import user_limit_refusal
from switchyard.service.submit.new_job import AcceptedJob, JobInsert
from switchyard.service.submit.submit import Submit
from switchyard.store.files import file_objects


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to insert with the files that it brings along. `began_us`: a time before these are stored."""

    start: TaskStart
    write: JobInsert
    tree: NodeTree
    began_us: int


class StartRefused(YardError):
    """A job of a step could not be inserted. One of our errors, so that the committer undoes this step alone."""

    def __init__(self, start: TaskStart, error: YardError) -> None:
        super().__init__(error.detail)
        self.start, self.error = start, error


class StartsRefused(YardError):
    """Some jobs or children of a step could not be inserted: all of them are in `refusals`, and the step is undone."""

    def __init__(self, refusals: Sequence[StartRefused]) -> None:
        super().__init__(refusals[0].detail)
        self.refusals = tuple(refusals)


class JobStarter:
    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def plan(
        self,
        context: Context,
        row: ExecutionRow,
        start: TaskStart,
        template: Any,
        *,
        array: str | None = None,
        is_counted: bool = False,
    ) -> PlannedJob:
        """Decide a job and make its files. Raises StartRefused. `store_files` has to follow before the insert.

        `array`: the indexes of its tasks. `is_counted`: the caller has compared the user's jobs with the limits.
        """
        actor = owner_of(context.snapshots.access, row.owner_id, row.owner)
        try:
            previous = NO_ATTEMPT if array is not None else previous_attempt(context, row, start, template)
            tree, bundles = make_tree(context, inputs_body(start), container_of(template), previous)
            home = context.snapshots.world.by_name.get(row.cluster)
            request = job_request(
                row,
                with_data_place(read_spec(row), template, home),
                start,
                template,
                bundles=bundles,
                tree=tree.root.hex(),
                array=array,
                previous=previous,
            )
            bounds = RetryBounds(None, (), home.id) if home is not None and not request.cluster else None
            write = self._submit.decide(
                actor,
                request,
                key=None,
                body=b"",
                is_one_of_many=is_counted,
                again=bounds,
                server_labels=node_labels(row, start),
            )
        except YardError as exc:
            raise StartRefused(start, exc) from exc
        return PlannedJob(start, write, tree, context.now_us())

    def store_files(self, context: Context, planned: Iterable[PlannedJob]) -> None:
        """Put the files of jobs into the store, all at once: each time costs some waits for the disk.

        Raises Unavailable if the store is away.
        """
        objects = {digest: body for job in planned for digest, body in job.tree.new.items()}
        if objects:
            context.files.store.put_many(objects.items(), are_checked=True)

    def insert(self, batch: Batch, context: Context, row: ExecutionRow, jobs: Sequence[PlannedJob]) -> None:
        """Insert jobs with their files. Raises StartsRefused with all that are refused; then undo the step."""
        if not jobs:
            return
        refusals = self._record_trees(batch, context, row, jobs)
        if not refusals:
            results = self._submit.apply_inserts(batch, [job.write for job in jobs])
            refusals = [
                StartRefused(job.start, result if isinstance(result, YardError) else Internal())
                for job, result in zip(jobs, results, strict=True)
                if not isinstance(result, AcceptedJob)
            ]
        if refusals:
            raise StartsRefused(refusals)
        attempts = [attempt_row(row.id, job.start, job_id=job.write.row.id, now_us=batch.now_us) for job in jobs]
        execution_nodes.attempt_insert(batch.tx, attempts)

    def _record_trees(
        self, batch: Batch, context: Context, row: ExecutionRow, jobs: Sequence[PlannedJob]
    ) -> list[StartRefused]:
        """Store the files of all jobs, in a few statements. Returns the refusals of jobs whose files do not fit."""
        sizes = {digest: size for job in jobs for digest, size in job.tree.sizes.items()}
        limit = context.files.limits.user_bytes
        used = file_objects.usage_get(batch.tx, row.owner_id) if limit else 0
        held = file_objects.holdings(batch.tx, row.owner_id, sizes) if limit else set[bytes]()
        excess = trees_over([job.tree.sizes for job in jobs], held, room=limit - used if limit else None)
        if excess:
            return [StartRefused(jobs[place].start, user_limit_refusal(context, used, size)) for place, size in excess]
        try:
            began_us = min(job.began_us for job in jobs)
            trees = [job.tree for job in jobs]
            record_trees(batch, context, row.owner_id, trees, began_us=began_us, is_counted=True)
        except YardError as exc:
            return [StartRefused(jobs[0].start, exc)]
        return []


def trees_over(
    trees: Sequence[Mapping[bytes, int]], held: Collection[bytes], *, room: int | None
) -> list[tuple[int, int]]:
    """The places of trees that do not fit, with the bytes that they would add. `trees`: sizes of objects by hash.

    `held`: objects that the owner holds, which cost nothing. `room`: bytes that the owner may hold more; None: no
    limit.
    """
    over: list[tuple[int, int]] = []
    known = set(held)
    left = room
    for place, sizes in enumerate(trees):
        added = sum(size for digest, size in sizes.items() if digest not in known)
        if left is not None and added > max(0, left):
            over.append((place, added))
            continue
        known |= sizes.keys()
        left = left - added if left is not None else None
    return over
