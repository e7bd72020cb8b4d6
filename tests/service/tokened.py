"""Services with token pools in memory and a few queues, whose leader goes round by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.tokens import TokenPoolRequest
from switchyard.server.config.config import read_config
from switchyard.server.config.platform_config import layout_of
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.reserve.token_queue import TokenReservations
from switchyard.service.reserve.token_reservations import reconcile_tokens
from switchyard.service.token import pool_calls
from switchyard.service.upkeep import give_places
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.queued import CONFIG, states
from tests.service.rig import ADMIN, Clock, Rig, RigAgent

TOKENS = "resourcemanager: {type: memory, resourceMaxQuota: 100}\n"


class Yard(Rig):
    """A rig whose leader does what concerns tokens, round by round."""

    def __init__(self, url: str, folder: Path, *, clock: Clock | None = None) -> None:
        config = read_config(CONFIG + TOKENS, where="config")
        super().__init__(url, folder, config=config, clock=clock)
        self.care = TokenReservations()
        store_file_layout(self.context, layout_of(config))
        self.context.snapshots.refresh(force=True)

    def round(self) -> None:
        assert self.leader.epoch is not None
        reconcile_tokens(self.context, self.care, term=self.leader.epoch)
        route_pending(self.context, self.leader, self.care)
        give_places.give_free_places(self.context, self.leader, self.care)

    def pool(self, name: str, quota: int) -> None:
        pool_calls.register(self.context, ADMIN, name, TokenPoolRequest(quota))

    def held(self, name: str) -> int:
        return pool_calls.pool_get(self.context, name).used

    def ask(self, *tags: str, **fields: Any) -> str:
        return self.submit(a_request(tags=list(tags), **fields)).id

    def states(self, ids: Iterable[str]) -> list[str]:
        return states(self, ids)

    def end(self, agent: RigAgent, *ids: str) -> None:
        """These jobs run, and end."""
        agent.lease(want=100)
        for job_id in ids:
            row = self.row(job_id)
            agent.report(AttemptRef(job_id, row.fence), ObservedState.SUCCEEDED, exit_code=0)


@contextmanager
def tokened_yard(url: str, folder: Path) -> Iterator[Yard]:
    """One with two projects, whose pools are open."""
    yard = Yard(url, folder)
    try:
        for name in ("a", "b"):
            yard.project(name)
        yard.round()
        yield yard
    finally:
        yard.close()
