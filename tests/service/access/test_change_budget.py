"""One user's recorded changes are bounded: audit rows, consents and events. Others, and revocations, go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard.errors import Throttled
from switchyard.model.cluster.idset import IdSet
from switchyard.model.rules.access import GrantTarget, Role, TokenRequest
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import JobChange
from switchyard.policy.limits import CHANGES_PERIOD_S
from switchyard.server.config.config import Config
from switchyard.server.config.limits_section import LimitsSection, UserLimitsSection
from switchyard.service.access import submit_tokens, user_tokens
from switchyard.service.core.rights import Actor
from switchyard.service.job import job_control, jobs
from switchyard.service.rules import attributes
from switchyard.store.access import access
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig

MOST = 40  # units: four audit rows
KIND = "cluster-resource-attribute"


@pytest.fixture
def rig(sqlite_url: str, tmp_path: Path) -> Iterator[Rig]:
    config = Config(limits=LimitsSection(changes=MOST, users={"vip": UserLimitsSection(changes=0)}))
    rig = Rig(sqlite_url, tmp_path, config=config)
    rig.project("p")
    rig.cluster("c")
    yield rig
    rig.close()


@pytest.fixture
def ann(rig: Rig) -> Actor:
    return rig.user("ann", (Role.ADMIN, GrantTarget.PROJECT, "p"))


def audited(rig: Rig, name: str) -> int:
    with rig.context.database.read() as tx:
        return sum(row.actor == name for row in access.audit_list(tx, before=None, limit=500))


def until_refused(change: Callable[[], object], most: int = MOST + 1) -> int:
    """How many changes pass before one is refused."""
    for count in range(most):
        if is_refused(change):
            return count
    raise AssertionError(f"{most} changes were not refused")


def is_refused(change: Callable[[], object]) -> bool:
    try:
        change()
    except Throttled as exc:
        return exc.limit == "changes" and "`limits.changes`" in exc.detail
    return False


def make_token(rig: Rig, actor: Actor) -> str:
    return user_tokens.token_create(rig.context, actor, TokenRequest()).info.id


def test_audit_rows_of_one_user_are_bounded_and_others_go_on(rig: Rig, ann: Actor) -> None:
    bob = rig.user("bob", (Role.ADMIN, GrantTarget.PROJECT, "p"))
    token = make_token(rig, ann)
    assert until_refused(lambda: make_token(rig, ann)) == 3
    assert audited(rig, "ann") == 4
    make_token(rig, bob)
    rig.clock.wait(CHANGES_PERIOD_S / 4)
    assert until_refused(lambda: make_token(rig, ann)) == 1, "a quarter of the budget is one row"
    # A stolen token that spent the budget can be revoked all the same, once; a repeated revocation counts.
    user_tokens.token_revoke(rig.context, ann, token)
    assert until_refused(lambda: user_tokens.token_revoke(rig.context, ann, token)) == 0


def test_large_values_count_by_their_size(rig: Rig, ann: Actor) -> None:
    def put(size: int) -> None:
        value = {"attributes": {"quota": "x" * size}}
        attributes.put(rig.context, ann, KIND, Scope(project="p", domain="development"), value)

    put(100)
    put(4000)  # overdraws the budget
    assert until_refused(lambda: put(1)) == 0
    attributes.delete_exact(rig.context, ann, KIND, Scope(project="p", domain="development"))


def test_a_consent_that_changes_nothing_is_not_recorded(rig: Rig, ann: Actor) -> None:
    for _ in range(10):
        assert submit_tokens.set_consent(rig.context, ann, "c", is_given=True).is_given
    assert audited(rig, "ann") == 1
    version = rig.context.snapshots.world.version
    for _ in range(10):
        submit_tokens.set_consent(rig.context, ann, "c", is_given=False)
    rig.context.snapshots.refresh()
    assert audited(rig, "ann") == 2
    assert rig.context.snapshots.world.version <= version + 1, "one reload"

    def flip() -> None:
        submit_tokens.set_consent(rig.context, ann, "c", is_given=True)
        submit_tokens.set_consent(rig.context, ann, "c", is_given=False)

    assert until_refused(flip) == 3
    submit_tokens.set_consent(rig.context, ann, "c", is_given=False)


def test_events_that_a_user_makes_at_will_are_bounded(rig: Rig, ann: Actor) -> None:
    job = rig.submit(a_request(project="p", hold=True), actor=ann).id
    before = len(rig.kinds(job))

    def flip() -> None:
        job_control.job_change(rig.context, ann, job, JobChange(hold=True))

    assert until_refused(flip) == MOST
    assert len(rig.kinds(job)) == before + MOST
    for asked in (-1, -1, -1):
        job_control.job_change(rig.context, ADMIN, job, JobChange(priority=asked))
    assert rig.kinds(job).count("priority") == 1, "the same priority is no change"
    array = rig.submit(a_request(project="p", array="0-9", hold=True), actor=ann).id
    with pytest.raises(Throttled):
        job_control.tasks_cancel(rig.context, ann, array, IdSet.parse("3"))
    for _ in range(5):
        jobs.job_cancel(rig.context, ann, array, "")
    assert rig.kinds(array).count("cancel-requested") <= 1


def test_an_administrator_and_a_user_without_the_limit_are_not_bounded(rig: Rig) -> None:
    vip = rig.user("vip")
    for actor in (ADMIN, vip):
        job = rig.submit(a_request(hold=True), actor=actor).id
        for _ in range(MOST + 2):
            job_control.job_change(rig.context, actor, job, JobChange(hold=True))
