"""The words of blockers and of events are stored. They are plain text there, and each is written in one way."""

from __future__ import annotations

import pytest

from switchyard.model.job.blocker import Blocker, change_blocked, has_blocker, is_held_back
from switchyard.model.job.event_kind import EVENT_OF_STATE, TASK_PREFIX, EventKind
from switchyard.model.job.job import State


@pytest.mark.parametrize(
    ("blocked", "add", "remove", "result"),
    [
        (None, Blocker.HOLD, None, "hold"),
        ("hold", Blocker.HOLD, None, "hold"),
        ("hold", Blocker.AFTER, None, "after,hold"),
        ("after,hold", None, Blocker.HOLD, "after"),
        ("queue", None, Blocker.QUEUE, None),
        ("queue", None, Blocker.QUOTES, "queue"),
        (None, None, Blocker.QUEUE, None),
        ("", None, None, None),
        (",hold,", None, Blocker.AFTER, "hold"),
        ("hold,of-a-newer-server", None, Blocker.HOLD, "of-a-newer-server"),
    ],
)
def test_a_blocker_is_added_and_removed(
    blocked: str | None, add: Blocker | None, remove: Blocker | None, result: str | None
) -> None:
    changed = change_blocked(blocked, add=add, remove=remove)
    assert changed == result
    assert type(changed) in (str, type(None))


def test_a_blocker_is_a_whole_word() -> None:
    assert has_blocker("after,hold", Blocker.HOLD)
    assert not has_blocker("holding", Blocker.HOLD)
    assert not has_blocker(None, Blocker.HOLD)
    assert [blocker for blocker in Blocker if is_held_back(f"other,{blocker}")] == [Blocker.AFTER, Blocker.HOLD]


def test_each_state_but_the_first_has_an_event() -> None:
    assert {state: kind.value for state, kind in EVENT_OF_STATE.items()} == {
        state: state.value.lower() for state in State if state is not State.PENDING
    }
    assert not [kind for kind in EventKind if kind.startswith(TASK_PREFIX)], "the prefix tells tasks from jobs"
