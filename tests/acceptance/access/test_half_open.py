"""A connection that is half-open: the agent's network vanished without a word, and nobody closed anything."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest

from tests.acceptance.stage import END_S, Stage, graph
from tests.processes import until
from tests.programs import start_agent
from tests.relay import relaying

pytestmark = pytest.mark.xdist_group("half-open")

SILENT_S = 15.0  # what the documents promise
LATE_S = 30.0  # a busy machine's; with the time of a parked poll added it would be 62 s in all
BACK_S = 120.0  # the agent gives its poll up after 23 s; the rest is a busy machine


def test_an_agent_behind_a_half_open_connection_is_down_in_time_and_comes_back(stage: Stage) -> None:
    port = urlsplit(stage.url).port
    assert port is not None
    with relaying(port) as relay, start_agent(stage.folder, relay.url(stage.url), "vanished", graph=graph(2)):
        assert stage.ended(stage.submit("true", cluster="vanished"))["state"] == "SUCCEEDED"
        relay.block()
        since = time.monotonic()
        until(lambda: stage.health("vanished") == "down", SILENT_S + LATE_S, "the cluster is down")
        assert stage.get("/v1/agents?cluster=vanished")["items"][0].get("is_live", False) is False
        assert time.monotonic() - since < SILENT_S + LATE_S
        relay.unblock()
        until(lambda: stage.health("vanished") == "up", BACK_S, "the agent noticed, and is back")
        assert stage.ended(stage.submit("true", cluster="vanished"), timeout_s=END_S)["state"] == "SUCCEEDED"


def test_a_frozen_agent_is_down_in_time(stage: Stage) -> None:
    """Its kernel goes on answering for it, so that the connection looks alive."""
    with stage.agent("frozen-quick") as agent:
        agent.pause()
        until(lambda: stage.health("frozen-quick") == "down", SILENT_S + LATE_S, "the cluster is down")
        agent.resume()
        until(lambda: stage.health("frozen-quick") == "up", BACK_S, "it is back")


@pytest.mark.slow
def test_an_idle_agent_stays_up(stage: Stage) -> None:
    """Longer than a poll is parked, and than the server bears silence: looked at all the time.

    Nothing but waiting. In `make test`, an agent that went down here would be missed by the files that share one.
    """
    with stage.agent("idle"):
        until_s = time.monotonic() + SILENT_S + 10
        while time.monotonic() < until_s:
            assert stage.health("idle") == "up"
            time.sleep(0.2)  # between two looks: that it stays up is the subject
