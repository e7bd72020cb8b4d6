"""Jobs that are lost or given back again and again: they fail at last, with the reason."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job import lifecycle
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.job.jobs import job_events
from switchyard.service.lifecycle import arrays
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.waiting_jobs import end_backoffs
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig

BOUND = 3


@pytest.mark.parametrize("array", [None, "0"])
@pytest.mark.parametrize("seen", [ObservedState.RETURNED, ObservedState.LOST])
def test_a_job_does_not_circle_for_ever(
    lite: Rig, monkeypatch: pytest.MonkeyPatch, seen: ObservedState, array: str | None
) -> None:
    for module in (lifecycle, arrays):
        monkeypatch.setattr(module, "ATTEMPTS_MAX", BOUND)
    agent = lite.cluster("alpha")
    job = lite.submit(a_request(array=array, on_lost="requeue")).id
    for number in range(BOUND):
        assert lite.job(job).state not in (State.FAILED, State.SUCCEEDED), number
        lite.clock.wait(600)
        agent.seen()
        end_backoffs(lite.context, lite.leader)
        route_pending(lite.context, lite.leader)
        (lease,) = agent.lease(1)
        agent.report(AttemptRef(job, lease.fence), seen, reason="its node is broken")
    assert lite.job(job).state is State.FAILED
    reasons = [event.reason for event in job_events(lite.context, ADMIN, job, after=0, limit=100).items]
    assert any("its node is broken; it was handed over 3 times, and is not" in reason for reason in reasons)
