"""Jobs are not drawn to a cluster whose agents take nothing new now, or no files, while another cluster takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.model.cluster.cluster import Health, Load
from switchyard.model.cluster.verdict import Answer, Verdict
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobRequest, State
from switchyard.service.job.explanation import job_explain
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_graph, a_request
from tests.service.lines import pool
from tests.service.lookups import cluster_names
from tests.service.rig import ADMIN, Rig, RigAgent

FULL = "disk full: 11.8MiB free, 64MiB wanted"
FULL_FOR_FILES = "disk full for files: 11.8MiB free, 64MiB wanted"
DRAWS = 20
DRAWS_MAX = 500  # a cluster of equal weight is drawn long before


def two(rig: Rig) -> dict[str, RigAgent]:
    return {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}


def report(agent: RigAgent, **load: Any) -> bool:
    """The agent reports its load with a poll. Returns whether one of its troubles began or ended."""
    snapshots = agent.rig.context.snapshots
    is_changed = snapshots.take_load(agent.id, Load(**load), agent.rig.clock())
    snapshots.rebuild_world()
    return is_changed


def with_files(**fields: Any) -> JobRequest:
    request = a_request(**fields)
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, files=JobFiles(out=["*.csv"])))


def drawn(rig: Rig, request: JobRequest) -> set[str | None]:
    return {rig.submit(request).cluster for _ in range(DRAWS)}


def draws_both(rig: Rig, request: JobRequest) -> bool:
    """Submit jobs until both clusters were drawn."""
    missing: set[str | None] = {"alpha", "beta"}
    for _ in range(DRAWS_MAX):
        missing.discard(rig.submit(request).cluster)
        if not missing:
            return True
    return False


def verdict_of(rig: Rig, job: str, cluster: str) -> Verdict:
    return next(item for item in job_explain(rig.context, ADMIN, job).now if item.cluster == cluster)


def test_no_job_is_drawn_to_a_cluster_in_trouble_and_it_comes_back(lite: Rig) -> None:
    agents = two(lite)
    assert report(agents["beta"], trouble=FULL)
    assert drawn(lite, a_request()) == {"alpha"}
    job = lite.submit(a_request()).id
    told = verdict_of(lite, job, "beta")
    assert (told.say, told.step) == (Answer.YES, "last")
    assert told.reason == f"fits, but comes last: takes nothing new now: {FULL}"
    assert lite.submit(a_request(cluster="beta")).cluster == "beta", "who names it waits in its line, as before"
    assert report(agents["beta"])
    assert draws_both(lite, a_request())


def test_numbers_of_a_trouble_change_nothing_for_the_router(lite: Rig) -> None:
    agents = two(lite)
    report(agents["beta"], trouble=FULL)
    version = lite.context.snapshots.world.version
    assert not report(agents["beta"], trouble="disk full: 3MiB free, 64MiB wanted")
    assert lite.context.snapshots.world.version == version


def test_only_jobs_with_files_leave_out_a_cluster_without_room_for_files(lite: Rig) -> None:
    agents = two(lite)
    report(agents["beta"], files_trouble=FULL_FOR_FILES)
    assert drawn(lite, with_files()) == {"alpha"}
    assert draws_both(lite, a_request())
    told = verdict_of(lite, lite.submit(with_files()).id, "beta")
    assert (told.say, told.reason) == (Answer.WAIT, f"takes no jobs with files now: {FULL_FOR_FILES}")
    report(agents["beta"])
    assert draws_both(lite, with_files())


def test_a_job_with_files_waits_for_room_if_no_other_cluster_may_run_it(lite: Rig) -> None:
    agents = two(lite)
    report(agents["beta"], files_trouble=FULL_FOR_FILES)
    job = lite.submit(with_files(cluster="beta")).id
    waiting = lite.job(job)
    assert waiting.state is State.PENDING
    assert waiting.reason == "waits for beta: takes no jobs with files now: disk full for files"
    assert agents["beta"].lease(1) == []
    report(agents["beta"])
    route_pending(lite.context, lite.leader)
    assert (lite.job(job).cluster, len(agents["beta"].lease(1))) == ("beta", 1)


def test_a_cluster_is_in_trouble_if_all_its_agents_are(lite: Rig) -> None:
    agents = two(lite)
    second = lite.join("beta", "second")
    second.sync()
    report(agents["beta"], trouble=FULL)
    assert draws_both(lite, a_request())
    report(second, trouble="disk error: Input/output error")
    assert drawn(lite, a_request()) == {"alpha"}
    lite.clock.wait(60)
    agents["alpha"].seen()
    second.seen()
    report(second)
    assert draws_both(lite, a_request()), "a silent agent does not count"


def test_an_array_is_spread_without_a_cluster_in_trouble_which_joins_later(lite: Rig) -> None:
    agents = two(lite)
    pool(lite, "both", alpha=1, beta=1)
    report(agents["beta"], trouble=FULL)
    job = lite.submit(a_request(array="0-9", pool="both")).id
    refresh = LesseeRefresh()
    refresh.look(lite.context, lite.leader)
    assert cluster_names(lite, job) == {"alpha"}
    report(agents["beta"])
    refresh.look(lite.context, lite.leader)
    assert cluster_names(lite, job) == {"alpha", "beta"}


SILENT = {"trouble": "Slurm does not answer: squeue timed out", "silent_s": 40, "free_cores": 8}


def test_a_cluster_whose_batch_system_is_silent_is_down_and_comes_back(lite: Rig) -> None:
    agents = two(lite)
    assert report(agents["beta"], **SILENT)
    member = lite.context.snapshots.world.by_name["beta"]
    assert (member.health, member.reason) == (Health.DOWN, "Slurm does not answer")
    assert drawn(lite, a_request()) == {"alpha"}
    job = lite.submit(a_request(cluster="beta")).id
    assert lite.job(job).state is State.PENDING
    assert lite.job(job).reason == "waits for beta: down: Slurm does not answer"
    explanation = job_explain(lite.context, ADMIN, job)
    [verdict] = [verdict for verdict in explanation.now if verdict.cluster == "beta"]
    assert (verdict.say, verdict.step, verdict.reason) == (Answer.WAIT, "health", f"down: {SILENT['trouble']}")
    assert verdict.since_us == lite.clock() - 40_000_000, "its batch system has not answered since"
    assert "bring the batch system of beta back: it does not answer its agent" in explanation.hints
    assert report(agents["beta"], free_cores=8)
    route_pending(lite.context, lite.leader)
    assert lite.job(job).cluster == "beta"
    assert draws_both(lite, a_request())


def test_unleased_jobs_leave_a_silent_batch_system_and_leased_ones_say_so(lite: Rig) -> None:
    agents = two(lite)
    leased, unleased = (lite.submit(a_request(cluster="beta")).id for _ in range(2))
    [lease] = agents["beta"].lease(1)
    assert lease.job == leased
    free = next(job.id for _ in range(DRAWS_MAX) if (job := lite.submit(a_request())).cluster == "beta")
    report(agents["beta"], **SILENT)
    take_back_unleased(lite.context, lite.leader)
    route_pending(lite.context, lite.leader)
    assert lite.job(free).cluster == "alpha"
    assert lite.job(unleased).state is State.PENDING, "it may run nowhere else"
    assert lite.job(leased).state is State.ASSIGNED
    assert lite.job(leased).reason == "Slurm does not answer, so nothing new is known of the job"


def test_one_agent_with_a_batch_system_that_answers_keeps_its_cluster_up(lite: Rig) -> None:
    agents = two(lite)
    second = lite.join("beta", "second")
    second.sync()
    report(agents["beta"], **SILENT)
    assert lite.context.snapshots.world.by_name["beta"].health is Health.UP
    report(second, **SILENT)
    assert lite.context.snapshots.world.by_name["beta"].health is Health.DOWN


def test_the_seconds_of_a_silence_change_nothing_for_the_router(lite: Rig) -> None:
    agents = two(lite)
    report(agents["beta"], **SILENT)
    version = lite.context.snapshots.world.version
    assert not report(agents["beta"], **{**SILENT, "silent_s": 45})
    assert lite.context.snapshots.world.version == version
