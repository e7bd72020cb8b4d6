"""Jobs with alternatives: the set that is decided is the one that is stored, leased and shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.errors import BadRequest, PolicyRefused
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import Lease, Room
from switchyard.model.cluster.quote import QuoteAsk
from switchyard.model.cluster.selection import Select
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.failures.retry_rule import RetryRule
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobSpec, Resources, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Retry
from switchyard.model.jobspec.alternatives import VARIABLE
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import RetryRequest
from switchyard.service.cluster import clusters, graphs
from switchyard.service.job import tasks
from switchyard.service.job.explanation import job_explain
from switchyard.service.quote.quote_answers import InquiryDelivery
from switchyard.service.rules import attributes
from switchyard.service.submit.retry import retry_job
from switchyard.service.upkeep.move_jobs import JobMover
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.round import route_pending
from switchyard.store.jobs import jobs as job_store
from switchyard.store.jobs.job_update import JobUpdate
from tests.builders import a_request
from tests.service.lines import quote, say, wait
from tests.service.lookups import attempts, cluster_names
from tests.service.rig import ADMIN, Rig, RigAgent

H100, A100 = Resources(cores=1, gpus=2, gpu_type="h100"), Resources(cores=4, gpus=4, gpu_type="a100", memory="1GiB")


def a_choice(**fields: Any) -> Any:
    return a_request(resources=H100, alternatives=(A100,), **fields)


def a_graph_of(*cards: str, count: int = 4) -> Any:
    devices = [f"gpu:{name}:{count}" for name in cards]
    return compile_graph({"nodes": 2, "each": {"core": 8, "memory": "8GiB", "devices": devices}})


def a_cluster(rig: Rig, name: str, *cards: str) -> RigAgent:
    return rig.cluster(name, graph=a_graph_of(*cards))


def spec_of(asked: Lease | QuoteAsk) -> JobSpec:
    return msgspec.json.decode(msgspec.json.encode(asked.spec), type=JobSpec)


def test_a_cluster_is_handed_the_set_that_was_decided_and_nothing_of_the_others(rig: Rig) -> None:
    ampere, plain = a_cluster(rig, "ampere", "a100"), rig.cluster("plain")
    job = rig.submit(a_choice(env={"A": "b"}))
    assert job.cluster == "ampere"
    row = rig.row(job.id)
    assert (row.cores, row.gpus, row.memory_bytes, row.alternatives) == (4, 4, 2**30, f'{{"{ampere.cluster_id}":2}}')
    assert plain.lease() == []
    assert ampere.lease(room=Room(4, 3, 2**30)) == [], "the room is that of its set"
    (lease,) = ampere.lease(room=Room(4, 4, 2**30))
    spec = spec_of(lease)
    assert (spec.resources, spec.alternatives, spec.env) == (A100, (), {"A": "b", VARIABLE: "2"})
    (again,) = ampere.sync().leases
    assert (spec_of(again), again.fence) == (spec, lease.fence)
    shown = rig.job(job.id)
    assert (shown.alternative, shown.state) == (2, State.ASSIGNED)
    explained = job_explain(rig.context, ADMIN, job.id)
    assert explained.plan is not None
    assert explained.plan.alternative == 2
    assert "alternative 2 of 2 on ampere: a100:4, 4 cores, 1GiB memory" in explained.notes


def test_a_job_without_a_cluster_counts_as_its_largest_set(rig: Rig) -> None:
    agent = a_cluster(rig, "ampere", "a100")
    clusters.cluster_change(rig.context, ADMIN, "ampere", ClusterChange(is_cordoned=True))
    job = rig.submit(a_request(resources=Resources(cores=9, gpus=1, gpu_type="h100"), alternatives=(A100,)))
    row = rig.row(job.id)
    assert (row.cluster_id, row.cores, row.gpus, row.memory_bytes, row.alternatives) == (None, 9, 4, 2**30, None)
    clusters.cluster_change(rig.context, ADMIN, "ampere", ClusterChange(is_cordoned=False))
    agent.seen()
    assert route_pending(rig.context, rig.leader) == 1
    row = rig.row(job.id)
    assert (row.cores, row.gpus, rig.job(job.id).alternative) == (4, 4, 2)
    assert rig.context.tally.alternatives.read() == {("ampere", "2"): 1}


def test_each_attempt_chooses_again(rig: Rig) -> None:
    ampere = a_cluster(rig, "ampere", "a100")
    job = rig.submit(a_choice()).id
    (lease,) = ampere.lease()
    hopper = a_cluster(rig, "hopper", "h100")
    ampere.report(attempts_of(lease), ObservedState.RETURNED, reason="its cards are gone")
    assert rig.job(job).alternative is None
    assert route_pending(rig.context, rig.leader) == 1
    assert (rig.job(job).cluster, rig.job(job).alternative) == ("hopper", 1)
    (second,) = hopper.lease()
    assert spec_of(second).env[VARIABLE] == "1"
    notes = job_explain(rig.context, ADMIN, job).notes
    assert any(note.startswith("attempt 1 on ampere with alternative 2 ended: returned") for note in notes)
    hopper.report(attempts_of(second), ObservedState.FAILED, exit_code=1)
    retried = retry_job(rig.context, rig.submits, ADMIN, job, RetryRequest())
    assert rig.job(retried.id).alternative == 1


def attempts_of(lease: Lease) -> Any:
    return next(iter(attempts([msgspec.structs.replace(lease, lo=0, hi=0)]).values()))


def test_every_cluster_leases_tasks_of_an_array_with_its_own_set(rig: Rig) -> None:
    agents = {name: a_cluster(rig, name, *cards) for name, cards in {"ampere": ["a100"], "hopper": ["h100"]}.items()}
    rig.cluster("plain")
    job = rig.submit(a_choice(array="0-9")).id
    assert cluster_names(rig, job) == {"ampere", "hopper"}
    given = {name: agent.lease(64, Room(8, 8, 2**40)) for name, agent in agents.items()}
    assert {name: len(attempts(leases)) for name, leases in given.items()} == {"ampere": 2, "hopper": 4}
    assert {name: spec_of(leases[0]).env[VARIABLE] for name, leases in given.items()} == {"ampere": "2", "hopper": "1"}
    listed, _ = tasks.task_list(rig.context, ADMIN, job, states=frozenset(), after=-1, limit=10)
    leased = {(task.cluster, task.alternative) for task in listed if task.attempts}
    assert leased == {("ampere", 2), ("hopper", 1)}
    # What a cluster becomes later changes the set of further tasks alone.
    graphs.store_agent_graph(rig.context, agents["ampere"].id, a_graph_of("h100"))
    LesseeRefresh().look(rig.context, rig.leader)
    assert {spec_of(lease).env[VARIABLE] for lease in agents["ampere"].sync().leases} == {"2"}
    assert {spec_of(lease).env[VARIABLE] for lease in agents["ampere"].lease(1, Room(8, 8, 2**40))} == {"1"}


def test_an_array_together_has_one_set(rig: Rig) -> None:
    a_cluster(rig, "ampere", "a100")
    a_cluster(rig, "hopper", "h100")
    job = rig.submit(a_choice(array="0-9", together=True))
    assert (job.cluster, rig.job(job.id).alternative, cluster_names(rig, job.id)) == ("hopper", 1, set())


def test_an_idle_cluster_takes_a_waiting_job_over_with_its_own_set(rig: Rig) -> None:
    hopper = a_cluster(rig, "hopper", "h100")
    job = rig.submit(a_choice()).id
    ampere = a_cluster(rig, "ampere", "a100")
    wait(rig, 31, hopper, ampere)
    mover = JobMover()
    say(ampere, free_cores=8, free_gpus=3, free_memory_bytes=2**33)
    assert mover.look(rig.context, rig.leader) == 0, "there is no room for its set"
    say(ampere, free_cores=8, free_gpus=4, free_memory_bytes=2**33)
    assert mover.look(rig.context, rig.leader) == 1
    row = rig.row(job)
    assert (rig.job(job).cluster, rig.job(job).alternative, row.gpus) == ("ampere", 2, 4)
    assert spec_of(ampere.lease()[0]).resources == A100


def test_quotes_are_asked_for_the_set_of_each_cluster_and_the_best_is_taken(rig: Rig) -> None:
    agents = {name: a_cluster(rig, name, *cards) for name, cards in {"ampere": ["a100"], "hopper": ["h100"]}.items()}
    request = a_choice(select=Select("soonest"))
    job = rig.submit(request)
    assert job.reason == "waiting for quotes of ampere, hopper"
    delivery = InquiryDelivery(rig.context)
    entries = rig.context.snapshots.fleet.agents
    asked = {name: delivery.next(entries[agent.id])[0] for name, agent in agents.items()}
    specs = {name: spec_of(ask) for name, ask in asked.items()}
    assert {name: (spec.resources, spec.alternatives) for name, spec in specs.items()} == {
        "ampere": (A100, ()),
        "hopper": (H100, ()),
    }
    quote(agents["hopper"], request, eta_us=600_000_000)
    quote(agents["ampere"], request, eta_us=1_000_000)
    rig.clock.wait(1)
    soonest = rig.submit(request)
    assert (soonest.cluster, rig.job(soonest.id).alternative) == ("ampere", 2)


def test_one_cluster_is_asked_about_every_set_that_fits_there(rig: Rig) -> None:
    mixed, plain = a_cluster(rig, "mixed", "h100", "a100"), rig.cluster("plain")
    request = a_choice(select=Select("soonest"))
    assert rig.submit(request).reason == "waiting for quotes of mixed"
    delivery, entries = InquiryDelivery(rig.context), rig.context.snapshots.fleet.agents
    asked = [spec_of(ask) for ask in delivery.next(entries[mixed.id])]
    assert [spec.resources for spec in asked] == [A100, H100], "the one that the job waits for comes last"
    assert delivery.next(entries[plain.id]) == []
    quote(mixed, request, eta_us=600_000_000, cost=1.0)
    quote(mixed, a_request(resources=A100), eta_us=1_000_000, cost=2.0)
    rig.clock.wait(1)
    sooner = rig.submit(request)
    assert (sooner.cluster, rig.job(sooner.id).alternative) == ("mixed", 2)
    cheaper = rig.submit(a_choice(select=Select("cheapest")))
    assert (cheaper.cluster, rig.job(cheaper.id).alternative) == ("mixed", 1)
    quote(mixed, request, said="no", reason="its nodes are reserved")
    rig.clock.wait(1)
    assert rig.job(rig.submit(a_choice(select=Select("cheapest"))).id).alternative == 2


@pytest.mark.parametrize("number", [0, 3])
def test_a_row_that_names_no_set_of_the_job_is_set_aside_and_others_are_leased(rig: Rig, number: int) -> None:
    ampere = a_cluster(rig, "ampere", "a100")
    job, other = rig.submit(a_choice()).id, rig.submit(a_request()).id
    text = f'{{"{ampere.cluster_id}":{number}}}'
    rig.committer.call(lambda batch: job_store.job_update_many(batch.tx, {job: JobUpdate(alternatives=text)}))
    assert [lease.job for lease in ampere.lease()] == [other]
    assert "there is no alternative" in rig.row(job).reason


def test_rules_fill_and_bound_every_set(rig: Rig) -> None:
    a_cluster(rig, "ampere", "a100")
    rule = {"defaults": {"memory": "2Gi"}, "limits": {"gpu": "3"}}
    attributes.put(rig.context, ADMIN, "task-resource-attribute", Scope("development", "default"), rule)
    with pytest.raises(PolicyRefused, match=r"alternative 2: gpu: asks for 4, and the limit is 3"):
        rig.submit(a_choice())
    small = Resources(cores=1, gpus=1, gpu_type="a100")
    spec = rig.decided(a_request(resources=H100, alternatives=(small,))).spec_body
    assert msgspec.json.decode(spec, type=JobSpec).alternatives[0].memory == "2Gi"
    alike = Resources(cores=1, gpus=2, gpu_type="h100", memory="2Gi")
    with pytest.raises(PolicyRefused, match="alternatives 1 and 2 are the same once the defaults are filled in"):
        rig.submit(a_request(resources=H100, alternatives=(alike,)))


def test_a_retry_that_would_ask_for_more_is_refused_beside_alternatives(lite: Rig) -> None:
    policy = Retry(limit=3, on={FailureKind.OUT_OF_MEMORY: RetryRule(memory="x2")})
    with pytest.raises(BadRequest, match="out-of-memory: a job with"):
        lite.submit(a_choice(retry=policy))
