"""Start the jobs of nodes: plan each before a transaction, and insert it with its files in the transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from switchyard.errors import Internal, YardError
from switchyard.service.core.batch import Batch
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots import owner_of
from switchyard.service.executions.checkpoints import NO_ATTEMPT, previous_attempt
from switchyard.service.executions.node_jobs import (
    NodeTree,
    inputs_body,
    job_request,
    make_tree,
    read_spec,
    record_tree,
    store_objects,
)
from switchyard.service.executions.node_rows import attempt_row
from switchyard.service.lifecycle.bounds import RetryBounds
from switchyard.service.submit.idempotency import AcceptedJob
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.submit import Submit
from switchyard.store import execution_nodes
from switchyard.store.executions import ExecutionRow
from switchyard.workflow.execution_state import TaskStart


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to insert with the files that it brings along."""

    start: TaskStart
    write: JobInsert
    tree: NodeTree
    began_us: int


class StartRefused(YardError):
    """A job of a step could not be inserted. One of our errors, so that the committer undoes this step alone."""

    def __init__(self, start: TaskStart, error: YardError) -> None:
        super().__init__(error.detail)
        self.start, self.error = start, error


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
        """Decide a job and put its files into the store. Raises StartRefused.

        `array`: the indexes of its tasks. `is_counted`: the caller has compared the user's jobs with the limits.
        """
        actor = owner_of(context.snapshots.access, row.owner_id, row.owner)
        try:
            previous = NO_ATTEMPT if array is not None else previous_attempt(context, row, start, template)
            tree, bundles = make_tree(context, inputs_body(start), template.container, previous)
            request = job_request(
                row,
                read_spec(row),
                start,
                template,
                bundles=bundles,
                tree=tree.root.hex(),
                array=array,
                previous=previous,
            )
            began_us = store_objects(context, tree)
            home = context.snapshots.world.by_name.get(row.cluster)
            bounds = RetryBounds(None, (), home.id) if home is not None and not request.cluster else None
            write = self._submit.decide(actor, request, key=None, body=b"", is_one_of_many=is_counted, again=bounds)
        except YardError as exc:
            raise StartRefused(start, exc) from exc
        return PlannedJob(start, write, tree, began_us)

    def insert(self, batch: Batch, context: Context, row: ExecutionRow, job: PlannedJob) -> None:
        """Insert a job with its files. Raises StartRefused, and then nothing of the step is stored."""
        try:
            record_tree(batch, context, row.owner_id, job.tree, began_us=job.began_us)
        except YardError as exc:
            raise StartRefused(job.start, exc) from exc
        (result,) = self._submit.apply_inserts(batch, [job.write])
        if not isinstance(result, AcceptedJob):
            error = result if isinstance(result, YardError) else Internal()
            raise StartRefused(job.start, error)
        attempt = attempt_row(row.id, job.start, job_id=job.write.row.id, now_us=batch.now_us)
        execution_nodes.attempt_insert(batch.tx, [attempt])
