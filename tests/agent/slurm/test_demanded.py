"""What a jobspec demands beyond the plain fields: what sbatch is told of it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.agent.backends.slurm import command
from switchyard.agent.backends.slurm.demanded import constraint_of
from switchyard.agent.backends.slurm.options import refusal
from switchyard.model.job import JobSpec, Native, Resources
from switchyard.model.jobspec import from_jobspec

CORES = {"type": "core", "count": 2}
TASKS = [{"command": ["true"], "slot": "s", "count": {"per_slot": 1}}]


def slot(count: Any = 1, *held: Any) -> dict[str, Any]:
    return {"type": "slot", "label": "s", "count": count, "with": list(held or (CORES,))}


def words_of(resources: Any, **system: Any) -> list[str]:
    """As submitted: the plain fields beside the demand are those that a jobspec becomes."""
    form = {"version": 1, "resources": resources, "tasks": TASKS, "attributes": {"system": {"duration": 0, **system}}}
    plain = from_jobspec(form).plain
    needs = {name: plain[name] for name in ("nodes", "tasks", "cores") if name in plain}
    spec = JobSpec(command=plain["command"], resources=Resources(**needs), demand=plain.get("demand"))
    return command.resource_words(spec, partition="", account="")


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"a": {"type": "node", "replicas": 2, "with": [CORES]}}, ["--ntasks=2", "--cpus-per-task=2", "--nodes=2"]),
        ({"a": {"type": "node", "count": 2, "with": [CORES]}}, ["--ntasks=2", "--cpus-per-task=2", "--nodes=2"]),
        (
            {"a": {"type": "rack", "count": 1, "with": [{"type": "node", "replicas": 3, "with": [CORES]}]}},
            ["--ntasks=3", "--cpus-per-task=2", "--nodes=3"],
        ),
        ({"a": {"type": "core", "count": 4}}, ["--ntasks=4", "--cpus-per-task=1"]),
        (
            [{"type": "rack", "count": 2, "with": [{"type": "node", "count": {"min": 2}, "with": [slot()]}]}],
            ["--ntasks=4", "--cpus-per-task=2", "--nodes=4"],
        ),
        ([slot(1, {"type": "node", "count": 4, "with": [CORES]})], ["--ntasks=4", "--cpus-per-task=2", "--nodes=4"]),
        ([slot("3", {"type": "socket", "count": 1, "with": [CORES]})], ["--ntasks=3", "--cpus-per-task=2"]),
    ],
)
def test_nodes_that_a_jobspec_counts(resources: Any, words: list[str]) -> None:
    assert words_of(resources) == words


def test_a_constraint_takes_no_nodes_away() -> None:
    resources = [{"type": "node", "count": 2, "with": [slot()]}]
    plain = ["--ntasks=2", "--cpus-per-task=2", "--nodes=2"]
    assert words_of(resources) == plain
    assert words_of(resources, constraints={"properties": ["fast"]}) == [*plain, "--constraint=fast"]


def constrained(constraints: Any, own: str = "") -> JobSpec:
    demand = {"version": 1, "resources": [], "attributes": {"system": {"constraints": constraints}}}
    return JobSpec(command=["true"], resources=Resources(), demand=demand, native=Native(constraint=own))


@pytest.mark.parametrize(
    ("constraints", "own", "said"),
    [
        ({}, "", ""),
        ({}, "[rack1*2&rack2*4]", "[rack1*2&rack2*4]"),
        ({"properties": ["fast"]}, "", "fast"),
        ({"properties": ["fast", "amd"]}, "", "fast&amd"),
        ({"and": [{"properties": ["fast"]}, {"properties": ["amd"]}]}, "", "fast&amd"),
        ({"or": [{"properties": ["fast"]}, {"properties": ["amd"]}]}, "", "fast|amd"),
        ({"or": [{"properties": ["fast"]}, {"properties": []}]}, "", ""),
        ({"or": []}, "", ""),
        ({"and": [{"or": [{"properties": ["fast"]}, {"properties": ["amd"]}]}]}, "", "fast|amd"),
        ({"properties": ["fast"]}, "gpu", "gpu&fast"),
        ({"properties": ["fast"]}, "a|b", None),
        ({"properties": ["^fast"]}, "", None),
        ({"properties": ["gpu_type=a100"]}, "", None),
        ({"properties": ["partition/main"]}, "", None),
        ({"not": [{"properties": ["fast"]}]}, "", None),
        ({"hostlist": ["n1"]}, "", None),
        ({"ranks": ["0"]}, "", None),
        ({"and": [{"or": [{"properties": ["a"]}, {"properties": ["b"]}]}, {"properties": ["c"]}]}, "", None),
        ({"or": [{"properties": ["a", "b"]}, {"properties": ["c"]}]}, "", None),
    ],
)
def test_a_constraint_is_said_or_the_job_is_refused(constraints: Any, own: str, said: str | None) -> None:
    spec = constrained(constraints, own)
    assert constraint_of(spec) == said
    assert bool(refusal(spec)) is (said is None)
    words = command.resource_words(spec, partition="", account="")
    assert [word for word in words if word.startswith("--constraint")] == ([f"--constraint={said}"] if said else [])
