"""Deliver open inquiries to agents."""

from __future__ import annotations

import msgspec

from switchyard.model.cluster.quote import QUOTES_MAX, QuoteAsk
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.reserve.inquiries import OPEN_INQUIRIES_MAX
from switchyard.store.clusters import quotes as store

INQUIRY_LOOK_US = 61_000_000  # no inquiry is open for longer than this


class InquiryDelivery:
    """Remembers which inquiries were sent to which agent, so that an inquiry is sent once and a poll can stay parked.

    Call `note` when any server opens an inquiry: without it, polls do not look for inquiries.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sent: dict[tuple[str, str], int] = {}  # agent, shape → when the inquiry was opened
        self._look_until_us = 0
        self.note()

    def note(self) -> None:
        self._look_until_us = self._context.steady_us() + INQUIRY_LOOK_US

    def may_have(self) -> bool:
        return self._context.steady_us() < self._look_until_us

    def next(self, agent: AgentEntry) -> list[QuoteAsk]:
        """Return the open inquiries for this agent that it has not got yet."""
        now_us = self._context.now_us()
        with self._context.database.read() as tx:
            rows = store.ask_list_open(tx, agent.cluster_id, now_us=now_us, limit=OPEN_INQUIRIES_MAX)
        new = [row for row in rows if self._sent.get((agent.id, row.shape)) != row.asked_us][:QUOTES_MAX]
        if new:
            oldest_us = now_us - INQUIRY_LOOK_US
            self._sent = {key: at_us for key, at_us in self._sent.items() if at_us > oldest_us}
            self._sent |= {(agent.id, row.shape): row.asked_us for row in new}
        return [QuoteAsk(row.shape, msgspec.Raw(row.body.encode())) for row in new]
