"""Removing agents that still have output files to send: what counts as unsent, and whose files are given up."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.errors import Conflict
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.files.files import AttemptOutputs, JobFiles, OutputSet, OutputState
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster.agents import agent_remove
from switchyard.service.cluster.clusters import cluster_delete
from switchyard.service.core.agents.agent_calls import SEND_OUTPUTS
from switchyard.service.core.rights import Actor
from switchyard.service.files.outputs import files_of_job, record_outputs
from switchyard.store.tables.files_tables import file_outputs
from tests.builders import a_request
from tests.service.files.trees import a_tree, admitted, send_outputs
from tests.service.rig import ADMIN, Rig, RigAgent

RETRY_S = 60


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    rig.project("lab")
    return rig.cluster("c")


@pytest.fixture
def ann(rig: Rig, agent: RigAgent) -> Actor:
    return rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "lab"), (Role.SUBMIT, GrantTarget.CLUSTER, "c"))


def ended_job(rig: Rig, ann: Actor, agent: RigAgent) -> AttemptRef:
    request = a_request(project="lab", cluster="c")
    spec = msgspec.structs.replace(request.spec, files=JobFiles(out=["*.csv"]))
    rig.submit(msgspec.structs.replace(request, spec=spec), actor=ann)
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    return held


def tell(rig: Rig, agent: RigAgent, held: AttemptRef, state: OutputState, *, retry_s: int = 0) -> None:
    entry = rig.context.snapshots.fleet.agents[agent.id]
    root = None
    if state is OutputState.READY:
        tree = a_tree({"result.csv": b"42\n"})
        send_outputs(rig.context, admitted(agent, SEND_OUTPUTS, held.job, held.fence), tree)
        root = tree.name
    record_outputs(rig.context, entry, AttemptOutputs(held.job, held.fence, state, root, retry_s=retry_s))


def output_of(rig: Rig, ann: Actor, held: AttemptRef) -> OutputSet:
    (output,) = files_of_job(rig.context, ann, held.job, task=None, cursor=None, limit=10).outputs
    return output


@pytest.mark.parametrize("is_cluster", [False, True])
def test_files_that_did_not_fit_are_unsent_while_the_agent_tries_again(
    rig: Rig, ann: Actor, agent: RigAgent, is_cluster: bool
) -> None:
    def remove(*, abandon: bool = False) -> int:
        if is_cluster:
            return cluster_delete(rig.context, ADMIN, "c", abandon=abandon)
        return agent_remove(rig.context, ADMIN, agent.id, abandon=abandon)

    part, refused, over = (ended_job(rig, ann, agent) for _ in range(3))
    tell(rig, agent, part, OutputState.READY, retry_s=RETRY_S)
    tell(rig, agent, refused, OutputState.FAILED, retry_s=RETRY_S)
    tell(rig, agent, over, OutputState.FAILED)
    with pytest.raises(Conflict, match="output files of 2 attempts"):
        remove()
    assert remove(abandon=True) == 2
    left = output_of(rig, ann, part)
    assert (left.state, left.files) == (OutputState.READY, 1), "what was sent can be fetched"
    assert left.error.endswith("was removed before it sent all of them")
    lost = output_of(rig, ann, refused)
    assert lost.state is OutputState.FAILED
    assert lost.error.endswith("was removed before it sent them")
    assert output_of(rig, ann, over).error == ""


def test_an_agent_can_be_removed_once_it_has_sent_the_rest_or_no_longer_tries(
    rig: Rig, ann: Actor, agent: RigAgent
) -> None:
    sent, given_up = ended_job(rig, ann, agent), ended_job(rig, ann, agent)
    tell(rig, agent, sent, OutputState.READY, retry_s=RETRY_S)
    tell(rig, agent, sent, OutputState.READY)
    tell(rig, agent, given_up, OutputState.READY, retry_s=RETRY_S)
    rig.clock.wait(RETRY_S + 1)
    assert agent_remove(rig.context, ADMIN, agent.id) == 0
    assert output_of(rig, ann, given_up).error == ""


def test_outputs_of_no_known_agent_are_given_up_with_the_last_agent_of_their_cluster(
    rig: Rig, ann: Actor, agent: RigAgent
) -> None:
    held = ended_job(rig, ann, agent)
    tell(rig, agent, held, OutputState.UPLOADING)
    with rig.context.database.write() as tx:  # as a server that noted no agents left it
        tx.execute(file_outputs.update().values(agent_id=None))
    other = rig.join("c", "other", journal="another")
    assert agent_remove(rig.context, ADMIN, other.id) == 0
    assert output_of(rig, ann, held).state is OutputState.UPLOADING
    with pytest.raises(Conflict, match="output files of 1 attempt yet"):
        agent_remove(rig.context, ADMIN, agent.id)
    assert agent_remove(rig.context, ADMIN, agent.id, abandon=True) == 1
    assert output_of(rig, ann, held).state is OutputState.FAILED
