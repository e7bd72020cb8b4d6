"""Asks for files of running jobs: handed over once, answered only by the agent that was asked, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from switchyard.errors import LimitReached
from switchyard.model.files.file_views import ASKS_IN_POLL_MAX, FileAnswer, FileAsk, ViewState
from switchyard.server.file_asks import FILES_PER_JOB_MAX, FILES_PER_USER_MAX, FileAsks


def ask_of(ask_id: str, agent: str = "agent") -> FileAsk:
    return FileAsk(id=ask_id, agent=agent, cluster="cluster", job="job", fence=1, name=b"file", wait_s=30)


def test_an_ask_is_handed_over_once_and_answered_by_its_agent_alone() -> None:
    async def run() -> None:
        asks = FileAsks()
        mine = ask_of(asks.new_id())
        with asks.opened(mine) as answer:
            assert (asks.has("agent"), asks.has("other")) == (True, False)
            assert (asks.take("agent"), asks.take("agent")) == ([mine], [])
            reply = FileAnswer(id=mine.id, state=ViewState.SEEN, data=b"x")
            assert asks.settle("other", reply) is None
            assert not answer.done()
            assert asks.settle("agent", reply) is None
            assert answer.result() is reply
        assert asks.settle("agent", reply) is None, "the reader has gone"

    asyncio.run(run())


def test_an_ask_of_another_server_is_known_by_its_origin() -> None:
    async def run() -> None:
        here, there = FileAsks(), FileAsks()
        ask = ask_of(here.new_id())
        assert not here.add_remote(ask), "our own notice comes back to us"
        assert (there.add_remote(ask), there.add_remote(ask)) == (True, False)
        assert there.take("agent") == [ask]
        reply = FileAnswer(id=ask.id, state=ViewState.SEEN)
        assert there.settle("agent", reply) == ask, "it has to be passed on"
        assert there.settle("agent", reply) is None
        with here.opened(ask_of(here.new_id())):
            pass
        assert not here.has("agent"), "nothing is left of a reader who has gone"

    asyncio.run(run())


def test_one_poll_has_a_bounded_number_of_asks() -> None:
    async def run() -> None:
        asks = FileAsks()
        for number in range(ASKS_IN_POLL_MAX + 3):
            asks.add_remote(ask_of(f"elsewhere-{number}"))
        assert len(asks.take("agent")) == ASKS_IN_POLL_MAX
        assert asks.has("agent")
        assert len(asks.take("agent")) == 3

    asyncio.run(run())


def test_files_are_bounded_by_job_and_by_user() -> None:
    asks = FileAsks()
    for number in range(FILES_PER_JOB_MAX):
        asks.watch("viewer", ("job", 1, b"%d" % number))
    with pytest.raises(LimitReached, match="of job job"):
        asks.watch("viewer", ("job", 1, b"more"))
    asks.watch("viewer", ("job", 1, b"0"))  # a file that counts already
    asks.watch("user", ("job", 1, b"0"))  # a viewer takes nothing from the job's owner
    for number in range(FILES_PER_USER_MAX - 1):
        asks.watch("user", (f"job-{number}", 1, b"file"))
    with pytest.raises(LimitReached, match="You look at"):
        asks.watch("user", ("another", 1, b"file"))
    asks.leave("user", ("job-0", 1, b"file"), is_following=False)
    asks.watch("user", ("another", 1, b"file"))


def test_a_user_who_read_much_waits() -> None:
    asks = FileAsks()
    asks.count_bytes("user", 2**30)
    assert asks.pause_s("user") > 60
    assert asks.pause_s("other") == 0
