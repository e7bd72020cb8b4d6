"""How many children begin in a step: a table of cases."""

from __future__ import annotations

import pytest

from switchyard.features.flyte.workflow.engine.child_room import ChildRoom, children_to_begin


@pytest.mark.parametrize(
    ("wanted", "room", "begin", "refused"),
    [
        (5, ChildRoom(), 5, 0),
        (0, ChildRoom(0, 0), 0, 0),
        (5, ChildRoom(live=3), 3, 0),
        (5, ChildRoom(live=0, has_live=True), 0, 0),
        (5, ChildRoom(live=0), 1, 0),  # one at a time, so that the execution goes on
        (5, ChildRoom(live=-7), 1, 0),  # the limit was lowered
        (5, ChildRoom(live=-7, has_live=True), 0, 0),
        (5, ChildRoom(total=3), 3, 2),
        (5, ChildRoom(total=0), 0, 5),
        (5, ChildRoom(total=-1), 0, 5),
        (5, ChildRoom(total=0, live=0), 0, 5),  # no child at all, whatever waits
        (5, ChildRoom(total=3, live=2), 2, 2),
        (5, ChildRoom(total=3, live=0, has_live=True), 0, 2),
        (50, ChildRoom(), 20, 0),  # enough for one step
        (50, ChildRoom(total=30), 20, 20),
        (50, ChildRoom(total=0), 0, 50),
        (50, ChildRoom(live=19), 19, 0),
        (1, ChildRoom(total=1, live=1), 1, 0),
    ],
)
def test_children_begin_within_limits(wanted: int, room: ChildRoom, begin: int, refused: int) -> None:
    assert children_to_begin(wanted, room, most=20) == (begin, refused)
