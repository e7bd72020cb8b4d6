"""What jobs hold of token pools: the type of task, laid over by rules pool by pool, and never less than that."""

from __future__ import annotations

import pytest

from switchyard.errors import Malformed
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.policy.draft import Draft, Entry, Provenance
from switchyard.policy.kinds.tokens import TokensKind, add_task_type_tokens, combine_tokens
from switchyard.policy.platform import Platform

TYPES = {"hive": {"warehouse": 1, "licence": 2}}


@pytest.mark.parametrize(
    ("task_type", "ruled", "asked", "needed"),
    [
        ("default", {}, {}, {}),
        ("default", {}, {"a": 2}, {"a": 2}),
        ("hive", {}, {}, {"warehouse": 1, "licence": 2}),
        ("hive", {"licence": 5}, {}, {"warehouse": 1, "licence": 5}),
        ("hive", {"licence": 0}, {}, {"warehouse": 1}),
        ("hive", {"licence": 0}, {"licence": 1}, {"warehouse": 1, "licence": 1}),
        ("hive", {}, {"licence": 1}, {"warehouse": 1, "licence": 2}),
        ("default", {"a": 3, "b.c": 1}, {"a": 1}, {"a": 3, "b.c": 1}),
    ],
)
def test_what_is_needed(task_type: str, ruled: dict[str, int], asked: dict[str, int], needed: dict[str, int]) -> None:
    spec = JobSpec(["true"], task_type=task_type, tokens=asked)
    draft = add_task_type_tokens(Draft(JobRequest(spec), Platform(task_tokens=TYPES)))
    found = {f"tokens.{pool}": Entry(units, Provenance("project")) for pool, units in ruled.items()}  # type: ignore[arg-type]
    assert combine_tokens(TokensKind().amend(draft, found)).tokens == needed


@pytest.mark.parametrize(
    "tokens", [{}, {"a": -1}, {"a": 1.5}, {"": 1}, {"a b": 1}, {f"p{i}": 1 for i in range(17)}, {"a": 10**9}], ids=str
)
def test_values_that_are_refused(tokens: object) -> None:
    with pytest.raises(Malformed):
        TokensKind().read({"tokens": tokens})


def test_fields_are_pools_and_come_back() -> None:
    kind = TokensKind()
    value = kind.read({"tokens": {"a": 1, "b.c:d": 0}})
    fields = kind.flatten(value)
    assert fields == {"tokens.a": 1, "tokens.b.c:d": 0}
    assert kind.assemble(fields) == value
