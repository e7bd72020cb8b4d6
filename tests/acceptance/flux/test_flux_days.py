"""Good and bad days on real Flux instances: each command runs once, and each job has an end and a reason."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard import Client
from switchyard.features.local.agent import proctable
from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.flux.flux_yard import CORES, END_S, FluxYard, flux_agent
from tests.acceptance.stage import Stage, processes_in, staged
from tests.flux_bed import FluxSpec, flux_running
from tests.processes import until
from tests.programs import YARD

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux-days")]

FAULTS_S = 20.0
CRASHES = 4
JOBS = 300


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FluxYard]:
    folder = tmp_path_factory.mktemp("flux-days")
    with flux_running(FluxSpec("alpha"), FluxSpec("beta", gpus=0)) as bed, staged(folder) as stage:
        agents = {name: flux_agent(stage, instance) for name, instance in bed.instances.items()}
        try:
            yield FluxYard(stage, bed, agents, Ledger(folder))
        finally:
            for agent in agents.values():
                agent.close()


def test_output_and_exit_code_come_back(yard: FluxYard) -> None:
    done = yard.stage.yard("submit", "--wait", "--cluster", "alpha", "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (3, "hello"), done


def test_a_job_goes_where_its_gpus_are(yard: FluxYard) -> None:
    job = yard.stage.submit("true", spec={"resources": {"gpus": 1}})
    ended = yard.stage.ended(job, timeout_s=END_S)
    assert (ended["state"], ended["cluster"]) == (State.SUCCEEDED, "alpha")


def test_an_array_of_a_hundred_tasks(yard: FluxYard) -> None:
    script = "exit $((SWITCHYARD_ARRAY_INDEX == 7))"
    job = yard.stage.submit("sh", "-c", script, cluster="beta", array="0-99")
    ended = yard.stage.ended(job, timeout_s=END_S)
    assert (ended["state"], ended["tasks"]["ok"], ended["tasks"]["failed"]) == (State.FAILED, 99, 1)


def test_a_cancel_is_confirmed(yard: FluxYard) -> None:
    job = yard.begun("alpha")
    yard.stage.yard("cancel", job)
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.CANCELLED


def test_jobs_outlive_their_agent(yard: FluxYard) -> None:
    gate = yard.stage.folder / "gate"
    job = yard.begun("alpha", f"while [ ! -e {gate} ]; do sleep 0.1; done")
    yard.agents["alpha"].kill()
    gate.touch()
    yard.agents["alpha"].start()
    yard.ran_once(job)


def test_a_paused_broker_is_waited_out(yard: FluxYard) -> None:
    alpha = yard.bed["alpha"]
    alpha.pause()
    try:
        job = yard.submit("alpha")
        log = yard.agents["alpha"].log_file
        until(lambda: "gave no answer" in log.read_text(), END_S, "the agent has waited for an answer")
    finally:
        alpha.resume()
    yard.ran_once(job)


def test_an_instance_that_is_shut_down_cancels_its_jobs_and_takes_others_later(yard: FluxYard) -> None:
    beta = yard.bed["beta"]
    job = yard.begun("beta")
    beta.shut_down()
    beta.start()
    ended = yard.stage.ended(job, timeout_s=END_S)
    assert ended["state"] in (State.CANCELLED, State.FAILED), ended
    assert ended["reason"], ended
    yard.ran_once(yard.submit("beta"))


def test_a_new_instance_does_not_know_the_job_which_is_lost_and_runs_again_if_asked(yard: FluxYard) -> None:
    beta = yard.bed["beta"]
    gate = yard.stage.folder / "second"
    then = f"test -e {gate} || {{ touch {gate}; sleep 600; }}"
    job = yard.begun("beta", then, spec={"on_lost": "requeue"})
    waiting = yard.submit("beta", spec={"resources": {"nodes": 3, "tasks": 3, "cores": 4}})
    yard.stage.until_state(waiting, State.SUBMITTED, timeout_s=END_S)
    beta.kill()
    shutil.rmtree(beta.folder / "state")
    beta.start()
    ended = yard.stage.ended(job, timeout_s=END_S)
    assert (ended["state"], ended["attempt"]) == (State.SUCCEEDED, 2), ended
    events = json.dumps(yard.stage.get(f"/v1/jobs/{job}/events"))
    assert "Flux does not know" in events or "another name" in events, events
    ended = yard.stage.ended(waiting, timeout_s=END_S)
    assert (ended["state"], yard.ledger.runs()[waiting]) == (State.SUCCEEDED, 3), "it had not begun: it is returned"


def test_an_instance_inside_a_job_is_a_cluster_that_ends_with_it(yard: FluxYard) -> None:
    alpha, stage = yard.bed["alpha"], yard.stage
    batch = nested_agent(yard, "nested")
    until(lambda: health(stage, "nested") == "up", END_S, "the nested cluster is up")
    yard.ran_once(yard.submit("nested", spec={"resources": {"time_limit": "1m"}}))
    refused = stage.ended(yard.submit("nested", spec={"resources": {"time_limit": "1h"}}), timeout_s=END_S)
    assert "does not fit before the end" in refused["reason"], refused
    alpha.flux("cancel", batch)
    until(lambda: health(stage, "nested") == "", END_S, "the nested cluster has left")


def test_an_instance_that_ends_while_jobs_run_loses_them_with_the_reason(yard: FluxYard) -> None:
    """It joins by a group token, as any backend may. Its jobs are lost or run again elsewhere, as each job asks."""
    alpha, stage = yard.bed["alpha"], yard.stage
    token = stage.read("cluster", "invite-group", "burst", "--agents", "1", "--ephemeral")["token"]
    batch = nested_agent(yard, "brief", f"--env=YARD_JOIN_TOKEN={token}")
    until(lambda: health(stage, "brief") == "up", END_S, "the nested cluster is up")
    assert stage.get("/v1/clusters/brief")["groups"] == ["burst"]
    gate, limit = stage.folder / "third", {"resources": {"time_limit": "5m"}}
    lost = yard.begun("brief", spec=limit)
    then = f"test -e {gate} || {{ touch {gate}; sleep 600; }}"
    for name in ("alpha", "beta"):
        stage.yard("cluster", "cordon", name, check=True)  # so that the job begins in the nested instance
    again = yard.stage.submit(*yard.ledger.command(then), spec={**limit, "env": yard.ledger.env, "on_lost": "requeue"})
    stage.until_state(again, State.RUNNING, timeout_s=END_S)
    until(gate.exists, END_S, "the job has begun")
    waiting = yard.stage.submit(*yard.ledger.command(), spec={**limit, "env": yard.ledger.env})
    stage.until_state(waiting, State.SUBMITTED, timeout_s=END_S)
    for name in ("alpha", "beta"):
        stage.yard("cluster", "uncordon", name, check=True)
    alpha.flux("cancel", batch)
    ended = stage.ended(lost, timeout_s=END_S)
    assert (ended["state"], "its cluster ended" in ended["reason"]) == (State.FAILED, True), ended
    until(lambda: health(stage, "brief") == "", END_S, "the nested cluster has left")
    yard.ran_once(waiting)  # elsewhere: it had not begun
    other = stage.ended(again, timeout_s=END_S)
    assert (other["state"], other["attempt"], other["cluster"] in ("alpha", "beta")) == (State.SUCCEEDED, 2, True), (
        other
    )


def test_a_pilot_whose_agent_is_killed_ends_its_jobs_before_they_run_again(yard: FluxYard) -> None:
    """The end of the agent ends the pilot's Flux job, but no process that has left the session. The pilot's jobs run
    under supervisors in sessions of their own, have a child that left its session, and ignore TERM."""
    stage = yard.stage
    made = stage.yard("pilot", "--cluster", "alpha", "--time", "10m", "--name", "quick", "--shared", "-o", "name")
    assert made.returncode == 0, made
    until(lambda: health(stage, "quick") == "up", END_S, "the pilot has joined")
    pids, overlap = stage.folder / "quick-pids", stage.folder / "quick-overlap"
    pids.touch()
    script = f"for pid in $(cat {pids}); do grep -q 'State:.[^ZX]' /proc/$pid/status && touch {overlap}; done; "
    script += f"[ -s {pids} ] && exit 0; "
    script += f"trap '' TERM; setsid sleep 600 & echo $$ $! $PPID > {pids}; while :; do wait; sleep 0.1; done"
    for name in ("alpha", "beta"):
        stage.yard("cluster", "cordon", name, check=True)  # so that the job begins in the pilot
    job = stage.submit("sh", "-c", script, spec={"resources": {"time_limit": "5m"}, "on_lost": "requeue"})
    *family, supervisor = processes_in(pids, 3, timeout_s=END_S)
    for name in ("alpha", "beta"):
        stage.yard("cluster", "uncordon", name, check=True)
    os.kill(int(proctable.stat_fields(supervisor.pid)[1]), signal.SIGKILL)  # its parent: the pilot's agent
    pilot = stage.ended(made.stdout.strip(), timeout_s=END_S)
    assert (pilot["state"], "SIGKILL" in pilot["reason"]) == (State.FAILED, True), pilot
    until(lambda: not any(process.is_alive for process in (*family, supervisor)), END_S, "nothing of the job is left")
    ended = stage.ended(job, timeout_s=END_S)
    assert (ended["state"], ended["attempt"]) == (State.SUCCEEDED, 2), ended
    assert ended["cluster"] in ("alpha", "beta")
    assert not overlap.exists(), "both attempts ran at once"


def test_a_broker_that_is_killed_fails_its_job_and_the_others_go_on(yard: FluxYard) -> None:
    alpha, stage = yard.bed["alpha"], yard.stage
    job = yard.begun("alpha", spec={"resources": {"nodes": 3, "tasks": 3}})
    try:
        alpha.broker(2).kill()
        ended = stage.ended(job, timeout_s=END_S)
        assert (ended["state"], bool(ended["reason"])) == (State.FAILED, True), ended
        yard.ran_once(yard.submit("alpha"))
        until(lambda: stage.get("/v1/clusters/alpha")["load"]["values"]["nodes_down"] == 1, END_S, "a node is down")
    finally:
        alpha.stop()
        alpha.start()
    whole = yard.submit("alpha", spec={"resources": {"nodes": 3, "tasks": 3}})
    assert stage.ended(whole, timeout_s=END_S)["state"] == State.SUCCEEDED, "the instance has all nodes again"


def test_the_systems_of_nodes_are_asked_again_when_nodes_come_back(yard: FluxYard) -> None:
    """The agent asks each node by a job when it begins to take jobs; images then go where they work."""
    alpha, stage = yard.bed["alpha"], yard.stage
    asking = flux_agent(stage, alpha, "asking", discover_nodes=True)

    def asked() -> Counter[str]:
        listed = alpha.flux("jobs", "-a", "-no", "{name} {nodelist}").splitlines()
        return Counter(line.split()[1] for line in listed if line.startswith("yard-discover") and len(line.split()) > 1)

    def has_systems() -> bool:
        shapes = stage.read("cluster", "graph", "asking")["shapes"]
        return all(shape.get("attached") for shape in shapes if shape["type"] == "node")

    with asking:
        until(lambda: sorted(asked()) == ["alpha0", "alpha1", "alpha2"], END_S, "all nodes were asked")
        until(has_systems, END_S, "the systems are in the graph")
        before = asked()
        alpha.flux("resource", "drain", "alpha1", "a new kernel")
        until(lambda: stage.get("/v1/clusters/asking")["load"]["values"]["nodes_closed"] == 1, END_S, "it is closed")
        alpha.flux("resource", "undrain", "alpha1")
        until(lambda: asked() == before + Counter(["alpha1"]), END_S, "the node was asked again, and no other")
        needs = [{"field": "kernel", "min": "999"}]
        refused = stage.submit("true", cluster="asking", spec={"image": "lab/a", "compatibility": needs})
        told = stage.ended(refused, timeout_s=END_S)
        assert (told["state"], "kernel" in told["reason"]) == (State.REJECTED, True), told
        fits = [{"field": "kernel", "min": "1.0"}]
        taken = stage.submit("true", cluster="asking", spec={"image": "lab/a", "compatibility": fits})
        assert stage.ended(taken, timeout_s=END_S)["state"] == State.SUCCEEDED
    assert stage.yard("cluster", "rm", "asking", "--force").returncode == 0


def health(stage: Stage, name: str) -> str:
    """Empty: there is no such cluster."""
    return next((found["health"] for found in clusters(stage) if found["name"] == name), "")


def nested_agent(yard: FluxYard, name: str, *options: str) -> str:
    """The id of a Flux job whose instance has an ephemeral agent."""
    stage = yard.stage
    site = stage.folder / f"{name}-site.yaml"
    site.write_text(json.dumps({"flux": {"state_s": 1.0, "shell_options": {"cpu-affinity": "off"}}}), encoding="utf-8")
    agent = [*YARD, "agent", "--server", stage.url, "--cluster", name, "--backend", "flux", "--allow-root"]
    agent += ["--ephemeral", "--config", str(site), "--data", str(stage.folder / name)]
    log = stage.folder / f"{name}.log"
    words = ["-N1", "-n2", "-t", "10m", "-o", "cpu-affinity=off", f"--output={log}", *options]
    return yard.bed["alpha"].flux("batch", *words, "--wrap", *agent).strip()


def clusters(stage: Stage) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = stage.get("/v1/clusters")["items"]
    return items


def test_three_hundred_jobs_with_faults_run_once_each(yard: FluxYard) -> None:
    chance = random.Random(7)
    folder = yard.stage.folder / "ordeal"
    folder.mkdir()
    ledger = Ledger(folder)
    reaper = threading.Thread(target=break_things, args=(yard, chance))
    ids: list[str] = []
    with Client(yard.stage.url, retry_s=END_S) as client:
        reaper.start()
        try:
            for number in range(JOBS):
                then = f"sleep {chance.choice(['0', '0.1', '0.5'])}"
                cluster = ("alpha", "beta")[number % 2]
                ids.append(client.submit(ledger.command(then), env=ledger.env, cluster=cluster).id)
                time.sleep(FAULTS_S / JOBS / 2)  # so that faults meet jobs at every step
        finally:
            reaper.join(END_S)
        assert not reaper.is_alive(), "the faults are over"
        jobs = wait_all_final(client, ids, 2 * END_S)
    assert_each_ran_once(ledger, jobs)


def test_crashes_of_all_brokers_run_nothing_twice_and_fail_nothing_that_never_began(yard: FluxYard) -> None:
    """A crashed instance starts again with the state that it last saved: it forgets jobs, and starts some again."""
    beta = yard.bed["beta"]
    folder = yard.stage.folder / "crashes"
    folder.mkdir()
    ledger = Ledger(folder)
    with Client(yard.stage.url, retry_s=END_S) as client:
        ids = [client.submit(ledger.command("sleep 0.5"), env=ledger.env, cluster="beta").id for _ in range(60)]
        for crash in range(CRASHES):
            begun = 10 * (crash + 1)
            until(lambda: ledger.runs().total() >= begun, END_S, f"{begun} jobs have begun")  # noqa: B023
            yard.agents["beta"].pause()  # it would start programs that ask the instance, again and again
            beta.kill()
            yard.agents["beta"].resume()
            beta.start()
        jobs = wait_all_final(client, ids, 2 * END_S)
    runs = ledger.runs()
    assert set(runs.values()) <= {1}, "nothing ran twice"
    lost = [job for job in jobs.values() if job.state is not State.SUCCEEDED and not runs[job.id]]
    # A command that is killed before its first word has begun. All that waited would be far more.
    assert len(lost) <= CORES, "what never began is given to the instance again"


def break_things(yard: FluxYard, chance: random.Random) -> None:
    """Agents are killed and brokers paused until the time is over; all is whole at the end."""
    until_s = time.monotonic() + FAULTS_S
    while time.monotonic() < until_s:
        name = chance.choice(["alpha", "beta"])
        if chance.random() < 0.5:
            time.sleep(chance.random())  # how long is left to chance
            yard.agents[name].kill()
            yard.agents[name].start()
        else:
            yard.bed[name].pause()
            time.sleep(chance.uniform(0.2, 7))  # longer than the agent waits for an answer, now and then
            yard.bed[name].resume()
