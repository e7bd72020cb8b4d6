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
from switchyard.service.submit.idempotency import AcceptedJob
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.submit import Submit
from switchyard.store import execution_nodes
from switchyard.store.execution_nodes import NodeAttemptRow
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
        self, context: Context, row: ExecutionRow, start: TaskStart, template: Any, *, array: str | None = None
    ) -> PlannedJob:
        """Decide a job and put its files into the store. `array`: the indexes of its tasks. Raises StartRefused."""
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
            write = self._submit.decide(actor, request, key=None, body=b"")
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
        attempt = NodeAttemptRow(
            execution_id=row.id,
            node_id=job.start.node_id,
            attempt=job.start.attempt,
            job_id=job.write.row.id,
            task_project=job.start.task.project,
            task_domain=job.start.task.domain,
            task_name=job.start.task.name,
            task_version=job.start.task.version,
            phase="QUEUED",
            reason="",
            cluster="",
            error=None,
            created_us=batch.now_us,
            started_us=None,
            ended_us=None,
        )
        execution_nodes.attempt_insert(batch.tx, [attempt])
