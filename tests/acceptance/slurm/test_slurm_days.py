"""Bad days on real Slurm: whatever the cluster does, each command runs once, and each job has an end and a reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.slurm.slurm_stage import END_S, SITE, Yard, slurm_yard
from tests.processes import until
from tests.programs import start_agent
from tests.slurm_bed import SlurmBed
from tests.slurm_faults import Fault, changed_conf, save_state, saved_ns
from tests.soak import SOAKED

pytestmark = pytest.mark.xdist_group("slurm-days")

TRIES = 5
LONG_S = 150.0  # Slurm counts a time limit in whole minutes, and looks every half
# Text that a shell, Slurm's tables and Slurm's own lists each read in their own way.
NASTY = [
    "it's",
    'a "quoted" word',
    "$HOME `id` \\n",
    "two\nlines\n",
    "naïve — 東京 🚂",
    "a|b,c;d%j%x",
    "",
    " ",
    "-n",
    "*",
]


@pytest.fixture(scope="module")
def yard(slurm: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with slurm_yard(tmp_path_factory.mktemp("days"), slurm, allow={"options": ["--partition"]}) as made:
        yield made


@pytest.fixture(autouse=True)
def _as_before(yard: Yard) -> Iterator[None]:
    yield
    yard.faulty.set(Fault.NONE)


def ran_once(yard: Yard, job: str, **fields: Any) -> dict[str, Any]:
    """The job's end, as it should be, after one run of its command."""
    ended = yard.stage.ended(job, timeout_s=END_S)
    wanted = {"state": State.SUCCEEDED, "exit_code": 0, **fields}
    assert {key: ended.get(key) for key in wanted} == wanted, ended
    assert yard.ledger.runs()[job] == 1
    return ended


def failed(yard: Yard, job: str, reason: str, *, timeout_s: float = END_S) -> None:
    ended = yard.stage.ended(job, timeout_s=timeout_s)
    assert ended["state"] == State.FAILED, ended
    assert reason in ended["reason"], ended["reason"]


def begun(yard: Yard, cluster: str, then: str = "sleep 600", **fields: Any) -> tuple[str, str]:
    """A job that runs; its id, and Slurm's."""
    job = yard.submit(cluster, then, **fields)
    yard.stage.until_state(job, State.RUNNING, timeout_s=END_S)
    return job, yard.native(job)


