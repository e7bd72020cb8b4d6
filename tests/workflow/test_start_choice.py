"""Which attempts of a step begin, wait or fail: a table of cases."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_state import AttemptFailure, TaskStart
from switchyard.features.flyte.workflow.engine.start_choice import StartRoom, WaitingStart, choose_starts

TASK = EntityId(EntityKind.TASK, "p", "d", "t", "v1")
TOO_LARGE = AttemptFailure("ExecutionTooLarge", "too many rows")


def start_of(name: str) -> TaskStart:
    """`n0`: the first attempt of node n0; `n0/1`: the second one."""
    node_id, _, attempt = name.partition("/")
    return TaskStart(node_id, int(attempt or 0), TASK, None, None)


@dataclass(frozen=True)
class Case:
    about: str
    room: StartRoom
    starts: tuple[str, ...]
    begin: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    waits: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)


CASES = [
    Case("no bound", StartRoom(), ("a", "b", "c"), ("a", "b", "c")),
    Case("nothing to start", StartRoom(jobs=0, reason="full"), (), ()),
    Case("room for two", StartRoom(2, "full"), ("a", "b", "c", "d"), ("a", "b"), waits={"c": "full", "d": "full"}),
    Case("no room at all", StartRoom(0, "full"), ("a", "b"), (), waits={"a": "full", "b": "full"}),
    Case("further attempts first", StartRoom(1, "full"), ("a", "b/1"), ("b/1",), waits={"a": "full"}),
    Case("further attempts wait, too", StartRoom(0, "full"), ("b/1",), (), waits={"b/1": "full"}),
    Case("one step has enough", StartRoom(most=2), ("a", "b", "c"), ("a", "b")),
    Case("further attempts all at once", StartRoom(most=1), ("a/1", "b/2", "c"), ("a/1", "b/2")),
    Case("too many rows", StartRoom(rows=1, failure=TOO_LARGE), ("a", "b", "c"), ("a",), refusals=("b", "c")),
    Case("too large before full", StartRoom(0, "full", 0, TOO_LARGE), ("a",), (), refusals=("a",)),
    Case("known to wait", StartRoom(), ("a", "b"), ("b",), waits={"a": "no disk"}, known={"a": "no disk"}),
    Case("a known one takes no room", StartRoom(1, "full"), ("a", "b"), ("b",), waits={"a": "x"}, known={"a": "x"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_starts_are_chosen_in_one_pass(case: Case) -> None:
    known = {key_of(name): WaitingStart(start_of(name), why) for name, why in case.known.items()}
    choice = choose_starts([start_of(name) for name in case.starts], case.room, known)
    assert choice.begin == [start_of(name) for name in case.begin]
    assert list(choice.refusals) == [key_of(name) for name in case.refusals]
    assert {key: wait.reason for key, wait in choice.waits.items()} == {
        key_of(name): why for name, why in case.waits.items()
    }


def key_of(name: str) -> tuple[str, int]:
    start = start_of(name)
    return start.node_id, start.attempt
