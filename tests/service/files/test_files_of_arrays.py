"""Files of array tasks while the array as a whole changes its cluster."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from switchyard.errors import Conflict, NotFound
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.files.files import AttemptOutputs, JobFiles, ObjectsQuery, OutputState, TaskOutputs
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.wire.api import JobChange
from switchyard.service.cluster import clusters
from switchyard.service.core.agents.agent_calls import READ_INPUTS, SEND_OUTPUTS
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.files.output_room import output_room
from switchyard.service.files.outputs import files_of_job, record_outputs
from switchyard.service.files.reading import plan_agent_read
from switchyard.service.files.seal import seal_tree
from switchyard.service.job.job_control import job_change
from switchyard.service.job.tasks import task_list
from switchyard.service.run.file_views import find_target
from switchyard.service.upkeep.move_jobs import take_back_unleased
from tests.builders import a_graph, a_request
from tests.service.files.trees import a_tree, admitted, send, send_outputs
from tests.service.rig import ADMIN, Rig, RigAgent

INPUTS = a_tree({"train.py": b"print(1)\n"})
LEFT = a_tree({"result.csv": b"42\n"})


def an_array(**more: object) -> JobRequest:
    request = a_request(array="0-5", **more)
    return msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, files=JobFiles(tree=INPUTS.name, out=["*.csv"]))
    )


def lease_tasks(agent: RigAgent, count: int) -> dict[int, AttemptRef]:
    """Lease tasks of the only array; the attempts, by index."""
    attempts = {}
    for lease in agent.lease(count):
        first = lease.lo or 0
        for index in range(first, (lease.hi or 0) + 1):
            attempts[index] = AttemptRef(lease.job, lease.fence + index - first)
    return attempts


def entry_of(rig: Rig, agent: RigAgent) -> AgentEntry:
    return rig.context.snapshots.fleet.agents[agent.id]


def cordon(rig: Rig, cluster: str, _: str) -> None:
    clusters.cluster_change(rig.context, ADMIN, cluster, ClusterChange(is_cordoned=True))
    take_back_unleased(rig.context, rig.leader)


def hold(rig: Rig, _: str, job: str) -> None:
    job_change(rig.context, ADMIN, job, JobChange(hold=True))


@pytest.mark.parametrize(("take_back", "is_together"), [(cordon, False), (cordon, True), (hold, False)])
def test_the_files_of_all_tasks_travel_after_their_array_was_taken_back(
    rig: Rig, take_back: Callable[[Rig, str, str], None], is_together: bool
) -> None:
    agents = {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}
    send(rig.context, ADMIN.id, INPUTS.frames())
    seal_tree(rig.context, ADMIN.id, INPUTS.name)
    job = rig.submit(an_array(together=is_together)).id
    cluster = rig.job(job).cluster
    assert cluster is not None
    agent = agents.pop(cluster)
    (other,) = agents.values()
    tasks = lease_tasks(agent, 3)
    assert sorted(tasks) == [0, 1, 2]
    take_back(rig, cluster, job)
    assert "unassigned" in rig.kinds(job)
    for index, attempt in tasks.items():
        entry = entry_of(rig, agent)
        query = ObjectsQuery(INPUTS.name, [INPUTS.name])
        reading = admitted(agent, READ_INPUTS, job, attempt.fence)
        assert plan_agent_read(rig.context, reading, query).sizes, f"task {index} gets its files"
        with pytest.raises(NotFound):
            admitted(other, READ_INPUTS, job, attempt.fence)
        agent.report(attempt, ObservedState.RUNNING)
        target = find_target(rig.context, ADMIN, job, task=index, attempt=None)
        assert (target.agent, target.fence) == (agent.id, attempt.fence), f"a file of task {index} can be looked at"
        agent.report(attempt, ObservedState.SUCCEEDED, exit_code=0)
        with pytest.raises(Conflict, match="has ended"):
            admitted(agent, READ_INPUTS, job, attempt.fence)
        sending = admitted(agent, SEND_OUTPUTS, job, attempt.fence)
        assert output_room(rig.context, sending).tree is not None
        send_outputs(rig.context, sending, LEFT)
        record_outputs(rig.context, entry, AttemptOutputs(job, attempt.fence, OutputState.READY, LEFT.name))
    outputs = files_of_job(rig.context, ADMIN, job, task=None, cursor=None, limit=10).outputs
    assert {output.task: output.state for output in outputs} == dict.fromkeys(tasks, OutputState.READY)
    assert {output.cluster for output in outputs} == {cluster}


def test_tasks_tell_where_their_output_files_are_and_which_never_began(rig: Rig) -> None:
    agent = rig.cluster("c", graph=a_graph(cores=8))
    send(rig.context, ADMIN.id, INPUTS.frames())
    seal_tree(rig.context, ADMIN.id, INPUTS.name)
    job = rig.submit(an_array(cluster="c")).id
    tasks = lease_tasks(agent, 6)
    agent.report(tasks[0], ObservedState.FAILED, cause=Cause.CLUSTER, reason="no room")
    agent.report(tasks[1], ObservedState.FAILED, cause=Cause.CLUSTER, native_id="7", reason="its node went away")
    agent.report(tasks[2], ObservedState.FAILED, native_id="8", exit_code=3)
    for index in (3, 4, 5):
        agent.report(tasks[index], ObservedState.SUCCEEDED, native_id="9", exit_code=0)
    entry = entry_of(rig, agent)
    tree = seal_tree(rig.context, ADMIN.id, INPUTS.name)
    send_outputs(rig.context, admitted(agent, SEND_OUTPUTS, job, tasks[3].fence), INPUTS)
    record_outputs(rig.context, entry, AttemptOutputs(job, tasks[3].fence, OutputState.READY, tree.root))
    record_outputs(rig.context, entry, AttemptOutputs(job, tasks[4].fence, OutputState.UPLOADING, error="disk full"))
    listed, _ = task_list(rig.context, ADMIN, job, states=frozenset(), after=-1, limit=10)
    assert [task.is_unbegun for task in listed] == [True] + 5 * [False]
    ready = TaskOutputs(OutputState.READY, files=tree.files, bytes=tree.bytes)
    uploading = TaskOutputs(OutputState.UPLOADING, error="disk full")
    assert [task.outputs for task in listed] == [None, None, None, ready, uploading, None]
