"""Clusters that are asked for quotes, and what they answer."""

from __future__ import annotations

from typing import Any

from switchyard.model.cluster.quote import QuoteGiven
from switchyard.model.cluster.selection import Select
from switchyard.service.quote.quote_answers import InquiryDelivery, store_answers
from tests.builders import a_request
from tests.service.rig import RigAgent

WAIT_S = 2


def wants(name: str = "soonest", **fields: Any) -> Any:
    return a_request(select=Select(name), **fields)


def asked(agent: RigAgent, handing: InquiryDelivery | None = None) -> list[str]:
    """What an agent is asked, by a server that has handed out nothing yet."""
    context = agent.rig.context
    entry = context.snapshots.fleet.agents[agent.id]
    return [each.shape for each in (handing or InquiryDelivery(context)).next(entry)]


def say(agent: RigAgent, shape: str | None = None, **quote: Any) -> None:
    context = agent.rig.context
    shape = shape or asked(agent)[0]
    store_answers(context, context.snapshots.fleet.agents[agent.id], [QuoteGiven(shape=shape, **{"can": True} | quote)])
