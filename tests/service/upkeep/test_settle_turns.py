"""A job with thousands of dependents delays nobody else's: owners take turns."""

from __future__ import annotations

from unittest.mock import patch

from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.job import jobs
from switchyard.service.upkeep import waiting_jobs
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


def test_the_dependent_of_another_owner_is_settled_in_the_first_round(rig: Rig) -> None:
    rig.cluster("alpha")
    col = rig.user("col", (Role.SUBMIT, GrantTarget.PROJECT, "default"), (Role.SUBMIT, GrantTarget.CLUSTER, "alpha"))
    hub = rig.submit(a_request(hold=True), actor=col).id
    many = [rig.submit(a_request(after=[hub]), actor=col).id for _ in range(12)]
    first = rig.submit(a_request(hold=True)).id
    second = rig.submit(a_request(after=[f"{first}:any"])).id
    for job_id in (hub, first):
        jobs.job_cancel(rig.context, ADMIN, job_id, "")
    with patch.object(waiting_jobs, "ROUND_MAX", 4):
        assert waiting_jobs.settle_dependencies(rig.context, rig.leader) == 4
        assert rig.row(second).blocked is None
        assert sum(rig.row(job_id).state == "CANCELLED" for job_id in many) == 3
        for _ in range(3):
            waiting_jobs.settle_dependencies(rig.context, rig.leader)
    assert {rig.row(job_id).state for job_id in many} == {"CANCELLED"}
