"""The output files of attempts: what agents say of them, and what readers of a job see."""

from __future__ import annotations

import msgspec

from switchyard.errors import BadRequest, BadValue, Conflict, LimitReached, NotFound, UnknownName
from switchyard.model.cluster.idset import IdSet
from switchyard.model.files.files import AttemptOutputs, FilesOfJob, FilesUsage, FileUsage, OutputSet, OutputState
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import JobSpec
from switchyard.model.rules.access import Role
from switchyard.service.core.agents.agent_calls import AgentAttempt, are_outputs_settled, find_attempt
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import refuse_outputs_over_limit
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.files.output_room import replaced_tree
from switchyard.service.lifecycle.visibility import Visibility, visible_job
from switchyard.store.files import attempt_uploads, file_objects, file_outputs, file_trees
from switchyard.store.files.file_objects import StoredTotals
from switchyard.store.files.file_outputs import OutputOnCluster, OutputRow
from switchyard.store.files.file_trees import OUT, FileRef, TreeRow
from switchyard.store.jobs.job_rows import JobDetails

EVENTS = {OutputState.READY: EventKind.OUTPUTS_READY, OutputState.FAILED: EventKind.OUTPUTS_FAILED}


def record_outputs(context: Context, agent: AgentEntry, message: AttemptOutputs) -> None:
    """Store what an agent says of the outputs of an attempt. The same message twice changes nothing."""

    def apply(batch: Batch) -> None:
        attempt = find_attempt(batch.tx, agent, message.job, message.fence)
        _record(batch, context, attempt, message, agent_id=agent.id)

    context.committer.call(apply, locks=[message.job])


def _record(batch: Batch, context: Context, attempt: AgentAttempt, message: AttemptOutputs, *, agent_id: str) -> None:
    earlier = file_outputs.output_get(batch.tx, message.job, message.fence)
    if earlier is not None and earlier.state == OutputState.READY and message.state is not OutputState.READY:
        return  # a message that was delayed on its way
    if are_outputs_settled(batch.tx, attempt, now_us=batch.now_us):
        _refuse_other_outputs(attempt, earlier, message)
        return  # the same message again: its answer was lost
    state, root, error = message.state, None, message.error.replace("\0", "")  # PostgreSQL stores no NUL
    files, size = message.files, message.bytes
    if message.state is OutputState.READY:
        if message.root is None:
            raise BadValue("The outputs are ready, and their tree is not named.")
        root = bytes.fromhex(message.root)
        is_own = attempt_uploads.is_sealed_for(batch.tx, attempt.row.id, attempt.fence, root)
        tree = file_trees.trees_for_jobs(batch.tx, [(attempt.owner, root)]).get((attempt.owner, root))
        if tree is None or not is_own:  # a tree of the owner that this attempt did not make is none for it
            raise UnknownName(
                f"The tree {message.root} is not sealed for this attempt.",
                next_step="Send its objects and seal it, then send this again.",
            )
        files, size = tree.files, tree.size
        _refer(batch, context, attempt, tree, earlier)
    row = {
        "job_id": message.job,
        "fence": message.fence,
        "task": attempt.task,
        "cluster_id": attempt.cluster_id,
        "state": state.value,
        "root": root,
        "files": files,
        "size": size,
        "missing": _text(message.missing),
        "skipped": _text(message.skipped),
        "error": error[:4096],
        "at_us": batch.now_us,
        "agent_id": agent_id,
        "retry_until_us": batch.now_us + message.retry_s * 1_000_000 if message.retry_s else None,
    }
    file_outputs.output_put(batch.tx, row)
    batch.jobs.add(message.job)  # wakes requests that wait for this job
    if state in EVENTS and attempt.task is None:
        batch.topics.add(
            Topic.EXECUTIONS
        )  # the job may be a node of one. The elements of maps are looked at in batches
    if state in EVENTS and (earlier is None or earlier.state != state):
        _record_event(batch, attempt, state, error or f"{files} files, {size} bytes")


def _refuse_other_outputs(attempt: AgentAttempt, earlier: OutputRow | None, message: AttemptOutputs) -> None:
    """The output files of an ended attempt never change: others may have read them."""
    if earlier is not None and earlier.root is not None and bytes(earlier.root).hex() != message.root:
        raise Conflict(
            f"The attempt {attempt.fence} of job {attempt.row.id} has ended and its output files are stored: they do "
            "not change any more.",
            next_step="Nothing is left to send.",
        )


