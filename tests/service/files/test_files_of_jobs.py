"""Files of jobs from the upload to the outputs: who may use what, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.errors import Conflict, NotFound, UnknownName
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.files.file_frames import FrameKind, decode_frames
from switchyard.model.files.files import AttemptOutputs, JobFiles, ObjectsQuery, OutputState
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import agents
from switchyard.service.core.agents.agent_calls import READ_INPUTS, SEND_OUTPUTS
from switchyard.service.core.rights import Actor
from switchyard.service.files.outputs import files_of_job, record_outputs
from switchyard.service.files.possession import missing_objects
from switchyard.service.files.reading import ObjectPlan, object_frames, plan_agent_read, plan_job_read
from switchyard.service.files.seal import seal_tree
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.files.trees import Link, Tree, a_tree, admitted, send, send_outputs
from tests.service.rig import ADMIN, Rig, RigAgent

FOLDER = {"train.py": b"print(1)\n", "data": {"a.csv": b"1,2\n", "again.csv": b"1,2\n"}, "latest": Link("data/a.csv")}


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    rig.project("lab")
    return rig.cluster("c")


@pytest.fixture
def ann(rig: Rig, agent: RigAgent) -> Actor:
    return rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "lab"), (Role.SUBMIT, GrantTarget.CLUSTER, "c"))


def with_files(tree: Tree, **more: object) -> JobRequest:
    request = a_request(project="lab", cluster="c")
    files = JobFiles(tree=tree.name, out=["*.csv"])
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, files=files), **more)


def sealed(rig: Rig, owner: Actor, tree: Tree) -> Tree:
    send(rig.context, owner.id, tree.frames())
    answer = seal_tree(rig.context, owner.id, tree.name)
    assert (answer.missing, answer.files, answer.bytes) == ([], tree.files, tree.size)
    return tree


def contents(rig: Rig, plan: ObjectPlan) -> dict[bytes, bytes]:
    pieces, at = [], 0
    while at < len(plan.digests):
        parts, at = object_frames(rig.context, plan, at, bytes_max=20)
        pieces += parts
    return {frame.digest: frame.data for frame in decode_frames(pieces) if frame.kind is FrameKind.CONTENT}


def test_a_job_brings_files_along_and_its_owner_reads_what_it_leaves(rig: Rig, ann: Actor, agent: RigAgent) -> None:
    tree = a_tree(FOLDER)
    names = [digest.hex() for digest in tree.objects]
    assert missing_objects(rig.context, ann.id, names).missing == names
    assert seal_tree(rig.context, ann.id, tree.name).missing == [tree.name]
    sealed(rig, ann, tree)
    assert missing_objects(rig.context, ann.id, names).missing == []
    job = rig.submit(with_files(tree), actor=ann)

    held = agent.lease_one()
    entry = rig.context.snapshots.fleet.agents[agent.id]
    query = ObjectsQuery(tree.name, names)
    assert (
        contents(rig, plan_agent_read(rig.context, admitted(agent, READ_INPUTS, job.id, held.fence), query))
        == tree.objects
    )

    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    left = a_tree({"result.csv": b"42\n"})
    attempt = admitted(agent, SEND_OUTPUTS, job.id, held.fence)
    uploading = AttemptOutputs(job.id, held.fence, OutputState.UPLOADING)
    record_outputs(rig.context, entry, uploading)
    ready = AttemptOutputs(job.id, held.fence, OutputState.READY, left.name)
    with pytest.raises(UnknownName):
        record_outputs(rig.context, entry, ready)
    send_outputs(rig.context, attempt, left)
    record_outputs(rig.context, entry, ready)
    record_outputs(rig.context, entry, ready)
    record_outputs(rig.context, entry, uploading)  # delayed on its way

    files = files_of_job(rig.context, ann, job.id, task=None, cursor=None, limit=10)
    assert (files.tree, files.out) == (tree.name, ["*.csv"])
    (output,) = files.outputs
    assert (output.state, output.root, output.files, output.cluster) == (OutputState.READY, left.name, 1, "c")
    assert contents(
        rig, plan_job_read(rig.context, ann, job.id, ObjectsQuery(left.name, [d.hex() for d in left.objects]))
    )
    assert rig.kinds(job.id).count("outputs-ready") == 1
    counts = rig.job(job.id).outputs
    assert counts is not None
    assert (counts.ready, counts.files) == (1, 1)


def test_a_known_hash_is_no_right_to_its_content(rig: Rig, ann: Actor, agent: RigAgent) -> None:
    tree = a_tree(FOLDER)
    ben = rig.user("ben", (Role.SUBMIT, GrantTarget.PROJECT, "lab"), (Role.SUBMIT, GrantTarget.CLUSTER, "c"))
    sealed(rig, ann, tree)
    names = [digest.hex() for digest in tree.objects]
    assert missing_objects(rig.context, ben.id, names).missing == names
    assert seal_tree(rig.context, ben.id, tree.name).missing == [tree.name]
    assert isinstance(rig.failure(rig.decided(with_files(tree), actor=ben)), UnknownName)
    # The folder is Ben's, a file in it is not.
    chunk = next(iter(tree.objects))
    send(rig.context, ben.id, tree.frames(*(digest for digest in tree.objects if digest != chunk)))
    assert seal_tree(rig.context, ben.id, tree.name).missing == [chunk.hex()]
    # A job of Ben opens no other tree, and no other object.
    own = sealed(rig, ben, a_tree({"x": b"x"}))
    job = rig.submit(with_files(own), actor=ben)
    held = agent.lease_one()
    with pytest.raises(NotFound):
        plan_job_read(rig.context, ben, job.id, ObjectsQuery(tree.name, names))
    for digest in (chunk, b"\0" * 32):
        with pytest.raises(NotFound, match="have no object"):
            plan_job_read(rig.context, ben, job.id, ObjectsQuery(own.name, [digest.hex()]))
        with pytest.raises(NotFound):
            plan_agent_read(
                rig.context, admitted(agent, READ_INPUTS, job.id, held.fence), ObjectsQuery(own.name, [digest.hex()])
            )
    with pytest.raises(NotFound):
        files_of_job(rig.context, rig.user("eve"), job.id, task=None, cursor=None, limit=10)


def test_an_agent_has_files_of_its_own_attempts_alone(rig: Rig, ann: Actor, agent: RigAgent) -> None:
    tree = sealed(rig, ann, a_tree(FOLDER))
    other = rig.cluster("d")
    job = rig.submit(with_files(tree), actor=ann)
    beside = rig.join("c", "beside", journal="j2")
    beside.sync()
    with pytest.raises(NotFound):  # not leased yet
        admitted(agent, READ_INPUTS, job.id, rig.row(job.id).fence)
    first = agent.lease_one()
    admitted(agent, READ_INPUTS, job.id, first.fence)
    second = _lost_and_again(agent, first)
    with pytest.raises(Conflict, match="has ended"):
        admitted(agent, READ_INPUTS, job.id, first.fence)
    for fence in (first.fence, second.fence):  # outputs of an attempt may come after the next one began
        assert admitted(agent, SEND_OUTPUTS, job.id, fence).owner == ann.id
    for asker, name, fence in (
        (other, job.id, first.fence),
        (beside, job.id, first.fence),
        (agent, job.id, second.fence + 1),
        (agent, job.id, 0),
        (agent, "0" * 26, first.fence),
    ):
        for rule in (READ_INPUTS, SEND_OUTPUTS):
            with pytest.raises(NotFound):
                admitted(asker, rule, name, fence)
        entry = rig.context.snapshots.fleet.agents[asker.id]
        with pytest.raises(NotFound):
            record_outputs(rig.context, entry, AttemptOutputs(name, fence, OutputState.UPLOADING))
    agents.agent_remove(rig.context, ADMIN, agent.id, abandon=True)
    beside.seen()
    assert admitted(beside, SEND_OUTPUTS, job.id, first.fence), "it sends what a removed agent of the cluster has left"


def test_the_stored_outputs_of_an_ended_attempt_never_change(rig: Rig, ann: Actor, agent: RigAgent) -> None:
    job = rig.submit(with_files(sealed(rig, ann, a_tree(FOLDER))), actor=ann)
    held = agent.lease_one()
    entry = rig.context.snapshots.fleet.agents[agent.id]
    true, forged = a_tree({"result.csv": b"42"}), a_tree({"result.csv": b"43"})
    attempt = admitted(agent, SEND_OUTPUTS, job.id, held.fence)
    for tree in (true, forged):
        send_outputs(rig.context, attempt, tree)
    ready = AttemptOutputs(job.id, held.fence, OutputState.READY, true.name)
    record_outputs(rig.context, entry, ready)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    record_outputs(rig.context, entry, ready)  # its answer was lost
    with pytest.raises(Conflict, match="do not change any more"):
        record_outputs(rig.context, entry, AttemptOutputs(job.id, held.fence, OutputState.READY, forged.name))
    with pytest.raises(Conflict, match="do not change any more"):
        admitted(agent, SEND_OUTPUTS, job.id, held.fence)
    record_outputs(rig.context, entry, AttemptOutputs(job.id, held.fence, OutputState.FAILED, error="gone"))
    (output,) = files_of_job(rig.context, ann, job.id, task=None, cursor=None, limit=10).outputs
    assert (output.state, output.root) == (OutputState.READY, true.name)


def _lost_and_again(agent: RigAgent, held: AttemptRef) -> AttemptRef:
    agent.report(held, ObservedState.RETURNED, reason="the partition is down")
    route_pending(agent.rig.context, agent.rig.leader)
    return agent.lease_one()
