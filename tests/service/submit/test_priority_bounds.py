"""No door gives a user's job a higher priority than the rules allow: submit, plan, bulk, change, retry, Rainbow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.errors import Denied, PolicyRefused
from switchyard.features.rainbow.service import rainbow
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import BulkRequest, JobChange, RetryRequest
from switchyard.service.core.rights import Actor
from switchyard.service.job import job_control, jobs
from switchyard.service.rules import attributes
from switchyard.service.submit import retry
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig

KIND = "job-priority"


@pytest.fixture
def ann(lite: Rig) -> Actor:
    lite.project("p")
    lite.cluster("c")
    return lite.user("ann", (Role.ADMIN, GrantTarget.PROJECT, "p"))


def cancelled(rig: Rig, job: str) -> str:
    jobs.job_cancel(rig.context, ADMIN, job, "")
    return job


def ask(**fields: Any) -> Any:
    return a_request(**({"project": "p"} | fields))


def test_no_door_takes_a_higher_priority_than_allowed(lite: Rig, ann: Actor) -> None:
    said = r"the highest is 0 \(platform config\)"
    urgent = ask(priority=1_000_000)
    with pytest.raises(PolicyRefused, match=said):
        lite.submit(urgent, actor=ann)
    with pytest.raises(PolicyRefused, match=said):
        lite.submits.plan(ann, urgent)
    with pytest.raises(PolicyRefused, match=said):
        rainbow.decide(lite.context, lite.submits, ann, urgent, "{}")
    own = lite.submit(ask(priority=-3), actor=ann).id
    assert lite.job(own).priority == -3
    with pytest.raises(PolicyRefused, match=said):
        job_control.job_change(lite.context, ann, own, JobChange(priority=1))
    assert lite.job(own).priority == -3
    assert job_control.job_change(lite.context, ann, own, JobChange(priority=0)).priority == 0


def test_a_bulk_submit_refuses_each_job_above_the_bound(lite: Rig, ann: Actor) -> None:
    wanted = [msgspec.Raw(msgspec.json.encode(ask(priority=priority))) for priority in (-1, 5, 0)]
    bulk = lite.yard.services.bulk.decide(ann, BulkRequest(wanted, each=True), key=None, body=b"")
    assert list(bulk.refused) == [1]
    assert "the highest is 0" in bulk.refused[1].detail


def test_a_job_that_an_operator_raised_may_be_lowered_and_its_retry_is_within_the_bounds(lite: Rig, ann: Actor) -> None:
    job = lite.submit(ask(hold=True), actor=ann).id
    oper = lite.user("oper", (Role.OPERATE, GrantTarget.PLATFORM, "all"))
    assert job_control.job_change(lite.context, oper, job, JobChange(priority=50)).priority == 50
    for asked in (51, 1_000):
        with pytest.raises(PolicyRefused):
            job_control.job_change(lite.context, ann, job, JobChange(priority=asked))
    assert job_control.job_change(lite.context, ann, job, JobChange(priority=20)).priority == 20
    again = retry.retry_job(lite.context, lite.submits, ann, cancelled(lite, job), RetryRequest()).id
    assert lite.job(again).priority == 0
    kept = retry.retry_job(lite.context, lite.submits, oper, job, RetryRequest()).id
    assert lite.job(kept).priority == 20


def test_only_platform_administrators_set_the_bounds_also_those_of_a_project(lite: Rig, ann: Actor) -> None:
    here = Scope(project="p")
    with pytest.raises(Denied, match="role admin on the platform"):
        attributes.put(lite.context, ann, KIND, here, {"highest": 1_000_000})
    attributes.put(lite.context, ADMIN, KIND, here, {"highest": 10})
    with pytest.raises(Denied):
        attributes.delete_exact(lite.context, ann, KIND, here)
    job = lite.submit(ask(priority=10), actor=ann).id
    assert job_control.job_change(lite.context, ann, job, JobChange(priority=9)).priority == 9
    with pytest.raises(PolicyRefused, match=r"the highest is 10 \(project level: project p\)"):
        job_control.job_change(lite.context, ann, job, JobChange(priority=11))
    view = attributes.get_effective(lite.context, ann, KIND, here)
    assert view.value == {"lowest": -1_000_000, "highest": 10}