def _refer(batch: Batch, context: Context, attempt: AgentAttempt, tree: TreeRow, earlier: OutputRow | None) -> None:
    """The job needs this tree from now on, and no longer the tree that an earlier message of this attempt named."""
    project = attempt.row.project
    replaced = replaced_tree(batch.tx, attempt, earlier)
    is_named = earlier is not None and earlier.root is not None and bytes(earlier.root) == tree.root
    try:
        if not is_named:
            refuse_outputs_over_limit(
                batch.tx, context.files.limits, project, tree.size, replaced_bytes=replaced.size if replaced else 0
            )
    except LimitReached:  # the agent sends fewer files
        context.tally.uploads_refused.add("project_bytes")
        raise
    if earlier is not None and earlier.root is not None and bytes(earlier.root) != tree.root:
        file_outputs.ref_drop(batch.tx, attempt.row.id, attempt.fence, bytes(earlier.root))
    file_trees.ref_put(batch.tx, [FileRef(attempt.row.id, tree.root, OUT, project)])


def _record_event(batch: Batch, attempt: AgentAttempt, state: OutputState, reason: str) -> None:
    row = attempt.row
    is_of_task = attempt.task is not None
    batch.event(
        row.id,
        EVENTS[state],
        state=row.state,
        attempt=row.attempt,
        fence=attempt.fence,
        cluster_id=attempt.cluster_id,
        reason=f"task {attempt.task}: {reason}" if is_of_task else reason,
        is_of_task=is_of_task,
    )


def files_of_job(
    context: Context, actor: Actor, ref: str, *, task: int | None, cursor: str | None, limit: int
) -> FilesOfJob:
    """The trees of a job and the outputs of its attempts, oldest first."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        _refuse_unknown_task(row, task)
        rows, more = file_outputs.output_list(tx, row.id, task=task, after=_after(cursor), limit=limit)
    spec = msgspec.json.decode(row.spec, type=JobSpec) if row.spec else None
    files = spec.files if spec is not None else None
    visibility = Visibility(context, actor)
    is_own = visibility.is_own(row)
    return FilesOfJob(
        tree=files.tree if files else None,
        task_tree=files.task_tree if files else None,
        out=files.out if files else [],
        outputs=[_output_set(context, output, visibility, is_own=is_own) for output in rows],
        next=str(more) if more is not None else None,
    )


def _refuse_unknown_task(row: JobDetails, task: int | None) -> None:
    if task is None:
        return
    if row.array is None:
        raise BadRequest(f"Job {row.id} is not an array.", next_step="Leave out the task.")
    if task not in IdSet.parse(row.array):
        raise NotFound(f"Job {row.id} has no task {task}.", next_step=f"Its tasks are {row.array[:80]}.")


def _after(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) < 2**63):
        raise BadValue("The parameter 'cursor' is the `next` of the page before.")
    return int(cursor)


def _output_set(context: Context, row: OutputOnCluster, visibility: Visibility, *, is_own: bool) -> OutputSet:
    return OutputSet(
        fence=row.fence,
        state=OutputState(row.state),
        task=row.task,
        cluster=visibility.cluster(row.cluster_id, row.cluster, is_own=is_own),
        root=bytes(row.root).hex() if row.root is not None else None,
        files=row.files,
        bytes=row.size,
        missing=msgspec.json.decode(row.missing, type=list[str]),
        skipped=[visibility.text(text, is_own=is_own) for text in msgspec.json.decode(row.skipped, type=list[str])],
        error=visibility.text(row.error, is_own=is_own),
        silent_since_us=_silent_since_us(context, row) if row.state == OutputState.UPLOADING else None,
    )


def _silent_since_us(context: Context, row: OutputOnCluster) -> int | None:
    """When the agent that has the files was last seen, if it is silent now."""
    agents = [row.agent_id] if row.agent_id else list(context.snapshots.fleet.by_cluster.get(row.cluster_id or "", ()))
    if any(context.snapshots.is_live(agent) for agent in agents):
        return None
    return max((context.snapshots.seen.get(agent, 0) for agent in agents), default=0)


def _text(values: list[str]) -> str:
    return msgspec.json.encode(values).decode()


def files_usage(context: Context, actor: Actor, project: str | None) -> FilesUsage:
    limits = context.files.limits
    if project is not None:
        actor.need_project(Role.VIEW, project)  # first: whether a project exists is not for everyone to know
        if project not in context.snapshots.access.projects:
            raise NotFound(f"There is no project {project}.")
    with context.database.read() as tx:
        user = FileUsage(file_objects.usage_get(tx, actor.id), limits.user_bytes, file_trees.owned_count(tx, actor.id))
        if project is None:
            return FilesUsage(user)
        used, trees = file_trees.project_usage(tx, project)
    return FilesUsage(user, FileUsage(used, limits.project_bytes, trees))


def stored_files(context: Context) -> StoredTotals:
    """How many objects are stored in all, and their bytes."""
    with context.database.read() as tx:
        return file_objects.stored_totals(tx)