@pytest.mark.parametrize("cluster", ["alpha", "beta"])
def test_a_job_runs_and_its_output_and_exit_code_come_back(yard: Yard, cluster: str) -> None:
    done = yard.stage.yard("submit", "--wait", "--cluster", cluster, "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (3, "hello"), done


@pytest.mark.parametrize("cluster", ["alpha", SOAKED("beta")])
def test_quotes_newlines_and_other_alphabets_arrive_as_they_are(yard: Yard, cluster: str) -> None:
    print_all = 'printf "[%s]" "$@" "$NASTY"'
    spec = {"env": {"NASTY": "".join(NASTY)}}
    job = yard.stage.submit("/bin/sh", "-c", print_all, "sh", *NASTY, cluster=cluster, spec=spec, name="naïve; a|b,c")
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.SUCCEEDED
    wanted = "".join(f"[{text}]" for text in [*NASTY, "".join(NASTY)])
    assert yard.stage.raw("logs", job)[0].decode() == wanted


# Each fault is in tests/agent/slurm/test_hand_over.py, too: here a submit that came about, and one that comes late.
@pytest.mark.parametrize("fault", [Fault.STALL, SOAKED(Fault.DROP), SOAKED(Fault.TIMEOUT), Fault.LATE], ids=str)
def test_a_submit_without_an_answer_runs_once(yard: Yard, fault: Fault) -> None:
    before = len(yard.faulty.submits())
    yard.faulty.set(fault)
    job = yard.submit("alpha")
    until(lambda: fault in yard.faulty.submits()[before:], END_S, f"a submit met the fault {fault}")
    yard.faulty.set(Fault.NONE)
    ran_once(yard, job)


@pytest.mark.parametrize("fault", [SOAKED(Fault.STALL), SOAKED(Fault.DROP), Fault.LATE], ids=str)
def test_an_agent_killed_in_the_middle_of_a_submit_runs_it_once(yard: Yard, fault: Fault) -> None:
    """After its intent is written and before it knows what came of it: the next start looks before it submits."""
    before = len(yard.faulty.submits())
    yard.faulty.set(fault)
    job = yard.submit("alpha")
    until(lambda: fault in yard.faulty.submits()[before:], END_S, f"a submit met the fault {fault}")
    yard.agents["alpha"].kill()
    yard.faulty.set(Fault.NONE)
    yard.agents["alpha"].start()
    ran_once(yard, job)


def test_an_agent_that_was_away_learns_how_its_jobs_ended(yard: Yard) -> None:
    wait, gate = yard.gate("away")
    good, _ = begun(yard, "alpha", wait)
    bad, native = begun(yard, "alpha", f"{wait}; exit 5")
    yard.agents["alpha"].kill()
    gate.touch()
    alpha = yard.slurm["alpha"]
    until(lambda: alpha.field(native, "JobState") == "FAILED", END_S, "both ended while nobody looked")
    yard.agents["alpha"].start()
    ran_once(yard, good)
    failed(yard, bad, "exit code 5")


def test_a_site_whose_sbatch_prints_a_banner(yard: Yard) -> None:
    yard.faulty.set(Fault.BANNER)
    ran_once(yard, yard.submit("alpha"))


def test_a_full_spool_of_the_controller_is_waited_out(yard: Yard) -> None:
    before = len(yard.faulty.submits())
    yard.faulty.set(Fault.FULL)
    job = yard.submit("alpha")
    until(lambda: len(yard.faulty.submits()) > before, END_S, "a submit met the full disk")
    yard.faulty.set(Fault.NONE)
    ran_once(yard, job)


def test_a_script_that_its_node_could_not_run_is_given_back_and_runs_after_all(yard: Yard) -> None:
    """Slurm says FAILED with exit code 2, and the node has opened the output. It is not the command's end."""
    yard.faulty.set(Fault.GONE)
    job = yard.submit("alpha")
    events: list[dict[str, Any]] = []

    def is_told() -> bool:
        events[:] = yard.stage.read("events", job)
        return bool({"returned", "failed"} & {event["kind"] for event in events})

    until(is_told, END_S, "the agent has told of its end")
    yard.faulty.set(Fault.NONE)
    told = [(event["kind"], event["reason"]) for event in events if "did not run its script" in event["reason"]]
    assert [kind for kind, _ in told] == ["returned"], events
    ran_once(yard, job)


def test_a_job_whose_prolog_failed_is_given_back_and_runs_after_all(yard: Yard) -> None:
    """Slurm cancels such a job, as if somebody had asked for that. The prolog takes its time, as real ones do."""
    beta, failed_once = yard.slurm["beta"], yard.stage.folder / "failed-once"
    prolog = yard.stage.folder / "prolog"
    prolog.write_text(f"#!/bin/sh\nmkdir {failed_once} 2>/dev/null || exit 0\nsleep 3\nexit 1\n")
    prolog.chmod(0o755)
    with changed_conf(beta, lambda usual: f"{usual}\nProlog={prolog}\n"):
        job = yard.submit("beta")
        ran_once(yard, job)
    assert failed_once.is_dir()
    [returned] = [event for event in yard.stage.read("events", job) if event["kind"] == "returned"]
    assert "before its script began: a failed prolog or launch does that" in returned["reason"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for three files."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=4", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_spool_of_the_agent_is_waited_out(yard: Yard, small: Path) -> None:
    stuffing = [small / str(number) for number in range(3)]
    for file in stuffing:
        file.touch()
    site = yard.stage.folder / "gamma-site.yaml"
    slurm = {**SITE, "bin": str(yard.slurm["beta"].bin), "folder": str(small)}
    site.write_text(json.dumps({"slurm": slurm}), encoding="utf-8")
    extra = ["--config", str(site)]
    with start_agent(yard.stage.folder, yard.stage.url, "gamma", graph=None, backend="slurm", extra=extra) as agent:
        job = yard.submit("gamma")
        agent.wait_for(lambda: "No space left" in agent.log, END_S, "it met the full disk")
        for file in stuffing:
            file.unlink()
        subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=100", str(small)], check=True)
        ran_once(yard, job)


def test_a_paused_controller_keeps_jobs_waiting_and_no_longer(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    wait, gate = yard.gate("paused")
    running, _ = begun(yard, "beta", wait)
    beta.pause("slurmctld")
    try:
        job = yard.submit("beta")
        yard.agents["beta"].wait_for(
            lambda: "submit-failed" in yard.agents["beta"].log, END_S, "a submit failed while the controller hung"
        )
        assert yard.stage.health("beta") == "up"
    finally:
        beta.resume("slurmctld")
        gate.touch()
    ran_once(yard, job)
    ran_once(yard, running)


def test_a_stopped_controller_is_waited_for(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    wait, gate = yard.gate("stopped")
    running, _ = begun(yard, "beta", wait)
    beta.stop("slurmctld")
    gate.touch()  # it ends while nobody is there to hear of it
    try:
        job = yard.submit("beta")
        yard.agents["beta"].wait_for(lambda: job in yard.agents["beta"].log, END_S, "a submit failed")
    finally:
        beta.heal_daemons()
    ran_once(yard, job)
    ran_once(yard, running)


def test_a_job_that_the_controller_forgot_is_lost_and_its_number_is_anothers(yard: Yard) -> None:
    """State is saved some seconds late: a controller killed soon after its word forgets the job."""
    beta = yard.slurm["beta"]
    for _ in range(TRIES):
        at_ns = save_state(beta, END_S)
        job = yard.submit("beta", "sleep 600", spec={"on_lost": "fail", "lost_after": "1s"})
        # One that had not begun is given back and runs again, by right.
        until(lambda job=job: yard.ledger.runs()[job], END_S, "it has begun")
        until(lambda job=job: "native_id" in yard.stage.job(job), END_S, "its number is known")
        beta.kill("slurmctld")
        if saved_ns(beta) == at_ns:
            break
        beta.heal_daemons()  # the machine was slow, and the job is saved
        yard.stage.yard("cancel", job, check=True)
        yard.stage.until_state(job, State.CANCELLED, timeout_s=END_S)
    beta.heal_daemons()
    other = beta.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 5").strip()
    assert other == yard.native(job), "the number was given again"
    ended = yard.stage.ended(job, timeout_s=END_S)
    assert ended["state"] == State.FAILED, ended
    # Its node kills what the controller has forgotten; whether the job's script lives to tell of that is chance.
    assert "the cluster does not know" in ended["reason"], ended["reason"]

    def is_left_alone() -> bool:
        """A node of 24.11 that remembers the number refuses it: FAILED, or held. An end by us would be CANCELLED."""
        return beta.field(other, "JobState") in ("COMPLETED", "FAILED") or "launch" in beta.field(other, "Reason")

    until(is_left_alone, END_S, "the other job was left alone")
    beta.heal()  # 24.11 drains such a node


def test_accounting_that_is_away_changes_nothing(yard: Yard) -> None:
    alpha = yard.slurm["alpha"]
    alpha.kill("slurmdbd")
    try:
        ran_once(yard, yard.submit("alpha"))
        job = yard.submit("alpha", "exit 9")
        failed(yard, job, "")
        assert yard.stage.job(job)["exit_code"] == 9
    finally:
        alpha.heal_daemons()


def test_a_dead_node_is_told_as_such(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    job, native = begun(yard, "beta")
    node = beta.field(native, "NodeList")
    beta.kill(f"slurmd/{node}")
    beta.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")  # as Slurm does after SlurmdTimeout
    try:
        failed(yard, job, "node failure")
    finally:
        beta.heal()


def test_a_job_held_at_the_cluster_waits_with_its_reason(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    blocker, blocking = begun(yard, "beta", "sleep 600", spec={"resources": {"nodes": 3, "tasks": 3, "cores": 4}})
    job = yard.submit("beta")
    yard.stage.until_state(job, State.SUBMITTED, timeout_s=END_S)
    beta.run("scontrol", "hold", yard.native(job))
    beta.run("scancel", blocking)
    ended = yard.stage.ended(blocker, timeout_s=END_S)
    assert ended["state"] == State.CANCELLED, ended
    assert "cancelled at the cluster" in ended["reason"], ended
    until(lambda: beta.field(yard.native(job), "Reason").startswith("JobHeld"), END_S, "Slurm holds the job")
    until(lambda: "JobHeld" in yard.stage.job(job).get("reason", ""), END_S, "its user is told, too")
    assert yard.stage.job(job)["state"] == State.SUBMITTED
    beta.run("scontrol", "release", yard.native(job))
    ran_once(yard, job)


def test_a_job_that_waits_for_drained_nodes_says_how_an_operator_opens_them(yard: Yard) -> None:
    """A controller that was killed drains nodes in this way, and they do not come back by themselves."""
    beta = yard.slurm["beta"]
    names = ",".join(beta.spec.node_names)
    opened = f"`scontrol update NodeName={names} State=RESUME`"
    beta.run("scontrol", "update", f"NodeName={names}", "State=DRAIN", "Reason=Duplicate jobid")
    try:
        job = yard.submit("beta")
        until(lambda: opened in yard.stage.job(job).get("reason", ""), END_S, "its reason says what to do")
        shown = yard.stage.yard("explain", job).stdout
        waited = yard.stage.yard("wait", job, "--timeout", "1").stderr
    finally:
        beta.open_nodes()
    assert f"Slurm keeps 3 of 3 nodes closed: {beta.spec.node_names[0]} (Duplicate jobid)" in shown, shown
    assert opened in shown
    assert opened in waited, waited
    ran_once(yard, job)


def test_a_job_requeued_by_the_site_does_not_run_twice(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    job, native = begun(yard, "beta")
    beta.run("scontrol", "update", f"JobId={native}", "Requeue=1")
    beta.run("scontrol", "requeue", native)
    until(lambda: beta.field(native, "JobState") == "PENDING", END_S, "the job waits once more")
    beta.run("scontrol", "update", f"JobId={native}", "StartTime=now")  # Slurm would let it wait for two minutes
    failed(yard, job, "the cluster started it a second time, which was refused")
    assert yard.ledger.runs()[job] == 1


def test_a_preempted_job_says_so(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    spec = {"resources": {"nodes": 3, "tasks": 3, "cores": 4}, "native": {"options": ["--partition=spare"]}}
    job, _ = begun(yard, "beta", spec=spec)
    beta.run("sbatch", "-p", "urgent", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    failed(yard, job, "preempted")


def test_a_job_out_of_memory_says_so(yard: Yard) -> None:
    grow = "exec perl -e '$x = q(a) x 400000000; sleep 60'"
    job = yard.submit("alpha", grow, spec={"resources": {"memory": "64MiB"}})
    cluster = yard.slurm["alpha"]
    failed(yard, job, "memory" if cluster.site.has_memory_cgroup else "kill")


def test_names_and_comments_of_others_with_bars_and_commas_confuse_nobody(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    words = ["--comment", "a|b,c|RUNNING|0", "-J", "yard|x,y COMPLETED", "-o", "/dev/null"]
    theirs = beta.run("sbatch", "--parsable", *words, "--wrap", "sleep 600").strip()
    wait, gate = yard.gate("comment")
    job, native = begun(yard, "beta", wait, name="mine|and, mine")
    beta.run("scontrol", "update", f"JobId={native}", "Comment=x|y,z|FAILED|9:0|")
    gate.touch()
    ran_once(yard, job)
    assert beta.field(theirs, "JobState") == "RUNNING"
    beta.run("scancel", theirs)


def test_a_partition_that_vanishes_is_a_reason_not_a_silence(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    spec = {"native": {"options": ["--partition=short"]}}
    ran_once(yard, yard.submit("beta", spec=spec))
    beta.run("scontrol", "delete", "PartitionName=short")
    try:
        failed(yard, yard.submit("beta", spec=spec), "partition")
    finally:
        beta.reconfigure()
        until(lambda: "short" in beta.run("sinfo", "-h", "-o", "%R"), END_S, "the partition is back")


def test_thousands_of_other_peoples_jobs_are_not_our_concern(yard: Yard) -> None:
    beta = yard.slurm["beta"]
    # An array is one row until its tasks begin; held ones never do.
    for _ in range(3):
        words = ["--hold", "--array=0-999", "--uid=1", "--gid=1", "--chdir=/", "-o", "/dev/null", "--wrap", "true"]
        beta.run("sbatch", *words)
    jobs = [yard.submit("beta") for _ in range(5)]
    for job in jobs:
        ran_once(yard, job)
    beta.cancel_all()


@pytest.mark.slow
def test_a_job_over_its_time_limit_says_so(yard: Yard) -> None:
    """More than a minute of waiting; in `make test`, tests/agent/slurm/test_states.py reads what Slurm says of it."""
    job = yard.submit("alpha", "sleep 600", spec={"resources": {"time_limit": "1s"}})
    failed(yard, job, "time limit", timeout_s=LONG_S)
