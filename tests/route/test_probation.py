"""Who is at fault for quick failures: nobody, the job, some nodes or the cluster."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from switchyard.route.probation import (
    Fault,
    FoundFault,
    ProbationTerms,
    find_fault,
    is_fault_of_all,
    pause_us,
    reason_of,
)

TERMS = ProbationTerms()
LATER = 10**12


@dataclass(frozen=True)
class Row:
    cluster_id: str
    fails: int = 0
    ok_us: int = 0
    node: str = ""
    last_us: int = LATER


def row(cluster: str, fails: int = 0, *, ok: bool = False, node: str = "", old: bool = False) -> Row:
    at_us = LATER - 3600_000_000 if old else LATER
    return Row(cluster, fails, at_us if ok else 0, node, at_us)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], Fault.NOBODY),
        ([row("here", 2)], Fault.NOBODY),
        ([row("here", 3)], Fault.CLUSTER),
        ([row("here", 3), row("there", 1)], Fault.CLUSTER),
        ([row("here", 3), row("there", 2)], Fault.JOB),
        ([row("here", 30), row("there", 2)], Fault.JOB),
        ([row("here", 3), row("there", 3), row("third", ok=True)], Fault.CLUSTER),
        ([row("here", 3), row("there", ok=True)], Fault.CLUSTER),
        ([row("there", 9)], Fault.NOBODY),
        ([row("here", 0, ok=True), row("there", 9)], Fault.NOBODY),
        ([row("here", 3, node="n1")], Fault.NODES),
        ([row("here", 3, node="n1"), row("here", ok=True, node="n2")], Fault.NODES),
        ([row("here", 2, node="n1"), row("here", 1, node="n2")], Fault.CLUSTER),
        ([row("here", 2, node="n1"), row("here", 1, node="n2"), row("here", ok=True, node="n3")], Fault.NOBODY),
        ([row("here", 3, node="n1"), row("here", 3), row("here", ok=True, node="n3")], Fault.NOBODY),
        ([*(row("here", 3, node=f"n{number}") for number in range(3)), row("here", ok=True, node="n9")], Fault.NOBODY),
        ([*(row("here", 3, node=f"n{number}") for number in range(3))], Fault.CLUSTER),
        ([*(row("here", 3, node=f"n{n}") for n in range(3)), row("here", ok=True, node="n9", old=True)], Fault.CLUSTER),
    ],
)
def test_the_fault_follows_from_what_was_counted(rows: list[Row], fault: Fault) -> None:
    assert find_fault(rows, "here", TERMS, node_count=8).fault is fault


def test_only_nodes_with_enough_failures_are_avoided_and_few_of_them() -> None:
    rows = [row("here", 3, node="n1"), row("here", 1, node="n2"), row("here", ok=True, node="n3")]
    assert find_fault(rows, "here", TERMS, node_count=8) == FoundFault(Fault.NODES, ("n1",))
    assert find_fault([row("here", 3, node="n1")], "here", TERMS, node_count=3).fault is Fault.CLUSTER
    assert find_fault([row("here", 3, node="n1")], "here", TERMS).fault is Fault.CLUSTER, "nodes are not known"


@pytest.mark.parametrize(
    ("since", "did_well", "is_closed"),
    [([1], [], False), ([1, 2], [], True), ([1, 2], [1], True), ([1, 2], [3], False), ([1, 2, 9], [3], False)],
)
def test_all_are_held_back_unless_others_do_well(since: list[int], did_well: list[int], is_closed: bool) -> None:
    assert is_fault_of_all(since, did_well, TERMS) is is_closed


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause_us(TERMS, level) // 1_000_000 for level in (0, 1, 2, 6, 7, 20, 10_000)] == [
        *(30, 60, 120, 1920),
        *(3600, 3600, 3600),
    ]


def test_the_reason_says_what_was_seen() -> None:
    assert reason_of(3, TERMS, "exit code 127") == (
        "3 tasks in a row failed there within 10 s, more than elsewhere; the last: exit code 127"
    )
