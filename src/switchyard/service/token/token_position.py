"""How a waiting job stands with its tokens, in words: its place in line, what it lacks, what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import YardError
from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.service.context import Context
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE
from switchyard.service.token.token_needs import needs_of_row
from switchyard.service.token.token_queue import fair_order, impossible_reason, token_waiter_of
from switchyard.store.database import Tx
from switchyard.store.token_pools import job_needing_tokens

WAITERS_READ_MAX = 2000  # jobs that need tokens, looked at for one explanation


@dataclass(frozen=True, slots=True)
class TokenPosition:
    """Who comes before a waiting job: how many (`is_more`: at least), and what they need of the same pools."""

    ahead: int = 0
    is_more: bool = False
    units: Mapping[str, int] = field(default_factory=dict)

    @property
    def position(self) -> str:
        return f"{self.ahead}+" if self.is_more else str(self.ahead + 1)


def token_position(context: Context, tx: Tx, row: Any) -> TokenPosition | None:
    """As the leader would take them now, but for whose turn it is among projects that have had equally many; none: the
    job waits for no token."""
    if not context.tokens.pools.is_enforced or not _waits_for_tokens(row):
        return None
    rows = job_needing_tokens(tx, after="", limit=WAITERS_READ_MAX + 1)
    pools = needs_of_row(row).keys()
    others = [each for each in rows[:WAITERS_READ_MAX] if each.id != row.id and _waits_for_tokens(each)]
    waiters = [token_waiter_of(each) for each in others]
    rivals = [each for each in waiters if each.needs.keys() & pools and impossible_reason(context, each.needs) is None]
    line = fair_order([*rivals, token_waiter_of(row)], {})
    before = line[: [each.id for each in line].index(row.id)]
    units: Counter[str] = Counter()
    for each in before:
        units.update(each.needs)
    return TokenPosition(len(before), len(rows) > WAITERS_READ_MAX, units)


def _waits_for_tokens(row: Any) -> bool:
    """Whether tokens are what a job may wait for: it is not held back, and holds none yet."""
    is_free = row.blocked in (None, BLOCKED_BY_QUEUE)
    return bool(row.tokens) and row.state == State.PENDING.value and is_free and not row.tasks_live


def token_hints(
    context: Context, needs: Mapping[str, int], *, line: TokenPosition | None = None, at_once: int = 1
) -> list[str]:
    """How many more of each pool would let a job go; pools that do not answer give no advice. `at_once`: its tasks."""
    pools, entries = context.tokens.pools, context.snapshots.token_pools.entries
    if not pools.is_enforced:
        return []
    before = line.units if line is not None else {}
    found: list[str] = []
    for namespace, units in needs.items():
        if namespace not in entries:
            found.append(f"a token pool {namespace}: `yard token-pool register`")
            continue
        try:
            standing = pools.stand(namespace)
        except YardError:
            continue
        lacking = standing.used + before.get(namespace, 0) + units - standing.quota
        if lacking > 0:
            more = f"{lacking} more {namespace} token{'s' if lacking > 1 else ''}"
            is_too_much = units > standing.quota
            found.append(more + (_above_quota_hint(units, standing.quota, at_once) if is_too_much else ""))
    return found


def _above_quota_hint(units: int, quota: int, at_once: int) -> str:
    fewer = quota * at_once // units
    tasks = f"; or at most {fewer} task{'s' if fewer > 1 else ''} at once (%{fewer})" if fewer and at_once > 1 else ""
    return f", a quota of {units} or more{tasks}"


def token_shortage_reason(context: Context, needs: Mapping[str, int]) -> str:
    """Why a job that comes now would wait for tokens; empty: it would not."""
    if not needs or not context.tokens.pools.is_enforced:
        return ""
    if (why := impossible_reason(context, needs)) is not None:
        return why
    short = []
    for namespace, units in needs.items():
        try:
            standing = context.tokens.pools.stand(namespace)
        except YardError as exc:
            return f"the token pool {namespace} does not answer: {exc.detail}"
        if standing.used + units > standing.quota:
            short.append(f"{namespace} {standing.used}/{standing.quota}, asks {units}")
    return f"waits for tokens: {'; '.join(short)}" if short else ""


def token_notes(context: Context, row: Any, line: TokenPosition | None) -> list[str]:
    """What `explain` says of a job's tokens."""
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
