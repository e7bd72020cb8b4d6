"""The session's state: what each event makes of it, and that no event hides a worse one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from switchyard.agent.loop.poller import PollSession

Event = Callable[[PollSession], None]


def begin(session: PollSession) -> None:
    session.begin(7)


def require_sync(session: PollSession) -> None:
    session.require_sync()


def doubt(session: PollSession) -> None:
    session.doubt()


def end(session: PollSession) -> None:
    session.end(session.number)


def end_of_an_earlier_one(session: PollSession) -> None:
    session.end(6)


@pytest.mark.parametrize(
    ("events", "is_listened_to", "may_start", "needs_sync"),
    [
        ([], False, False, True),
        ([require_sync], False, False, True),
        ([doubt], False, False, True),
        ([begin], True, True, False),
        ([begin, require_sync], True, True, True),
        ([begin, doubt], True, False, True),
        ([begin, doubt, require_sync], True, False, True),
        ([begin, require_sync, doubt], True, False, True),
        ([begin, end], False, True, True),
        ([begin, end_of_an_earlier_one], True, True, False),
        ([begin, doubt, end], False, False, True),
        ([begin, end, doubt], False, False, True),
        ([begin, end, require_sync], False, True, True),
        ([begin, doubt, begin], True, True, False),
        ([begin, end, begin], True, True, False),
    ],
)
def test_what_is_known_of_the_session_after(
    events: list[Event], is_listened_to: bool, may_start: bool, needs_sync: bool
) -> None:
    session = PollSession()
    for event in events:
        event(session)
    assert (session.is_listened_to, session.may_start, session.needs_sync) == (is_listened_to, may_start, needs_sync)
    assert session.is_accepted == (begin in events)
