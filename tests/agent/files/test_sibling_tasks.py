"""Staged tasks wait a moment for their neighbours, and never for longer."""

from __future__ import annotations

import pytest

from switchyard.agent.files.inputs import sibling_tasks
from switchyard.agent.files.inputs.sibling_tasks import HOLD_S, SiblingTasks


def test_staged_tasks_wait_in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(sibling_tasks.time, "monotonic", lambda: now[0])
    siblings = SiblingTasks()
    held = []
    for at, staging in (
        (0.0, {"a"}),
        (HOLD_S, {"a", "b"}),
        (HOLD_S + 0.1, {"a", "b"}),  # the first wave of a
        (HOLD_S + 0.2, {"a", "b"}),
        (2 * HOLD_S + 0.05, {"a", "b"}),  # the first wave of b
        (2 * HOLD_S + 0.2, {"b"}),
        (2 * HOLD_S + 0.3, set[str]()),
    ):
        now[0] = 100.0 + at
        siblings.begin_round(staging)
        held.append("".join(job for job in "ab" if siblings.is_held(job)))
    assert held == ["a", "ab", "b", "ab", "a", "b", ""]
