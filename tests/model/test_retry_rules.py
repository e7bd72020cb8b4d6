"""Rules of retries: which failure is granted a retry, what the next attempt asks for, what is no rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.errors import BadRequest
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.failures.resource_raise import MemoryBound, possible_rules, raise_resources
from switchyard.model.failures.retry_rule import RetryRule
from switchyard.model.failures.retry_text import parse_rules
from switchyard.model.job.job import JobRequest, JobSpec, Limits, Resources
from switchyard.model.job.retry import NO_RETRY, Cause, Retry, failure_kind, retry_delay_s

OOM, NODE_LOST = FailureKind.OUT_OF_MEMORY, FailureKind.NODE_LOST


def delay(
    policy: Retry, failure: FailureKind, *, cause: Cause = Cause.JOB, tries: int = 1, same: int = 1
) -> int | None:
    return retry_delay_s(policy, tries=tries, cause=cause, exit_code=1, failure=failure, tries_after_failure=same)


def test_a_kind_with_a_rule_has_a_limit_of_its_own() -> None:
    policy = Retry(limit=1, causes=[Cause.CLUSTER], on={OOM: RetryRule(limit=2), NODE_LOST: RetryRule(limit=0)})
    assert [delay(policy, OOM, tries=5, same=same) for same in (1, 2, 3)] == [10, 20, None]
    assert delay(policy, NODE_LOST, cause=Cause.CLUSTER) is None, "its limit is 0, although its cause is retried"
    assert [delay(policy, FailureKind.START, cause=Cause.CLUSTER, tries=tries) for tries in (1, 2)] == [10, None]
    assert delay(policy, FailureKind.SIGNAL) is None, "the cause is not named"
    assert policy.limit_in_all == 3


def test_a_rule_without_a_limit_allows_as_many_as_the_policy_and_at_least_one() -> None:
    assert [Retry(limit=limit, on={OOM: RetryRule()}).limit_in_all for limit in (0, 3)] == [1, 6]


def test_exit_codes_narrow_the_rule_for_exit_codes_alone() -> None:
    policy = Retry(exit_codes="75", on={FailureKind.EXIT_CODE: RetryRule(), OOM: RetryRule()})
    assert delay(policy, FailureKind.EXIT_CODE) is None
    assert delay(policy, OOM) == 10


@pytest.mark.parametrize(
    ("cause", "code", "number", "kind"),
    [
        (Cause.JOB, 3, None, FailureKind.EXIT_CODE),
        (Cause.JOB, None, 9, FailureKind.SIGNAL),
        (Cause.JOB, None, None, FailureKind.OTHER),
        (Cause.CLUSTER, None, None, FailureKind.CLUSTER),
        (Cause.LOST, None, None, FailureKind.LOST),
        (Cause.PREEMPTED, None, 15, FailureKind.PREEMPTED),
    ],
)
def test_the_kind_follows_from_what_every_agent_says(
    cause: Cause, code: int | None, number: int | None, kind: FailureKind
) -> None:
    assert failure_kind(cause, exit_code=code, signal=number) is kind


@pytest.mark.parametrize(
    ("before", "rule", "bound", "after", "note"),
    [
        ("64MiB", {"memory": "x2"}, None, "128MiB", "memory 128MiB instead of 64MiB"),
        ("1.5GiB", {"memory": "x2"}, None, "3GiB", "memory 3GiB instead of 1.5GiB"),
        ("1G", {"memory": "x1.5"}, None, "1500M", "memory 1500M instead of 1G"),
        (1000, {"memory": "x2"}, None, 2000, "memory 2000 instead of 1000"),
        (
            "6GiB",
            {"memory": "x2", "memory_max": "8GiB"},
            None,
            "8GiB",
            "memory 8GiB instead of 6GiB: its memory_max is 8GiB",
        ),
        (
            "8GiB",
            {"memory": "x2", "memory_max": "8GiB"},
            None,
            "8GiB",
            "memory stays at 8GiB: its memory_max is 8GiB",
        ),
        (
            "300Mi",
            {"memory": "x2", "memory_max": "8GiB"},
            MemoryBound("450Mi", "the limit is 450Mi"),
            "450Mi",
            "memory 450Mi instead of 300Mi: the limit is 450Mi",
        ),
        (
            "600Mi",  # the rule was lowered meanwhile
            {"memory": "x2"},
            MemoryBound("450Mi", "the limit is 450Mi"),
            "600Mi",
            "memory stays at 600Mi: the limit is 450Mi",
        ),
        (
            2**62,
            {"memory": "x10"},
            None,
            2**63 - 1,
            f"memory {2**63 - 1} instead of {2**62}: there is no more",
        ),
    ],
)
def test_memory_is_raised_up_to_the_lower_bound(
    before: Any, rule: dict[str, Any], bound: MemoryBound | None, after: Any, note: str
) -> None:
    raised = raise_resources(Resources(memory=before), RetryRule(**rule), bound)
    assert (raised.resources.memory, raised.note) == (after, note)


def test_a_limit_of_its_own_is_raised_with_the_request() -> None:
    filled = Resources(memory="1GiB", limits=Limits(memory="1GiB"))  # as rules fill it
    assert raise_resources(filled, RetryRule(memory="x2"), None).resources == Resources(
        memory="2GiB", limits=Limits(memory="2GiB")
    )
    resources = Resources(memory="1GiB", limits=Limits(memory="3GiB"))
    raised = raise_resources(resources, RetryRule(memory="x2", memory_max="5GiB"), None).resources
    assert (raised.memory, raised.limits.memory) == ("2GiB", "5GiB")


@pytest.mark.parametrize(
    ("limit", "rule", "after", "note"),
    [
        ("1h", {"time": "x1.5"}, "1h30m", "time limit 1h30m instead of 1h"),
        (90, {"time": "x2"}, "3m", "time limit 3m instead of 90"),
        (
            "2h",
            {"time": "x2", "time_max": "3h"},
            "3h",
            "time limit 3h instead of 2h: its time_max is 3h",
        ),
        ("3h", {"time": "x2", "time_max": "3h"}, "3h", "time limit stays at 3h: its time_max is 3h"),
    ],
)
def test_the_time_limit_is_raised_up_to_its_bound(limit: Any, rule: dict[str, Any], after: str, note: str) -> None:
    raised = raise_resources(Resources(time_limit=limit), RetryRule(**rule), None)
    assert (raised.resources.time_limit, raised.note) == (after, note)


def test_rules_of_others_lose_the_raises_that_a_job_cannot_have() -> None:
    rules = {OOM.value: RetryRule(limit=2, memory="x2", memory_max="2GiB", time="x2")}
    spec = JobSpec(command=["true"], resources=Resources(memory="1GiB"))
    assert possible_rules(JobRequest(spec=spec), rules) == {OOM: RetryRule(limit=2, memory="x2", memory_max="2GiB")}
    of_sets = msgspec.structs.replace(spec, alternatives=(Resources(memory="2GiB"),))
    for request in (JobRequest(spec=spec, array="0-3"), JobRequest(spec=of_sets)):
        assert possible_rules(request, rules) == {OOM: RetryRule(limit=2)}


def test_a_job_tells_whether_it_has_a_word_of_its_own() -> None:
    plain, own = (
        msgspec.json.decode(body, type=JobSpec) for body in (b'{"command":["a"]}', b'{"command":["a"],"retry":{}}')
    )
    assert plain.retry is NO_RETRY
    assert own.retry is not NO_RETRY
    assert b"retry" in msgspec.json.encode(own)


def test_a_line_is_read_as_a_rule() -> None:
    texts = ["out-of-memory:2,memory=x2,memory-max=256GiB", "node-lost:5,elsewhere", "image"]
    assert parse_rules(texts) == {
        "out-of-memory": {"limit": 2, "memory": "x2", "memory_max": "256GiB"},
        "node-lost": {"limit": 5, "elsewhere": True},
        "image": {},
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["oom:2"], "did you mean out-of-memory?"),
        (["out_of_memory"], "did you mean out-of-memory?"),
        (["nod-lost"], "did you mean node-lost or lost?"),
        ([""], "there is no kind of failure ''"),
        (["image:many"], "'many' is not a number of retries"),
        (["image:"], "'' is not a number of retries"),
        (["image:-1"], "'-1' is not a number of retries"),
        (["image,memory"], "'memory' is not known; after the kind come elsewhere, memory=…"),
        (["image,elsewhere=yes"], "'elsewhere=yes' is not known"),
        (["image,memory=x2,memory=x3"], "has memory twice"),
        (["image", "image:2"], "two rules for the failure image"),
    ],
)
def test_a_line_that_is_no_rule_is_refused_with_what_is_known(texts: list[str], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_rules(texts)
    assert words in str(refused.value)
