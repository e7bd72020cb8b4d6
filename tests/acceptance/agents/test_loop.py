"""`yard loop`: runs what there is for its cluster and leaves; a signal or the end of its time loses nothing unseen."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE
from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged, waiting_for
from tests.processes import PATIENCE_S, until
from tests.programs import YARD, Program, isolated_env, yard

CHOOSER = """#!/usr/bin/env python3
import json, sys
jobs = json.load(sys.stdin)["waiting"]
ref = lambda job: {"job": job["job"], "fence": job["fence"]}
long = [job for job in jobs if job["name"] == "long"]
print(json.dumps({
    "start": [ref(job) for job in jobs if job not in long],
    "return": [{**ref(job), "reason": "too long for a loop"} for job in long],
}))
"""
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("loop")) as made:
        yield made


@pytest.fixture
def cluster(stage: Stage) -> str:
    name = f"c{next(numbers)}"
    stage.post("/v1/clusters", {"name": name})
    return name


def a_loop(stage: Stage, cluster: str, *options: str, cores: int = 4) -> Program:
    graph = stage.folder / f"{cluster}.yaml"
    graph.write_text(f"nodes: 1\neach: {{core: {cores}, memory: 8GiB}}\n")
    words = ["loop", "--cluster", cluster, "--graph", str(graph), "--data", str(stage.folder / f"{cluster}-loop")]
    words += ["--idle", "2s", "--allow-root", *options]
    env = isolated_env(stage.folder, url=stage.url)
    return Program([*YARD, *words], stage.folder, name=f"loop-{cluster}-{next(numbers)}", env=env).start()


def summary(program: Program) -> str:
    assert program.wait() == EXIT_OK, program.tail()
    return program.log.splitlines()[-1]


def test_it_runs_what_waits_for_its_cluster_and_ends(stage: Stage, cluster: str) -> None:
    assert summary(a_loop(stage, cluster)) == f"cluster {cluster}: ran 0"
    jobs = [stage.submit("sh", "-c", f"exit {code}", cluster=cluster) for code in (0, 0, 3)]
    array = stage.submit("true", cluster=cluster, array="0-2")
    assert summary(a_loop(stage, cluster)) == f"cluster {cluster}: ran 6: 1 failed, 5 succeeded"
    assert [stage.job(job)["state"] for job in (*jobs, array)] == ["SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED"]
    later = stage.submit("true", cluster=cluster)
    assert summary(a_loop(stage, cluster)) == f"cluster {cluster}: ran 1: 1 succeeded"
    assert stage.job(later)["attempt"] == 1


def test_jobs_that_come_while_loops_come_and_go_run_once(stage: Stage, cluster: str) -> None:
    """A loop leaves when it was idle for a second, which is about when the next jobs come."""
    jobs: list[str] = []
    pause, is_over = threading.Event(), threading.Event()

    def submit() -> None:
        for number in range(12):
            jobs.append(stage.submit("true", cluster=cluster))
            pause.wait(0.1 + 0.21 * (number % 6))
        is_over.set()

    thread = threading.Thread(target=submit)
    thread.start()
    while not is_over.is_set():
        summary(a_loop(stage, cluster, "--idle", "1s"))
    thread.join()
    summary(a_loop(stage, cluster))
    ended = [stage.job(job) for job in jobs]
    assert {(job["state"], job["attempt"]) for job in ended} == {("SUCCEEDED", 1)}, ended


def test_its_chooser_orders_and_returns(stage: Stage, cluster: str, tmp_path: Path) -> None:
    chooser = tmp_path / "choose.py"
    chooser.write_text(CHOOSER)
    chooser.chmod(0o755)
    long = stage.submit("true", cluster=cluster, name="long")
    short = stage.submit("true", cluster=cluster, name="short")
    with a_loop(stage, cluster, "--chooser", str(chooser)):
        assert stage.ended(short)["state"] == State.SUCCEEDED
        until(
            lambda: "too long for a loop" in stage.yard("events", long).stdout, PATIENCE_S, "the long one is returned"
        )
        stage.yard("cancel", long, check=True)
    assert stage.ended(long)["state"] == State.CANCELLED


def test_a_signal_ends_it_in_order_and_each_job_goes_its_way(stage: Stage, cluster: str, tmp_path: Path) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    once = f"[ -e {mark} ] || {{ touch {mark}; {waiting_for(gate)}; }}"
    runs = stage.submit("sh", "-c", once, cluster=cluster, spec={"on_lost": "requeue"})
    loop = a_loop(stage, cluster, "--grace", "1s", cores=1)
    until(mark.exists, PATIENCE_S, "the first attempt runs")
    unbegun = [stage.submit("true", cluster=cluster) for _ in range(2)]
    assert loop.terminate() == EXIT_OK
    assert loop.log.splitlines()[-1].startswith(f"cluster {cluster}: ran 1: 1 lost"), loop.tail()
    for job in (runs, *unbegun):
        assert stage.job(job)["state"] in (State.PENDING, State.ASSIGNED)
    assert "stopped by SIGTERM" in stage.yard("events", runs).stdout
    assert summary(a_loop(stage, cluster, cores=1)) == f"cluster {cluster}: ran 3: 3 succeeded"
    assert stage.job(runs)["attempt"] == 2


def test_a_job_that_ends_within_the_grace_is_not_lost(stage: Stage, cluster: str, tmp_path: Path) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    stage.submit("sh", "-c", f"touch {mark}; {waiting_for(gate)}", cluster=cluster)
    loop = a_loop(stage, cluster, "--grace", "60s")
    until(mark.exists, PATIENCE_S, "the job runs")
    loop.signal(signal.SIGTERM)
    until(lambda: "stopping" in loop.log, PATIENCE_S, "it has the signal")
    gate.touch()
    assert summary(loop) == f"cluster {cluster}: ran 1: 1 succeeded"


def test_a_second_signal_ends_the_grace(stage: Stage, cluster: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = stage.submit("sh", "-c", f"touch {mark}; sleep 600", cluster=cluster)
    loop = a_loop(stage, cluster, "--grace", "10m")
    until(mark.exists, PATIENCE_S, "the job runs")
    loop.signal(signal.SIGTERM)
    until(lambda: "stopping" in loop.log, PATIENCE_S, "it has the first signal")
    loop.signal(signal.SIGINT)
    assert "1 lost" in summary(loop)
    assert (stage.ended(job)["state"], "SIGTERM" in stage.job(job)["reason"]) == (State.FAILED, True)


def test_it_leaves_before_its_allocation_ends(stage: Stage, cluster: str) -> None:
    job = stage.submit("sleep", "600", cluster=cluster)
    assert "1 lost" in summary(a_loop(stage, cluster, "--ends-after", "25s", "--grace", "1s"))
    ended = stage.ended(job)
    assert (ended["state"], ended["reason"]) == (State.FAILED, "the allocation around the loop ends")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["loop"], EXIT_USAGE, "--cluster"),
        (["loop", "--cluster", "a b"], EXIT_USAGE, "is not a name"),
        (["loop", "--cluster", "a", "--idle", "soon"], EXIT_USAGE, "--idle: 'soon' is not a duration"),
        (["loop", "--cluster", "a", "--idle", "0s"], EXIT_USAGE, "--idle: '0s' is not a duration"),
        (["loop", "--cluster", "a", "--grace", "-1"], EXIT_USAGE, "--grace"),
        (["loop", "--cluster", "a", "--ends-after", "x"], EXIT_USAGE, "--ends-after: 'x' is not a duration"),
        (["loop", "--cluster", "a", "--jobs-max", "0"], EXIT_USAGE, "--jobs-max must be from 1"),
        (["loop", "--cluster", "a", "--chooser", "quickest"], None, "quickest"),
        (["loop", "--cluster", "a", "--chooser", "/nosuch"], EXIT_USAGE, "/nosuch is no program"),
        (["loop", "--cluster", "a", "--chooser", "/etc/passwd -x"], EXIT_USAGE, "/etc/passwd is no program"),
        (["loop", "--cluster", "a", "--chooser", "./a 'b"], EXIT_USAGE, "is no command line"),
        (["loop", "--cluster", "a", "--backend", "slrum"], None, "slrum"),
        (["loop", "--cluster", "a", "--ephemeral"], EXIT_USAGE, "--ephemeral"),
        (["loop", "--cluster", "a", "--server", "http://127.0.0.1:9"], EXIT_UNAVAILABLE, "127.0.0.1:9"),
        (["submit", "--clusters", "none.yaml", "--", "true"], EXIT_NOT_FOUND, "There is no file none.yaml"),
        (["submit", "--clusters", "a,b", "--", "true"], EXIT_NOT_FOUND, "There is no file a,b"),
        (["submit", "--clusters", "empty.yaml", "--", "true"], EXIT_USAGE, "names no clusters"),
        (["submit", "--clusters", "list.yaml", "--", "true"], EXIT_USAGE, "list.yaml"),
        (["submit", "--clusters", "bare.yaml", "--", "true"], EXIT_USAGE, "token"),
        (["submit", "--clusters", "name.yaml", "--", "true"], EXIT_USAGE, "name"),
        (["submit", "--clusters", "broken.yaml", "--", "true"], EXIT_USAGE, "broken.yaml"),
    ],
)
def test_bad_input_is_told_in_words(
    stage: Stage, tmp_path: Path, words: list[str], code: int | None, said: str
) -> None:
    """Of `yard loop`, and of the file of `yard submit --clusters`. `code`: None: any but success."""
    files = {"empty": "clusters: []", "list": "[a, b]", "bare": "clusters: [{name: a}]", "broken": "clusters: ["}
    files["name"] = "clusters: [{name: a b, token: t}]"
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    given = [str(tmp_path / word) if word.endswith(".yaml") and word != "none.yaml" else word for word in words]
    done = yard(*given, env=isolated_env(tmp_path, url=stage.url))
    assert (done.returncode == code) if code is not None else (done.returncode > 0), done
    assert said in done.stderr, done
    assert "Traceback" not in done.stderr
    assert "usage:" in done.stderr or "next:" in done.stderr, done
