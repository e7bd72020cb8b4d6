"""A program against the SDK that type checkers read and nobody runs. They must refuse the lines marked `refused`.

`assert_type` fails if a type of the SDK becomes another one, or is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import switchyard
from switchyard import (
    Busy,
    Client,
    Executor,
    FetchedFiles,
    FunctionRun,
    Job,
    JobFiles,
    JobHandle,
    JobRequest,
    JobSpec,
    Limits,
    Resources,
    Scope,
    State,
    TimedOut,
    YardError,
    as_completed,
)

assert_type(switchyard.__version__, str)


def submit_and_wait(yard: Client) -> int | None:
    handle = yard.submit(["python", "train.py"], cores=4, memory="8GiB", labels={"team": "vision"}, key="run-1")
    assert_type(handle, JobHandle)
    assert_type(handle.id, str)
    assert_type(handle.cluster, str | None)
    try:
        job = handle.wait(timeout_s=60)
    except TimedOut as exc:
        assert_type(exc.next_step, str)
        return None
    assert_type(job, Job)
    assert_type(job.state, State)
    assert_type(handle.text(), str)
    assert_type(handle.output("stderr"), bytes)
    return job.exit_code


def submit_spec(yard: Client) -> JobHandle:
    resources = Resources(tasks=4, nodes=2, cores=8, limits=Limits(memory="64GiB"), time_limit="2h")
    request = JobRequest(JobSpec(["./simulate"], resources=resources), project="physics", priority=5)
    first = yard.submit(request)
    return yard.submit("./report", after=[first])


def submit_many(yard: Client) -> list[State]:
    for handle in as_completed(yard.submit_many([["./step", str(number)] for number in range(3)], cores=1)):
        assert_type(handle, JobHandle)
    results = yard.submit_many(["./a", "./b"], each=True)
    assert_type(results, list[JobHandle | YardError])
    return [result.state for result in results if isinstance(result, JobHandle)]


def send_files(yard: Client) -> int:
    handle = yard.submit(["./step"], files={"x": "data/x", "y": b"content"}, workdir=".", out=["results/*"])
    assert_type(handle.fetch("results/*.csv", to="here"), FetchedFiles)
    yard.submit(["./step"], files=JobFiles(tree=yard.upload(["x", "y"])), out_required=True, out=["z"])
    run = yard.run(divmod, 7, 2)
    assert_type(yard.function(str.upper, gpus=1)("text"), FunctionRun[str])
    assert run.exception(timeout_s=60) is None
    return yard.fetch("01J", tasks="3,5-7", force=True).files


def look(yard: Client) -> None:
    assert_type(yard.jobs(state=[State.RUNNING, "PENDING"], limit=10), Iterator[Job])
    assert_type([task.state for task in yard.tasks("01J")], list[State])
    assert_type([verdict.cluster for verdict in yard.plan("hostname", pool="gpu").verdicts], list[str])
    assert_type([event.seq for event in yard.events("01J", follow=True)], list[int])
    assert_type(yard.cancel("01J", reason="wrong input"), Job)
    assert_type(yard.handle("01J").retry(elsewhere=True), JobHandle)
    assert_type(Scope(project="physics", domain="production").project, str | None)


def run_commands() -> list[int | None]:
    with Client("https://yard.example.org", "a token") as yard, Executor(yard, cores=2) as executor:
        assert_type(executor.submit(["./step"], gpus=1).result(), Job)
        return [job.exit_code for job in executor.map(["./a", "./b"], timeout=60)]


def make_mistakes(yard: Client) -> None:
    yard.submit(["./step"], core=4)  # refused
    yard.submit(["./step"], cores=[4])  # refused
    yard.submit(4)  # refused
    yard.submit(["./step"], files=4)  # refused
    yard.function(str.upper)(4)  # refused
    yard.fetch("01J", to=4)  # refused
    yard.submit("./step").wait("60")  # refused
    assert yard.submit("./step").exit_code + 1  # refused
    yard.submit("./step").state = State.FAILED  # refused
    yard.submit_many(["./step"], each=True)[0].wait()  # refused
    Resources(memory=b"8GiB")  # refused
    JobSpec("./step")  # refused
    yard.job("01J").priority = 3  # refused
    yard.jobs(status="RUNNING")  # refused
    assert switchyard.Cluster  # refused
    Client(timeout_s="1m")  # refused
    raise Busy(next_step=5)  # refused
