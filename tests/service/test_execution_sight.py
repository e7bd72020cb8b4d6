"""What a reader may see of executions: the same as of jobs."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2, execution_pb2, node_execution_pb2, task_execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from google.protobuf import json_format

from switchyard.features.flyte.server import executions as calls
from switchyard.features.flyte.server import node_executions
from switchyard.features.flyte.store.executions import execution_nodes, executions
from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow, NodeRow
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from tests.builders import a_request
from tests.service.rig import Rig

ID = {"project": "default", "domain": "development", "name": "e1"}
NODE = {"execution_id": ID, "node_id": "n0"}
ERROR = content_bytes(core_execution_pb2.ExecutionError(code="Crashed", message="vault: the node was lost"))
SPEC: dict[str, Any] = {
    "envs": {"values": [{"key": "PASSWORD", "value": "s3cret"}]},
    "security_context": {
        "secrets": [{"group": "s3cret"}],
        "tokens": [{"name": "s3cret"}],
        "run_as": {"iam_role": "role", "oauth2_client": {"client_id": "shown", "client_secret": {"group": "s3cret"}}},
    },
}
TIMES = {"created_us": 1, "started_us": 1, "ended_us": 2}


def made(row_type: Any, **fields: Any) -> Any:
    """A row; fields that nobody names are empty."""
    return row_type(**{**dict.fromkeys(row_type.__struct_fields__, ""), **fields})


def store_execution(rig: Rig, owner: Actor) -> None:
    """A failed execution on a hidden cluster: one attempt has ended, of the other the job waits."""
    job = rig.submit(a_request(cluster="vault"), actor=owner).id
    row = made(
        ExecutionRow,
        id="x1",
        **ID,
        owner=owner.name,
        owner_id=owner.id,
        digest=b"",
        spec=content_bytes(json_format.ParseDict(SPEC, execution_pb2.ExecutionSpec())),
        inputs=b"",
        outputs=None,
        error=ERROR,
        phase="FAILED",
        **dict.fromkeys(("is_archived", "is_due", "is_stopping", "is_removed", "is_awaited"), False),
        steps=1,
        updated_us=2,
        **TIMES,
    )
    of_node = {"execution_id": "x1", "node_id": "n0"}
    counts = dict.fromkeys(("attempts", "user_failures", "system_failures"), 1)
    node = made(
        NodeRow,
        **of_node,
        **counts,
        spec_id="n0",
        is_parent=False,
        is_array=False,
        wake_us=None,
        **dict.fromkeys(("cache_status", "cache_key", "cache_source")),
        phase="FAILED",
        inputs=None,
        outputs=None,
        error=ERROR,
        created_us=1,
        updated_us=2,
        ended_us=2,
    )
    ended = made(
        NodeAttemptRow,
        **of_node,
        attempt=0,
        job_id="j0",
        phase="FAILED",
        reason="lost on vault",
        cluster="vault",
        error=ERROR,
        **TIMES,
    )
    live = made(
        NodeAttemptRow,
        **of_node,
        attempt=1,
        job_id=job,
        phase="QUEUED",
        error=None,
        created_us=1,
        started_us=None,
        ended_us=None,
    )

    def apply(batch: Batch) -> None:
        executions.execution_insert(batch.tx, row)
        execution_nodes.node_put(batch.tx, [node])
        execution_nodes.attempt_insert(batch.tx, [ended, live])

    rig.committer.call(apply)


def told(rig: Rig, actor: Actor) -> str:
    """All that the calls about the execution tell a reader."""
    run = execution_pb2.WorkflowExecutionGetRequest(id=ID)
    runs = json_format.ParseDict({"id": {**ID, "name": ""}, "limit": 9}, common_pb2.ResourceListRequest())
    nodes = node_execution_pb2.NodeExecutionListRequest(workflow_execution_id=ID, limit=9)
    node = node_execution_pb2.NodeExecutionGetRequest(id=NODE)
    tasks = task_execution_pb2.TaskExecutionListRequest(node_execution_id=NODE, limit=9)
    task = {"id": {"node_execution_id": NODE, "retry_attempt": 0}}
    attempt = json_format.ParseDict(task, task_execution_pb2.TaskExecutionGetRequest())
    answers = [
        calls.get(rig.context, actor, run),
        calls.list_matching(rig.context, actor, runs),
        node_executions.list_nodes(rig.context, actor, nodes),
        node_executions.get_node(rig.context, actor, node),
        node_executions.list_tasks("", rig.context, actor, tasks),
        node_executions.get_task("", rig.context, actor, attempt),
    ]
    return "\n".join(json_format.MessageToJson(answer) for answer in answers)


def test_a_viewer_learns_no_secret_and_no_hidden_cluster_and_the_owner_does(lite: Rig) -> None:
    lite.cluster("vault", is_private=True)
    ann = lite.user("ann", (Role.SUBMIT, GrantTarget.CLUSTER, "vault"))
    bob = lite.user("bob")
    operator = lite.user("olga", (Role.OPERATE, GrantTarget.PROJECT, "default"))
    store_execution(lite, ann)
    by_owner, by_viewer, by_operator = (told(lite, actor) for actor in (ann, bob, operator))
    assert ("s3cret" in by_owner, "s3cret" in by_operator, "s3cret" in by_viewer) == (True, True, False)
    assert ("vault" in by_owner, "vault" in by_operator, "vault" in by_viewer) == (True, False, False)
    assert by_owner.count("vault: the node was lost") == by_viewer.count("(hidden): the node was lost") == 6
    assert "lost on vault" in by_owner
    assert by_viewer.count("lost on (hidden)") == 2
    assert ("iamRole" in by_viewer, "shown" in by_viewer) == (True, True)
