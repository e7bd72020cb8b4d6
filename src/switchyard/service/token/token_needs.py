"""What a job needs of token pools: whether there are such pools, and how many it holds in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from switchyard.errors import BadRequest, UnknownName
from switchyard.model.attributes import JobPolicy
from switchyard.model.idset import IdSet, parse_array
from switchyard.policy.admit import AdmittedJob
from switchyard.service.context import Context

NAMES_LISTED = 50


def refuse_unknown_pools(context: Context, admitted: AdmittedJob) -> None:
    """Fail closed: a pool that nobody registered, or more than any pool may have, would let the job wait for ever."""
    if not context.tokens.pools.is_enforced:
        return
    entries, most = context.snapshots.token_pools.entries, context.tokens.quota_max
    for namespace, units in needs_of_request(admitted).items():
        if namespace not in entries:
            known = ", ".join(sorted(entries)[:NAMES_LISTED]) or "none"
            raise UnknownName(
                f"There is no token pool {namespace!r}, which {_source_of_need(admitted, namespace)} asks for.",
                next_step=f"Known token pools: {known}.",
            )
        if units > most:
            raise BadRequest(
                f"It asks for {units} tokens of {namespace} ({_source_of_need(admitted, namespace)} says so), "
                f"and no pool has more than {most}.",
                next_step="Ask for less; of an array, let fewer tasks run at once, as in 0-99%10.",
            )


def _source_of_need(admitted: AdmittedJob, namespace: str) -> str:
    """Whose word it is that the job needs tokens of a pool."""
    if namespace in admitted.request.spec.tokens:
        return "the request"
    for used in msgspec.json.decode(admitted.record.body, type=JobPolicy).values:
        if used.kind == "tokens" and used.field == f"tokens.{namespace}" and used.scope is not None:
            return f"the rule `tokens` at {used.scope}"
    return f"the server's config for the task type {admitted.request.spec.task_type!r}"


def needs_of_request(admitted: AdmittedJob) -> dict[str, int]:
    if not admitted.draft.tokens:
        return {}
    at_once = tasks_at_once(admitted)
    return {namespace: units * at_once for namespace, units in admitted.draft.tokens.items()}


def tasks_at_once(admitted: AdmittedJob) -> int:
    """As many as the job and its rules let run."""
    if admitted.request.array is None:
        return 1
    indexes, most = parse_array(admitted.request.array)
    return _at_once(indexes, most, admitted.draft.parallel_max)


def tasks_at_once_of_row(row: Any) -> int:
    """The same of a stored job, whose `array_max` has its rules in it."""
    return 1 if row.array is None else _at_once(IdSet.parse(row.array), row.array_max)


def _at_once(indexes: IdSet, *bounds: int | None) -> int:
    return min([len(indexes), *(bound for bound in bounds if bound is not None)])


def needs_of_row(row: Any) -> dict[str, int]:
    """What a job holds while it lives: of an array as much as its tasks can use at once."""
    if not row.tokens:
        return {}
    at_once = tasks_at_once_of_row(row)
    needs = msgspec.json.decode(row.tokens, type=dict[str, int])
    return {namespace: units * at_once for namespace, units in needs.items()}


def token_wait_reason(needs: Mapping[str, int]) -> str:
    """Until the leader has looked, and can say who holds them."""
    return f"waits for tokens: {', '.join(f'{pool} {units}' for pool, units in needs.items())}"
