"""A job's constraint as the node affinity of its pod."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.pods.pod_template import node_affinity
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.constraint import NodeTraits, read_constraint

Body = dict[str, Any]


def a_spec(constraint: Any) -> JobSpec:
    demand = {"version": 1, "attributes": {"system": {"constraints": constraint}}}
    return JobSpec(command=["true"], demand=demand)


def terms_of(constraint: Any) -> list[list[tuple[str, str, list[str]]]]:
    affinity = node_affinity(a_spec(constraint))
    if not affinity:
        return []
    rows = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [
        [(part["key"], part["operator"], part.get("values", [])) for part in row["matchExpressions"]] for row in rows
    ]


@pytest.mark.parametrize(
    ("constraint", "terms"),
    [
        (None, []),
        ({}, []),
        ({"properties": ["ssd"]}, [[("ssd", "Exists", [])]]),
        ({"properties": ["^ssd"]}, [[("ssd", "DoesNotExist", [])]]),
        ({"properties": ["zone=a", "example.org/ssd"]}, [[("example.org/ssd", "Exists", []), ("zone", "In", ["a"])]]),
        ({"properties": ["^zone=a"]}, [[("zone", "NotIn", ["a"])]]),
        ({"properties": ["arch=x86_64"]}, [[("kubernetes.io/arch", "In", ["amd64"])]]),
        ({"properties": ["arch=aarch64"]}, [[("kubernetes.io/arch", "In", ["arm64"])]]),
        ({"properties": ["os=linux"]}, [[("kubernetes.io/os", "In", ["linux"])]]),
        ({"hostlist": ["n[1-2]"]}, [[("kubernetes.io/hostname", "In", ["n1", "n2"])]]),
        ({"not": [{"hostlist": ["n1"]}]}, [[("kubernetes.io/hostname", "NotIn", ["n1"])]]),
        ({"or": [{"properties": ["a"]}, {"properties": ["b"]}]}, [[("a", "Exists", [])], [("b", "Exists", [])]]),
        ({"not": [{"properties": ["a", "b"]}]}, [[("a", "DoesNotExist", [])], [("b", "DoesNotExist", [])]]),
        ({"and": []}, []),
        ({"or": [{"and": []}, {"properties": ["a"]}]}, []),
    ],
)
def test_constraint(constraint: Any, terms: Any) -> None:
    assert terms_of(constraint) == terms


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"ranks": ["0-3"]}, "nodes of Kubernetes have none"),
        ({"properties": ["a b"]}, "cannot be a label"),
        ({"properties": ["a=b c"]}, "cannot be a label"),
        ({"not": []}, "No node can be"),
        (
            {"and": [{"or": [{"properties": [f"p{row}{place}"]} for place in range(5)]} for row in range(5)]},
            "too complicated",
        ),
    ],
)
def test_constraints_that_the_scheduler_cannot_be_told(constraint: Any, words: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        node_affinity(a_spec(constraint))
    assert words in caught.value.detail


NESTED: list[Body] = [
    {
        "not": [
            {"and": [{"properties": ["a", "^b"]}, {"or": [{"properties": ["c"]}, {"not": [{"properties": ["a"]}]}]}]}
        ]
    },
    {"or": [{"and": [{"properties": ["a"]}, {"properties": ["b"]}]}, {"not": [{"or": [{"properties": ["b", "c"]}]}]}]},
    {"properties": ["a"], "not": [{"properties": ["b"]}]},
    {
        "and": [
            {"or": [{"properties": ["a"]}, {"properties": ["b"]}]},
            {"or": [{"properties": ["^a"]}, {"properties": ["c"]}]},
        ]
    },
]


@pytest.mark.parametrize("constraint", NESTED)
def test_the_scheduler_allows_the_same_nodes_as_the_router(constraint: Body) -> None:
    known = read_constraint(constraint, where="test")
    assert known is not None
    for has in product((False, True), repeat=3):
        labels = {name: True for name, is_there in zip("abc", has, strict=True) if is_there}
        allowed = any(
            all((key in labels) is (operator == "Exists") for key, operator, _ in term) for term in terms_of(constraint)
        )
        assert allowed is known.allows(NodeTraits(labels)), labels
