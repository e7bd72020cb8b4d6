"""Explain how a job waits for tokens: its position, the missing units, and hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import YardError
from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.service.core.context import Context
from switchyard.service.reserve.token_needs import needs_of_row
from switchyard.service.reserve.token_queue import fair_order, impossible_reason, token_waiter_of
from switchyard.store.engine.database import Tx
from switchyard.store.rules.token_pools import job_needing_tokens

WAITERS_READ_MAX = 2000  # jobs that need tokens, read for one explanation


@dataclass(frozen=True, slots=True)
class TokenPosition:
    """The jobs before a waiting job: their number (`is_more`: a lower bound), and the units they need."""

    ahead: int = 0
    is_more: bool = False
    units: Mapping[str, int] = field(default_factory=dict)

    @property
    def position(self) -> str:
        return f"{self.ahead}+" if self.is_more else str(self.ahead + 1)


def token_position(context: Context, tx: Tx, row: Any) -> TokenPosition | None:
    """Return the position of a job that waits for tokens, or None if the job waits for no tokens.

    It is the leader's order, except for the turn of lanes, which only the leader knows.
    """
    if not context.tokens.pools.is_enforced or not _waits_for_tokens(row):
        return None
    rows = job_needing_tokens(tx, after="", limit=WAITERS_READ_MAX + 1)
    pools = needs_of_row(row).keys()
    others = [other for other in rows[:WAITERS_READ_MAX] if other.id != row.id and _waits_for_tokens(other)]
    waiters = [token_waiter_of(other) for other in others]
    rivals = [
        waiter for waiter in waiters if waiter.needs.keys() & pools and impossible_reason(context, waiter.needs) is None
    ]
    ordered = fair_order([*rivals, token_waiter_of(row)], {})
    ahead = ordered[: [waiter.id for waiter in ordered].index(row.id)]
    units: Counter[str] = Counter()
    for waiter in ahead:
        units.update(waiter.needs)
    return TokenPosition(len(ahead), len(rows) > WAITERS_READ_MAX, units)


def _waits_for_tokens(row: Any) -> bool:
    """Return whether a job may wait for tokens: it is PENDING, not blocked otherwise, and holds no tokens yet."""
    is_free = row.blocked in (None, Blocker.QUEUE)
    return bool(row.tokens) and row.state == State.PENDING.value and is_free and not row.tasks_live


def token_hints(
    context: Context, needs: Mapping[str, int], *, line: TokenPosition | None = None, at_once: int = 1
) -> list[str]:
    """Return how many more units of each pool would let the job start. Pools that do not answer are skipped.

    `at_once`: how many tasks of the job run at once.
    """
    pools, entries = context.tokens.pools, context.snapshots.token_pools.entries
    if not pools.is_enforced:
        return []
    units_ahead = line.units if line is not None else {}
    hints: list[str] = []
    for namespace, units in needs.items():
        if namespace not in entries:
            hints.append(f"a token pool {namespace}: `yard token-pool register`")
            continue
        try:
            status = pools.stand(namespace)
        except YardError:
            continue
        lacking = status.used + units_ahead.get(namespace, 0) + units - status.quota
        if lacking > 0:
            hint = f"{lacking} more {namespace} token{'s' if lacking > 1 else ''}"
            is_too_much = units > status.quota
            hints.append(hint + (_above_quota_hint(units, status.quota, at_once) if is_too_much else ""))
    return hints


def _above_quota_hint(units: int, quota: int, at_once: int) -> str:
    fewer = quota * at_once // units
    tasks = f"; or at most {fewer} task{'s' if fewer > 1 else ''} at once (%{fewer})" if fewer and at_once > 1 else ""
    return f", a quota of {units} or more{tasks}"


def token_shortage_reason(context: Context, needs: Mapping[str, int]) -> str:
    """Return why a job submitted now would wait for tokens, or an empty text if it would not wait."""
    if not needs or not context.tokens.pools.is_enforced:
        return ""
    if (reason := impossible_reason(context, needs)) is not None:
        return reason
    short = []
    for namespace, units in needs.items():
        try:
            status = context.tokens.pools.stand(namespace)
        except YardError as exc:
            return f"the token pool {namespace} does not answer: {exc.detail}"
        if status.used + units > status.quota:
            short.append(f"{namespace} {status.used}/{status.quota}, asks {units}")
    return f"waits for tokens: {'; '.join(short)}" if short else ""


def token_notes(context: Context, row: Any, line: TokenPosition | None) -> list[str]:
    """Return the notes of `explain` about a job's tokens."""
    needs = needs_of_row(row)
    state = State(row.state)
    if not needs:
        return []
    if not context.tokens.pools.is_enforced:
        how = "not enforced: this server's token pools grant everything (resourcemanager.type: noop)"
    elif state is State.PENDING and not row.tasks_live:
        place = f"; number {line.position} in line for them" if line is not None else ""
        how = f"taken when it is assigned, in fair order{place}"
    else:
        how = "given back" if state in FINAL_STATES else "held until its end"
    return [f"tokens: {', '.join(f'{units} of {namespace}' for namespace, units in needs.items())}; {how}"]
