"""The job of an attempt: its files as a tree, and the request that submits it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from flyteidl.admin import execution_pb2
from flyteidl.core import literals_pb2

from switchyard.errors import BadRequest, Busy, Malformed
from switchyard.features.flyte.service.executions.calls.data_places import WHAT_TO_SET
from switchyard.features.flyte.service.executions.calls.data_proxy import SCHEME, file_entry, split_native_url
from switchyard.features.flyte.service.executions.driving.checkpoints import NO_ATTEMPT, PreviousAttempt
from switchyard.features.flyte.store.executions import data_files
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_checks import data_of_task
from switchyard.features.flyte.workflow.engine.execution_state import TaskStart
from switchyard.features.flyte.workflow.engine.node_job import node_job_spec
from switchyard.features.flyte.workflow.engine.security_contexts import read_security_context
from switchyard.features.flyte.workflow.tasks.pod_task import container_of
from switchyard.features.flyte.workflow.tasks.raw_container import file_inputs, input_files, is_raw_container
from switchyard.features.flyte.workflow.tasks.task_command import (
    CONTAINER_IN,
    CONTAINER_OUT,
    FOLDER,
    INPUTS,
    PREVIOUS_CHECKPOINT,
    AttemptNames,
    CommandFailed,
    bundle_addresses,
)
from switchyard.features.flyte.workflow.tasks.task_retries import with_retry_rules
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.features.flyte.workflow.values.uploaded_files import FILES_MAX, uploaded_paths, with_places
from switchyard.model.cluster.idset import IdSet
from switchyard.model.executions.execution import (
    EXECUTION_LABEL,
    NODE_LABEL,
    ExecutionConfig,
    SecurityContext,
    is_server_label,
)
from switchyard.model.files.file_tree import Entry, FileEntry, FolderEntry, chunk_spans, encode_tree, hash_of
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.rules.scope import LONG_NAME_PATTERN
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.upload_addresses import user_limit_refusal
from switchyard.store.files import file_objects, file_trees

LABELS_MAX = 60  # of an execution; a job takes 64
ON_LOST_ANNOTATION, LOST_AFTER_ANNOTATION = "switchyard/on-lost", "switchyard/lost-after"
NO_TREE = "0" * 64  # in a trial, which stores no files
_LONG_NAME = re.compile(LONG_NAME_PATTERN)


@dataclass(slots=True)
class _Folder:
    files: list[FileEntry] = field(default_factory=list)
    folders: dict[str, _Folder] = field(default_factory=dict)

    def below(self, path: Sequence[str]) -> _Folder:
        """The folder with this path, made if it is missing."""
        folder = self
        for name in path:
            folder = folder.folders.setdefault(name, _Folder())
        return folder


@dataclass(slots=True)
class NodeTree:
    """The files that an attempt brings along. `new`: objects to put into the store. `sizes`: of all of its objects."""

    root: bytes = b""
    files: int = 0
    size: int = 0
    new: dict[bytes, bytes] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)

    def add_object(self, data: bytes) -> bytes:
        digest = hash_of(data)
        self.new[digest] = data
        self.sizes[digest] = len(data)
        return digest

    def add_file(self, content: bytes) -> FileEntry:
        chunks = [self.add_object(content[span.offset : span.offset + span.size]) for span in chunk_spans(len(content))]
        return FileEntry(b"", len(content), False, chunks)

    def build(self, files: Mapping[str, FileEntry], folders: Sequence[str] = ()) -> None:
        """Make the tree of these files, by path, and of these empty folders."""
        for entry in files.values():
            self.files += 1
            self.size += entry.size
            for chunk, span in zip(entry.chunks, chunk_spans(entry.size), strict=True):
                if chunk:
                    self.sizes[chunk] = span.size
        top = _Folder()
        for path in folders:
            top.below(path.split("/"))
        for path, entry in files.items():
            *above, name = path.split("/")
            top.below(above).files.append(FileEntry(name.encode(), entry.size, entry.is_executable, entry.chunks))
        self.root = self._add_folder("", top).tree

    def _add_folder(self, name: str, folder: _Folder) -> FolderEntry:
        below = [self._add_folder(own, inner) for own, inner in folder.folders.items()]
        entries: list[Entry] = [*folder.files, *below]
        files = len(folder.files) + sum(one.files for one in below)
        size = sum(one.size for one in folder.files) + sum(one.size for one in below)
        return FolderEntry(name.encode(), self.add_object(encode_tree(entries)), files, size)


def make_tree(
    context: Context, inputs: bytes, container: Any, previous: PreviousAttempt = NO_ATTEMPT
) -> tuple[NodeTree, dict[str, str]]:
    """The tree of an attempt, and the path of each code bundle in it, by its address."""
    tree, paths = NodeTree(), dict[str, str]()
    literals: Any = literals_pb2.LiteralMap.FromString(inputs)
    uploads = uploaded_paths(literals)
    files = {INPUTS: tree.add_file(content_bytes(with_places(literals, uploads)) if uploads else inputs)}
    for address in bundle_addresses(container):
        if not address.startswith(SCHEME):
            continue  # the task gets it by itself
        found = _bundle(context, address)
        paths[address] = f"{FOLDER}/{found.name.decode()}"
        files[paths[address]] = found
    for address, path in uploads.items():
        files[path] = uploaded_entry(context, address)
    files |= {f"{PREVIOUS_CHECKPOINT}/{path}": entry for path, entry in previous.checkpoint.items()}
    if container.data_config.enabled:
        files |= {
            f"{CONTAINER_IN}/{name}": tree.add_file(body) for name, body in _input_files(literals, container).items()
        }
        for name, place in file_inputs(literals).items():
            if place in uploads:
                files[f"{CONTAINER_IN}/{name}"] = files[uploads[place]]
    tree.build(files, folders=[CONTAINER_OUT] if container.data_config.enabled else [])
    return tree, paths


def _input_files(inputs: Any, container: Any) -> dict[str, bytes]:
    try:
        return input_files(inputs, container.data_config)
    except CommandFailed as exc:
        raise Malformed(f"The raw container cannot have its inputs as files: {exc}") from exc


def _bundle(context: Context, address: str) -> FileEntry:
    return _stored_file(context, address, absent=_no_bundle(address))


def _check_bundles(task: EntityId, container: Any) -> None:
    """Refuse code of another project or domain: whoever may run the task need not be allowed to read that."""
    for address in bundle_addresses(container):
        if address.startswith(SCHEME) and split_native_url(address)[:2] != (task.project, task.domain):
            raise _no_bundle(address)


def check_uploads(project: str, domain: str, inputs: Any) -> list[str]:
    """The addresses of files in the inputs. Raises BadRequest for one of another project or domain, or too many."""
    addresses = list(uploaded_paths(inputs))
    for address in addresses:
        if split_native_url(address)[:2] != (project, domain):
            raise _no_upload(address)
    if len(addresses) > FILES_MAX:
        raise BadRequest(f"A task takes at most {FILES_MAX} uploaded files; these inputs have {len(addresses)}.")
    return addresses


def uploaded_entry(context: Context, address: str) -> FileEntry:
    return _stored_file(context, address, absent=_no_upload(address))


def _stored_file(context: Context, address: str, *, absent: BadRequest) -> FileEntry:
    project, domain, path = split_native_url(address)
    with context.database.read() as tx:
        row = data_files.data_file_get(tx, project, domain, path)
    if row is None:
        raise absent
    return file_entry(context, row)


def _no_upload(address: str) -> BadRequest:
    """In the same words for a file that is not there and one of another project, so that nobody learns which."""
    return BadRequest(f"There is no file {address[:200]} in the project and domain of the execution.")


def _no_bundle(address: str) -> BadRequest:
    """In the same words for a bundle that is not there and one of another project, so that nobody learns which."""
    return BadRequest(
        f"The code of the task is not here: nothing was uploaded to {address[:200]} in the task's project and domain."
    )


def store_objects(context: Context, tree: NodeTree) -> int:
    """Put the objects of a tree into the store. Returns the time before that, for `record_tree`."""
    began_us = context.now_us()
    context.files.store.put_many(tree.new.items(), are_checked=True)
    return began_us


def record_tree(batch: Batch, context: Context, owner: str, tree: NodeTree, *, began_us: int) -> None:
    """Seal a tree for the owner of the job, in the transaction that inserts the job."""
    record_trees(batch, context, owner, [tree], began_us=began_us)


def record_trees(
    batch: Batch,
    context: Context,
    owner: str,
    trees: Sequence[NodeTree],
    *,
    began_us: int,
    is_counted: bool = False,
) -> None:
    """Seal trees for the owner of their jobs. Raises LimitReached if the owner may not have all of them.

    `is_counted`: the caller has compared them with the limit, in this transaction.
    """
    sizes = {digest: size for tree in trees for digest, size in tree.sizes.items()}
    file_objects.object_put(batch.tx, sizes, now_us=batch.now_us)
    if file_objects.being_removed(batch.tx, sizes, since_us=began_us):
        raise Busy("Some files of the task are just being removed because nobody used them for long.")
    new = file_objects.holder_put(batch.tx, owner, sizes, now_us=batch.now_us)
    added = sum(sizes[digest] for digest in new)
    limit = 0 if is_counted else context.files.limits.user_bytes
    if added and limit and (used := file_objects.usage_get(batch.tx, owner)) + added > limit:
        raise user_limit_refusal(context, used, added)
    file_objects.usage_add(batch.tx, {owner: added} if added else {})
    rows = [
        (file_trees.TreeRow(tree.root, tree.files, tree.size, str(IdSet.of(()))), sorted(tree.sizes)) for tree in trees
    ]
    file_trees.trees_put(batch.tx, rows, [owner], now_us=batch.now_us)


def job_request(
    row: ExecutionRow,
    spec: Any,
    start: TaskStart,
    template: Any,
    *,
    bundles: Mapping[str, str],
    tree: str,
    array: str | None = None,
    previous: PreviousAttempt = NO_ATTEMPT,
) -> JobRequest:
    """The request of a job that runs an attempt. Raises Malformed for values that no job can have.

    Raises BadRequest for code that is not of the task's own project and domain. So nothing of a tree with such code
    may be stored before this call. `previous`: the attempt before this one.
    """
    _check_bundles(start.task, container_of(template))
    check_uploads(row.project, row.domain, start.inputs)
    if array is not None and is_raw_container(template):
        raise BadRequest(f"Task {start.task.name} is a raw container, and maps over raw containers are not served.")
    prefix = spec.raw_output_data_config.output_location_prefix
    if not prefix and (needs := next(data_of_task(template), "")):
        # Only of a task that was not known when the execution was created.
        raise BadRequest(f"{needs}, and the execution has no place for such data.", next_step=WHAT_TO_SET)
    is_plan = row.entity_kind == EntityKind.LAUNCH_PLAN
    names = AttemptNames(
        project=row.project,
        domain=row.domain,
        execution=row.name,
        workflow=row.workflow_name,
        launch_plan=row.entity_name if is_plan else row.workflow_name,
        node_id=start.node_id,
        attempt=start.attempt,
        task=start.task,
        is_element=array is not None,
        data_prefix=prefix,
        previous=previous.key,
        previous_number=previous.number,
        previous_execution=previous.execution,
        has_checkpoint=bool(previous.checkpoint),
        namespace=spec.metadata.system_metadata.namespace,
    )
    envs = {pair.key: pair.value for pair in spec.envs.values}
    try:
        job_spec = node_job_spec(
            template, start.node, names, inputs=start.inputs, envs=envs, bundles=bundles, tree=tree
        )
        workflow = row.workflow_name if is_plan and _LONG_NAME.match(row.workflow_name) else None
        request = JobRequest(
            spec=_with_on_lost(msgspec.structs.replace(job_spec, execution=_execution_config(spec)), spec),
            name=f"{row.name}/{start.node_id}"[:256],
            project=row.project,
            domain=row.domain,
            # A name that no rule can name is no scope of rules.
            workflow=workflow,
            launch_plan=row.entity_name if workflow and _LONG_NAME.match(row.entity_name) else None,
            labels=_labels(spec),
            pool=spec.cluster_assignment.cluster_pool_name or None,
            cluster_label=spec.execution_cluster_label.value or None,
            array=array,
            cluster=spec.metadata.system_metadata.execution_cluster or None,
        )
        request = with_retry_rules(request, template, spec.annotations.values)
        return msgspec.convert(msgspec.to_builtins(request), JobRequest)
    except (CommandFailed, ValueError, msgspec.MsgspecError) as exc:
        raise Malformed(f"Task {start.task.name} of node {start.node_id} cannot be a job: {exc}") from exc


def _with_on_lost(job: JobSpec, spec: Any) -> JobSpec:
    """What happens to nodes on a cluster that falls silent, as the execution's annotations say."""
    given = spec.annotations.values
    on_lost, lost_after = given.get(ON_LOST_ANNOTATION, job.on_lost), given.get(LOST_AFTER_ANNOTATION, job.lost_after)
    return msgspec.structs.replace(job, on_lost=on_lost, lost_after=lost_after)


def _labels(spec: Any) -> dict[str, str]:
    labels = sorted((key, value) for key, value in spec.labels.values.items() if not is_server_label(key))
    return dict(labels[:LABELS_MAX])


def node_labels(row: ExecutionRow, start: TaskStart) -> dict[str, str]:
    """The labels that the server gives the job of an attempt. A request cannot have them."""
    return {EXECUTION_LABEL: row.name, NODE_LABEL: start.node_id[:256]}


def _execution_config(spec: Any) -> ExecutionConfig | None:
    """What the execution itself says; rules fill in the rest."""
    context = read_security_context(spec.security_context)
    config = ExecutionConfig(
        security_context=context if context != SecurityContext() else None,
        annotations=dict(spec.annotations.values) or None,
        interruptible=spec.interruptible.value if spec.HasField("interruptible") else None,
    )
    return config if config != ExecutionConfig() else None


def read_spec(row: ExecutionRow) -> Any:
    return execution_pb2.ExecutionSpec.FromString(row.spec)


def inputs_body(start: TaskStart) -> bytes:
    return content_bytes(start.inputs)
