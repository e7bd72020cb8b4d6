"""A cluster on which jobs fail quickly, and not elsewhere, gets few tasks until canaries do well."""

from __future__ import annotations

from switchyard.model.rules.access import GrantTarget, Role
from tests.builders import a_request
from tests.service.probation.sites import Sites
from tests.service.rig import Rig


def test_a_black_hole_gets_three_tasks_of_an_array(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    job = rig.submit(a_request(array="0-39")).id
    for _ in range(60):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    assert (sites.lost("hole"), rig.job(job).tasks.failed) == (3, 3)
    assert sites.ends["good", True] == 37


def test_it_comes_back_when_canaries_do_well(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-999"))
    for _ in range(5):
        sites.turn("hole")
    assert sites.probations("hole") == [("local-admin", "")]
    sites.wait(31)
    assert len(sites.turn("hole", want=5)) == 1, "a canary"
    assert sites.lost("hole") == 4
    sites.wait(31)
    assert sites.turn("hole", want=5) == [], "the pause has doubled"
    sites.breaks()
    sites.wait(31)
    assert len(sites.turn("hole", want=5)) == 1
    assert len(sites.turn("hole", want=5)) == 1, "the next canary follows at once"
    assert sites.probations("hole") == []
    sites.round()
    assert sum(lease.hi - lease.lo + 1 for lease in sites.turn("hole", want=5)) == 5


def test_a_job_that_fails_everywhere_closes_nothing(rig: Rig) -> None:
    sites = Sites(rig, "one", "two")
    sites.breaks("one", "two")
    rig.submit(a_request(array="0-39"))
    for _ in range(40):
        sites.turn("one")
        sites.turn("two")
        sites.round()
    assert sites.lost("one") + sites.lost("two") == 40, "the array ended as fast as without probation"
    assert sites.probations("one") == sites.probations("two") == []


def test_plain_jobs_leave_a_black_hole(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    for _ in range(40):
        rig.submit(a_request(name="step"))
    for _ in range(60):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    assert sites.lost("hole") == 3
    assert sites.ends["good", True] == 37


def test_one_user_closes_a_cluster_only_for_themselves(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    zed, amy = (rig.user(name, (Role.SUBMIT, GrantTarget.PLATFORM, "all")) for name in ("zed", "amy"))
    sites.is_broken = lambda name, lease: name == "hole" and lease.owner == "zed"
    for _ in range(4):
        for request in (a_request(array="0-9"), a_request(name="x")):
            rig.submit(request, actor=zed)
    for _ in range(100):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    assert sites.probations("hole") == [(zed.id, "")]
    rig.submit(a_request(array="0-99"), actor=amy)
    assert sum(lease.hi - lease.lo + 1 for lease in sites.turn("hole", want=50)) == 50
