"""Lines of an event that repeats: at once when its text changes, then one a minute with a count."""

from __future__ import annotations

from switchyard.log_pace import LogPace


def test_an_event_that_repeats_is_logged_at_its_change_and_then_once_a_minute_with_a_count() -> None:
    now = [0.0]
    pace = LogPace(60.0, clock=lambda: now[0])
    assert pace.note("full") == 1
    for _ in range(239):
        now[0] += 0.25
        assert pace.note("full") == 0
    now[0] += 0.25
    assert pace.note("full") == 240
    assert pace.note("read-only") == 1, "another text is logged at once"
    assert pace.note("read-only") == 0
    assert pace.end()
    assert not pace.end()
    assert pace.note("read-only") == 1, "after its end it is logged at once again"
