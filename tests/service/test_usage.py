"""What users have on the yard: counted from the database, and given back when it goes. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import LimitReached
from switchyard.model.cluster.poll import OutputChunk
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.server.config.config import read_config
from switchyard.service.core.rights import Actor
from switchyard.service.job import jobs
from switchyard.service.run import logs
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.store.jobs import usage as store
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent, running

DAY_US, DAY_S = 86_400_000_000, 86_400
CONFIG = "limits: {jobs: 3, tasks: 20, bytes: 12KiB, users: {bob: {jobs: 1}}}"


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path, config=read_config(CONFIG, where="test")) as made:
        yield made


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    return rig.cluster("alpha")


@pytest.fixture
def ann(rig: Rig, agent: RigAgent) -> Actor:
    return rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "default"))


def look(rig: Rig) -> None:
    rig.context.usage.refresh(rig.context.database, rig.context.committer)


def stored(rig: Rig, owner: str) -> int:
    look(rig)
    with rig.context.database.read() as tx:
        return store.bytes_read(tx, [owner]).get(owner, 0)


def test_live_jobs_are_bounded_and_a_job_that_ends_makes_room(rig: Rig, ann: Actor) -> None:
    made = [rig.submit(actor=ann).id for _ in range(3)]
    with pytest.raises(LimitReached, match="`jobs`"):
        rig.submit(actor=ann)
    jobs.job_cancel(rig.context, ann, made[0], "")
    look(rig)
    rig.submit(actor=ann)
    with pytest.raises(LimitReached):
        rig.submit(actor=ann)


def test_a_server_that_starts_anew_asks_the_database(rig: Rig, ann: Actor) -> None:
    for _ in range(3):
        rig.submit(actor=ann)
    rig.context.usage._users.clear()
    rig.context.usage._active_users.add("ann")
    look(rig)
    with pytest.raises(LimitReached, match="you have 3"):
        rig.submit(actor=ann)


def test_a_no_is_not_said_before_the_database_was_asked(rig: Rig, ann: Actor) -> None:
    """Nobody tells a server that jobs have ended: what it remembers of yesterday must refuse nobody today."""
    made = [rig.submit(actor=ann).id for _ in range(3)]
    look(rig)
    for job in made:
        jobs.job_cancel(rig.context, ann, job, "")
    rig.context.usage._round += 1  # a second later
    rig.submit(actor=ann)


def test_tasks_of_arrays_are_bounded_by_themselves(rig: Rig, ann: Actor) -> None:
    rig.submit(a_request(array="0-19"), actor=ann)
    rig.submit(actor=ann)
    with pytest.raises(LimitReached, match="`tasks`"):
        rig.submit(a_request(array="5"), actor=ann)


def test_users_by_name_and_administrators_have_other_limits(rig: Rig, ann: Actor) -> None:
    bob = rig.user("bob", (Role.SUBMIT, GrantTarget.PROJECT, "default"))
    rig.submit(actor=bob)
    with pytest.raises(LimitReached, match="one user may have 1"):
        rig.submit(actor=bob)
    for _ in range(5):
        rig.submit(actor=ADMIN)
    rig.submit(actor=ann)


def test_stored_bytes_are_summed_and_given_back_with_the_job(rig: Rig, agent: RigAgent, ann: Actor) -> None:
    job = rig.submit(actor=ann).id
    spec = len(rig.row(job).spec)
    assert stored(rig, "ann") == JOB_OVERHEAD_BYTES + spec
    held = agent.lease_one()
    for offset in (0, 500, 0):
        chunk = OutputChunk(held.job, held.fence, "stdout", offset, b"x" * 1000)
        rig.committer.do(agent.write(output=[chunk]))
    assert stored(rig, "ann") == JOB_OVERHEAD_BYTES + spec + 1500, "what comes twice is kept once"
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    chore = RetentionChore(RetentionTerms(jobs_us=30 * DAY_US, logs_us=7 * DAY_US))
    while chore.go(rig.context, rig.leader):
        pass
    assert stored(rig, "ann") == 0


def test_output_over_the_limit_is_left_out_and_submits_are_refused(rig: Rig, agent: RigAgent, ann: Actor) -> None:
    job = rig.submit(actor=ann).id
    held = agent.lease_one()
    for place in range(4):
        chunk = OutputChunk(held.job, held.fence, "stdout", place * 8192, b"x" * 8192)
        rig.committer.do(agent.write(output=[chunk]))
    assert logs.job_output(rig.context, ann, job, "stdout").size == 2 * 8192, (
        "one passes the limit, the rest is left out"
    )
    with pytest.raises(LimitReached, match="`bytes`"):
        rig.submit(actor=ann)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    assert rig.job(job).state == "SUCCEEDED"


def test_what_an_administrators_jobs_write_has_no_limit(rig: Rig, agent: RigAgent) -> None:
    job = rig.submit(actor=ADMIN).id
    held = agent.lease_one()
    for place in range(4):
        chunk = OutputChunk(held.job, held.fence, "stdout", place * 8192, b"x" * 8192)
        rig.committer.do(agent.write(output=[chunk]))
    assert logs.job_output(rig.context, ADMIN, job, "stdout").size == 4 * 8192


def test_a_refused_submit_changes_nothing(rig: Rig, ann: Actor) -> None:
    before = stored(rig, "ann")
    with pytest.raises(LimitReached):
        rig.submit(a_request(array="0-99"), actor=ann)
    assert stored(rig, "ann") == before
    rig.submit(actor=ann)
