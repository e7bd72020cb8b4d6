"""Files that no job needs are removed, others never; and nothing is lost to an upload at the same moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from switchyard.errors import Busy, NotFound, UnknownName
from switchyard.model.files.files import AttemptOutputs, JobFiles, ObjectsQuery, OutputState
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.wire.api import RetryRequest
from switchyard.server.config.config import Config, FilesSection
from switchyard.service.core.agents.agent_calls import SEND_OUTPUTS
from switchyard.service.core.rights import Actor
from switchyard.service.files.intake import ObjectIntake
from switchyard.service.files.outputs import files_of_job, files_usage, record_outputs
from switchyard.service.files.possession import missing_objects
from switchyard.service.files.reading import plan_job_read
from switchyard.service.files.seal import seal_tree
from switchyard.service.submit.retry import retry_job
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.service.upkeep.leadership import RETENTION_COUNTER
from switchyard.store.files import file_collection, file_objects
from switchyard.store.jobs import events
from tests.builders import a_request
from tests.service.files.trees import Tree, a_tree, admitted, send, send_outputs
from tests.service.rig import ADMIN, Rig, running

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path, config=Config(files=FilesSection(grace="24h", keep="3d"))) as rig:
        rig.cluster("c")
        yield rig


def collect(rig: Rig, chore: FileCollection | None = None) -> None:
    """All that is to be removed now. The lead is taken again: hours may have passed."""
    rig.leader.take(rig.context)
    rig.committer.call(lambda batch: events.counter_set(batch.tx, RETENTION_COUNTER, 0))
    chore = chore or FileCollection()
    while chore.go(rig.context, rig.leader):
        pass


def later(rig: Rig, seconds: float) -> None:
    rig.clock.wait(seconds)


def stored(rig: Rig) -> set[bytes]:
    return {item.digest for item in rig.context.files.store.list()}


def sealed(rig: Rig, tree: Tree, owner: str = ADMIN.id) -> Tree:
    send(rig.context, owner, tree.frames())
    assert seal_tree(rig.context, owner, tree.name).missing == []
    return tree


def with_tree(tree: Tree) -> JobRequest:
    request = a_request()
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, files=JobFiles(tree=tree.name)))


def used(rig: Rig, actor: Actor = ADMIN) -> int:
    return files_usage(rig.context, actor, None).user.bytes


def test_what_no_job_needs_goes_after_the_grace_and_what_a_job_needs_stays(rig: Rig) -> None:
    agent = rig.join("c", "second")
    agent.sync()
    shared = b"in both trees"
    needed, idle = sealed(rig, a_tree({"a": shared, "b": b"b"})), sealed(rig, a_tree({"a": shared, "c": b"c"}))
    unsealed = a_tree({"d": b"never submitted"})
    send(rig.context, ADMIN.id, unsealed.frames())
    job = rig.submit(with_tree(needed))
    everything = needed.objects.keys() | idle.objects.keys() | unsealed.objects.keys()
    later(rig, 23 * HOUR)
    collect(rig)
    assert stored(rig) == everything
    later(rig, 2 * HOUR)
    collect(rig)
    assert stored(rig) == set(needed.objects)
    assert used(rig) == sum(map(len, needed.objects.values()))
    later(rig, 40 * DAY)  # a job may wait or run for months
    collect(rig)
    assert stored(rig) == set(needed.objects)

    agent.seen()
    held = agent.lease_one()
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    left = a_tree({"out": b"result"})
    send_outputs(rig.context, admitted(agent, SEND_OUTPUTS, job.id, held.fence), left)
    entry = rig.context.snapshots.fleet.agents[agent.id]
    record_outputs(rig.context, entry, AttemptOutputs(job.id, held.fence, OutputState.READY, left.name))
    later(rig, 2 * DAY)
    collect(rig)
    assert stored(rig) == needed.objects.keys() | left.objects.keys()
    plan_job_read(rig.context, ADMIN, job.id, ObjectsQuery(left.name, [left.name]))
    later(rig, 2 * DAY)  # past `keep`
    collect(rig)
    assert (stored(rig), used(rig)) == (set(), 0)
    (output,) = files_of_job(rig.context, ADMIN, job.id, task=None, cursor=None, limit=9).outputs
    assert (output.state, output.root) == (OutputState.FAILED, None)
    assert "files.keep" in output.error
    with pytest.raises(NotFound):
        plan_job_read(rig.context, ADMIN, job.id, ObjectsQuery(left.name, [left.name]))
    # Nothing of it is left in the database; the tree can be sent again.
    later(rig, 2 * HOUR)
    collect(rig)
    with rig.context.database.read() as tx:
        assert file_objects.stored_totals(tx).objects == 0
        assert file_collection.removals_open(tx, 9) == []
    error = rig.failure(rig.decided(with_tree(needed)))
    assert isinstance(error, UnknownName)
    assert (
        "you have not uploaded it, or it has expired (files of a job are kept for 3 days after its end; "
        in error.detail
    )
    with pytest.raises(
        UnknownName, match=f"The files of job {job.id} have expired .files of a job are kept for 3 days"
    ):
        retry_job(rig.context, rig.submits, ADMIN, job.id, RetryRequest())
    sealed(rig, needed)
    retry_job(rig.context, rig.submits, ADMIN, job.id, RetryRequest())


def test_each_use_keeps_files_for_another_grace(rig: Rig) -> None:
    loose = a_tree({"x": b"x"})
    send(rig.context, ADMIN.id, loose.frames())
    tree = sealed(rig, a_tree({"y": b"y"}))
    names = [digest.hex() for digest in loose.objects]
    for _ in range(3):
        later(rig, 20 * HOUR)
        assert missing_objects(rig.context, ADMIN.id, names).missing == []
        assert seal_tree(rig.context, ADMIN.id, tree.name).missing == []
        collect(rig)
    assert stored(rig) == loose.objects.keys() | tree.objects.keys()


def test_objects_of_two_users_are_counted_and_removed_for_each(rig: Rig) -> None:
    ann, ben = rig.user("ann"), rig.user("ben")
    tree = a_tree({"x": b"shared"})
    size = sum(map(len, tree.objects.values()))
    sealed(rig, tree, ann.id)
    later(rig, 23 * HOUR)
    sealed(rig, tree, ben.id)
    assert (used(rig, ann), used(rig, ben)) == (size, size)
    later(rig, 2 * HOUR)
    collect(rig)
    assert (used(rig, ann), used(rig, ben), stored(rig)) == (0, size, set(tree.objects))
    assert seal_tree(rig.context, ann.id, tree.name).missing == [tree.name]
    later(rig, DAY)
    collect(rig)
    assert (used(rig, ben), stored(rig)) == (0, set())


def test_an_object_that_only_the_store_knows_is_removed_after_the_grace(rig: Rig) -> None:
    """As after a server that was killed between the store and the database."""
    tree, store = a_tree({"x": b"an upload that was cut off"}), rig.context.files.store
    store.put_many(tree.objects.items())
    collect(rig)
    assert stored(rig) == set(tree.objects)
    later(rig, 25 * HOUR)
    collect(rig)
    assert stored(rig) == set()


def test_an_upload_while_its_object_is_removed_is_sent_again(rig: Rig) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, ADMIN.id, tree.frames())
    later(rig, 25 * HOUR)
    intake = ObjectIntake(rig.context, ADMIN.id)
    intake.begin()
    intake.feed(tree.frames())
    intake.flush()  # the store has it: nothing is written
    collect(rig)
    assert stored(rig) == set()
    with pytest.raises(Busy):
        intake.record()
    later(rig, 1)
    sealed(rig, tree)
    assert stored(rig) == set(tree.objects)


def test_a_removal_that_a_crash_cut_off_is_finished(rig: Rig) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, ADMIN.id, tree.frames())
    later(rig, 25 * HOUR)
    before_us = rig.clock() - int(DAY * 1_000_000)

    def give_up(batch: object) -> None:
        tx, pairs = batch.tx, [(digest, ADMIN.id) for digest in tree.objects]  # type: ignore[attr-defined]
        file_collection.holders_delete(tx, pairs, used_before_us=before_us)
        file_collection.objects_delete(tx, tree.objects, used_before_us=before_us, now_us=rig.clock())

    rig.committer.call(give_up)
    with pytest.raises(Busy):
        send(rig.context, ADMIN.id, tree.frames())
    collect(rig)
    assert stored(rig) == set()
    later(rig, 1)
    sealed(rig, tree)


def test_nothing_is_removed_while_the_clock_is_in_doubt(rig: Rig) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, ADMIN.id, tree.frames())
    later(rig, 25 * HOUR)
    until_us = rig.clock() + 3_600_000_000
    rig.committer.call(lambda batch: events.counter_set(batch.tx, RETENTION_COUNTER, until_us))
    FileCollection().go(rig.context, rig.leader)
    assert stored(rig) == set(tree.objects)


@pytest.mark.parametrize("seed", range(2))
def test_random_uploads_seals_and_submits_between_steps_of_the_collection(rig: Rig, seed: int) -> None:
    """Whatever was said to be there is there: a tree that was sealed can be submitted, and all of it is readable."""
    draw = random.Random(seed)
    trees = [
        a_tree({"shared": b"s", f"{number % 3}": b"%d" % (number % 3), "own": b"own %d" % number})
        for number in range(6)
    ]
    chore, jobs = FileCollection(), list[tuple[str, Tree]]()
    for _ in range(20):
        tree = draw.choice(trees)
        answer = seal_tree(rig.context, ADMIN.id, tree.name)
        while answer.missing:
            try:
                send(rig.context, ADMIN.id, tree.frames(*map(bytes.fromhex, answer.missing)))
            except Busy:
                collect(rig, chore)
                later(rig, 1)
            answer = seal_tree(rig.context, ADMIN.id, tree.name)
        later(rig, draw.choice((0, HOUR, 11 * HOUR)))
        collect(rig, chore)
        if draw.random() < 0.3:
            jobs.append((rig.submit(with_tree(tree)).id, tree))
        later(rig, draw.choice((0, 6 * HOUR, 20 * HOUR)))
    for job, tree in jobs:
        plan = plan_job_read(
            rig.context, ADMIN, job, ObjectsQuery(tree.name, [digest.hex() for digest in tree.objects])
        )
        assert stored(rig) >= set(plan.digests)
