"""What a job needs of token pools: whether there are such pools, how many it holds in all, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from switchyard.errors import BadRequest, UnknownName, YardError
from switchyard.model.idset import IdSet, parse_array
from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL
from switchyard.policy.admit import Admitted
from switchyard.service.context import Context

NAMES_LISTED = 50


def refuse_unknown_pools(context: Context, admitted: Admitted) -> None:
    """Fail closed: a pool that nobody registered, or more than any pool may have, would let the job wait for ever."""
    if not context.tokens.pools.is_enforced:
        return
    entries, most = context.snapshots.token_pools.entries, context.tokens.quota_max
    array = None if admitted.request.array is None else parse_array(admitted.request.array)
    at_once = 1 if array is None else min(len(array[0]), array[1] or len(array[0]))
    for namespace, units in admitted.draft.tokens.items():
        if namespace not in entries:
            known = ", ".join(sorted(entries)[:NAMES_LISTED]) or "none"
            raise UnknownName(f"There is no token pool {namespace!r}.", next_step=f"Known token pools: {known}.")
        if units * at_once > most:
            raise BadRequest(
                f"It asks for {units * at_once} tokens of {namespace}, and no pool has more than {most}.",
                next_step="Ask for less; of an array, let fewer tasks run at once, as in 0-99%10.",
            )


def needs_of(tokens: str | None, array: str | None, array_max: int | None) -> dict[str, int]:
    """What a job holds while it lives: of an array as much as its tasks can use at once."""
    if not tokens:
        return {}
    needs = msgspec.json.decode(tokens, type=dict[str, int])
    if array is None:
        return needs
    at_once = len(IdSet.parse(array))
    at_once = at_once if array_max is None else min(at_once, array_max)
    return {namespace: units * at_once for namespace, units in needs.items()}


def needs_of_row(row: Any) -> dict[str, int]:
    return needs_of(row.tokens, row.array, row.array_max)


def why_tokens(needs: Mapping[str, int]) -> str:
    """Until the leader has looked, and can say who holds them."""
    return f"waits for tokens: {', '.join(f'{pool} {units}' for pool, units in needs.items())}"


def token_hints(context: Context, row: Any) -> list[str]:
    """How many more of each pool would let a waiting job go; pools that do not answer give no advice."""
    pools, entries = context.tokens.pools, context.snapshots.token_pools.entries
    if not pools.is_enforced or State(row.state) is not State.PENDING:
        return []
    found: list[str] = []
    for namespace, units in needs_of_row(row).items():
        if namespace not in entries:
            found.append(f"a token pool {namespace}: `yard token-pool register`")
            continue
        try:
            standing = pools.stand(namespace)
        except YardError:
            continue
        lacking = standing.used + units - standing.quota
        if lacking > 0:
            more = f"{lacking} more {namespace} token{'s' if lacking > 1 else ''}"
            found.append(more if units <= standing.quota else f"{more}, a quota of {units} or more")
    return found


def token_notes(context: Context, row: Any) -> list[str]:
    """What `explain` says of a job's tokens."""
    needs = needs_of_row(row)
    state = State(row.state)
    if not needs or state in FINAL:
        return []
    if not context.tokens.pools.is_enforced:
        how = "not enforced: this server's token pools grant everything (resourcemanager.type: noop)"
    elif state is State.PENDING and not row.tasks_live:
        how = "taken when it is assigned, in fair order"
    else:
        how = "held until its end"
    return [f"tokens: {', '.join(f'{units} of {namespace}' for namespace, units in needs.items())}; {how}"]
