"""Look-ups of Jobs while the API hangs: callers go on, and answers that come late still count."""

from __future__ import annotations

import threading
import time

import pytest

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.api import background_calls
from switchyard.features.kubernetes.agent.jobs import job_submitter
from switchyard.features.kubernetes.agent.jobs.job_submitter import JobLookups, JobTraces
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from tests.agent.builders import a_lease
from tests.processes import PATIENCE_S, until

WAIT_S = 0.3


class Api:
    """Reads wait while the API hangs. `began`: the names of Jobs that were asked for."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.error: Unavailable | None = None

    def read(self, job: SubmittedJob) -> JobTraces:
        began_s, error = time.monotonic(), self.error
        self.began.append(job.name)
        assert self.answers.wait(PATIENCE_S)
        self.ended.append(job.name)
        if error is not None:
            raise error
        return JobTraces(began_s=began_s, is_vanished=True)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(background_calls, "CALL_WAIT_S", WAIT_S)
    return Api()


def jobs(count: int) -> list[SubmittedJob]:
    return [SubmittedJob(a_lease(), namespace="physics") for _ in range(count)]


def test_an_answer_that_comes_at_once_is_returned_and_asked_for_again_the_next_time(api: Api) -> None:
    lookups, [job] = JobLookups(api.read), jobs(1)
    for _ in range(2):
        traces = lookups.get(job)
        assert traces is not None
        assert traces.is_vanished
    assert len(api.began) == 2


def test_many_callers_in_a_row_wait_no_longer_than_one_while_the_api_hangs(api: Api) -> None:
    lookups, several = JobLookups(api.read), jobs(100)
    api.answers.clear()
    begun_s = time.monotonic()
    assert [lookups.get(job) for job in several] == [None] * 100
    assert time.monotonic() - begun_s < 10 * WAIT_S
    assert len(api.began) == job_submitter.AT_ONCE
    api.answers.set()
    for job in several:
        until(lambda job=job: lookups.get(job) is not None, PATIENCE_S, "it is looked up")


def test_an_answer_that_comes_late_is_kept_for_the_next_caller(api: Api) -> None:
    lookups, [job] = JobLookups(api.read), jobs(1)
    api.answers.clear()
    assert lookups.get(job) is None
    api.answers.set()
    until(lambda: api.ended, PATIENCE_S, "the answer is there")
    assert lookups.get(job) is not None
    assert len(api.began) == 1


def test_an_answer_from_before_a_create_is_not_used(api: Api) -> None:
    lookups, [job] = JobLookups(api.read), jobs(1)
    api.answers.clear()
    assert lookups.get(job) is None
    lookups.discard(job.name)
    api.answers.set()
    until(lambda: lookups.get(job) is not None, PATIENCE_S, "it is looked up")
    assert len(api.began) == 2


def test_the_error_of_a_look_up_is_raised_once(api: Api) -> None:
    lookups, [job] = JobLookups(api.read), jobs(1)
    api.error = Unavailable("not readable")
    with pytest.raises(Unavailable, match="not readable"):
        lookups.get(job)
    api.error = None
    assert lookups.get(job) is not None


def test_a_defect_in_a_look_up_is_a_doubt_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    defects: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: defects.append(args.exc_type))

    def read(_: SubmittedJob) -> JobTraces:
        raise ZeroDivisionError

    lookups, [job] = JobLookups(read), jobs(1)
    with pytest.raises(Unavailable, match="ended by a defect"):
        lookups.get(job)
    until(lambda: defects == [ZeroDivisionError], PATIENCE_S, "its thread says which")
