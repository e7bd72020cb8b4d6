"""Jobs that name trees: alone, in bulk, as arrays, as retries; and the limits of projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from switchyard.errors import BadValue, LimitReached, UnknownName
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.files.files import AttemptOutputs, FileUsage, JobFiles, ObjectsQuery, OutputState
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import BulkRequest, RetryRequest
from switchyard.server.config.config import Config, FilesSection
from switchyard.service.core.agents.agent_calls import SEND_OUTPUTS
from switchyard.service.files.output_room import output_room
from switchyard.service.files.outputs import files_of_job, files_usage, record_outputs
from switchyard.service.files.reading import plan_job_read
from switchyard.service.files.seal import seal_tree
from switchyard.service.job import jobs
from switchyard.service.submit.retry import retry_job
from tests.service.files.trees import Tree, a_tree, admitted, send, send_outputs, with_files
from tests.service.rig import ADMIN, Rig, running


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path, config=Config(files=FilesSection(project_bytes=1000))) as rig:
        yield rig


def sealed(rig: Rig, tree: Tree, owner: str = ADMIN.id) -> Tree:
    send(rig.context, owner, tree.frames())
    assert seal_tree(rig.context, owner, tree.name).missing == []
    return tree


def test_a_tree_by_task_has_a_folder_for_each_index(rig: Rig) -> None:
    rig.cluster("c")
    tree = sealed(rig, a_tree({**{str(index): {"in": b"%d" % index} for index in (0, 2, 4)}, "3": b"a file", "01": {}}))
    files = JobFiles(task_tree=tree.name)
    rig.submit(with_files(files, array="0-4:2"))
    rig.submit(with_files(files, array="2"))
    for array, words in (("0-4", "task 1"), ("3", "task 3"), ("0,6", "task 6")):
        error = rig.failure(rig.decided(with_files(files, array=array)))
        assert isinstance(error, BadValue)
        assert words in error.detail
    error = rig.failure(rig.decided(with_files(files)))
    assert isinstance(error, BadValue)
    assert "no array" in error.detail
    assert isinstance(rig.failure(rig.decided(with_files(JobFiles(tree="0" * 64)))), UnknownName)


def test_outputs_of_tasks_are_listed_by_task_and_in_pages(rig: Rig) -> None:
    agent = rig.cluster("c")
    job = rig.submit(with_files(JobFiles(out=["*"]), array="10-14"))
    entry = rig.context.snapshots.fleet.agents[agent.id]
    leases: dict[int, int] = {}
    for lease in agent.lease(10):
        assert lease.lo is not None
        assert lease.hi is not None
        leases |= {index: lease.fence + index - lease.lo for index in range(lease.lo, lease.hi + 1)}
    assert len(leases) == 5
    for index, fence in leases.items():
        tree = a_tree({"out": b"%d" % index})
        send_outputs(rig.context, admitted(agent, SEND_OUTPUTS, job.id, fence), tree)
        record_outputs(rig.context, entry, AttemptOutputs(job.id, fence, OutputState.READY, tree.name))
    first = files_of_job(rig.context, ADMIN, job.id, task=None, cursor=None, limit=3)
    rest = files_of_job(rig.context, ADMIN, job.id, task=None, cursor=first.next, limit=3)
    assert [output.task for output in first.outputs + rest.outputs] == [10, 11, 12, 13, 14]
    assert rest.next is None
    (only,) = files_of_job(rig.context, ADMIN, job.id, task=12, cursor=None, limit=3).outputs
    assert (only.fence, only.cluster) == (leases[12], "c")
    assert rig.kinds(job.id).count("task-outputs-ready") == 5
    counts = rig.job(job.id).outputs
    assert counts is not None
    assert (counts.ready, counts.files) == (5, 5)


def test_bulk_jobs_with_files_are_checked_one_by_one_or_together(rig: Rig) -> None:
    rig.cluster("c")
    tree = sealed(rig, a_tree({"x": b"x"}))
    good, bad = with_files(JobFiles(tree=tree.name)), with_files(JobFiles(tree="1" * 64))
    raw = [msgspec.Raw(msgspec.json.encode(request)) for request in (good, bad, good)]
    bulk = rig.yard.services.bulk
    accepted = rig.committer.do(bulk.decide(ADMIN, BulkRequest(raw, each=True), key=None, body=b""))
    assert (accepted.answer.made, accepted.answer.refused) == (2, 1)
    assert accepted.answer.items[1].problem.code == "unknown-name"
    assert isinstance(rig.failure(bulk.decide(ADMIN, BulkRequest(raw, each=False), key=None, body=b"")), UnknownName)
    for position in (0, 2):
        job = accepted.answer.items[position].job
        assert plan_job_read(rig.context, ADMIN, job.id, ObjectsQuery(tree.name, [tree.name])).digests == [tree.root]


def test_who_retries_a_job_of_another_has_its_files(rig: Rig) -> None:
    agent = rig.cluster("c")
    rig.project("lab")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "lab"))
    boss = rig.user("boss", (Role.OPERATE, GrantTarget.PROJECT, "lab"))
    tree = sealed(rig, a_tree({"x": b"x"}), ann.id)
    request = with_files(JobFiles(tree=tree.name), project="lab")
    job = rig.submit(request, actor=ann)
    agent.report(agent.lease_one(), ObservedState.FAILED, exit_code=1)
    assert rig.job(job.id).state == "FAILED"
    for actor in (ann, boss):
        again = retry_job(rig.context, rig.submits, actor, job.id, RetryRequest())
        plan_job_read(rig.context, actor, again.id, ObjectsQuery(tree.name, [tree.name]))
        jobs.job_cancel(rig.context, ADMIN, again.id, "")
    with pytest.raises(UnknownName):  # Zoe knows only the hash
        raise rig.failure(rig.decided(request, actor=rig.user("zoe", (Role.SUBMIT, GrantTarget.PROJECT, "lab"))))


def test_trees_over_the_limit_of_a_project_are_refused_and_outputs_over_it_too(rig: Rig) -> None:
    agent = rig.cluster("c")
    first, second = (sealed(rig, a_tree({"x": letter * 600})) for letter in (b"a", b"b"))
    jobs_of_first = [rig.submit(with_files(JobFiles(tree=first.name, out=["*"]))).id for _ in range(3)]  # counted once
    assert files_usage(rig.context, ADMIN, "default").project == FileUsage(600, 1000, 1)
    error = rig.failure(rig.decided(with_files(JobFiles(tree=second.name))))
    assert isinstance(error, LimitReached)
    assert error.limit == "files.project_bytes"
    entry = rig.context.snapshots.fleet.agents[agent.id]
    (lease, *_) = agent.lease(10)
    agent.report(AttemptRef(lease.job, lease.fence), ObservedState.SUCCEEDED, exit_code=0)
    attempt = admitted(agent, SEND_OUTPUTS, lease.job, lease.fence)
    send_outputs(rig.context, attempt, second)
    room = output_room(rig.context, attempt)
    assert room.project is not None
    assert (room.project.left, "over the limit of project default of 1000B" in room.project.text) == (400, True)
    with pytest.raises(LimitReached, match=r"files\.project_bytes"):
        record_outputs(rig.context, entry, AttemptOutputs(lease.job, lease.fence, OutputState.READY, second.name))
    assert files_of_job(rig.context, ADMIN, lease.job, task=None, cursor=None, limit=9).outputs == []
    assert (lease.job in jobs_of_first, rig.job(lease.job).state) == (True, "SUCCEEDED")

    # Outputs that an agent sends again, because some did not fit, take the place of the earlier ones.
    for size, left in ((300, 400), (400, 400)):
        tree = a_tree({"x": b"c" * size})
        send_outputs(rig.context, attempt, tree)
        ready = AttemptOutputs(lease.job, lease.fence, OutputState.READY, tree.name, retry_s=60)
        record_outputs(rig.context, entry, ready)
        room = output_room(rig.context, attempt)
        assert room.project is not None
        assert (room.project.left, files_usage(rig.context, ADMIN, "default").project) == (
            left,
            FileUsage(600 + size, 1000, 2),
        )
