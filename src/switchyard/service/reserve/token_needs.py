"""The tokens that a job needs: check that the pools exist, and compute the units it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from switchyard.errors import BadRequest, UnknownName
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.rules.attributes import JobPolicy
from switchyard.policy.admit import AdmittedJob
from switchyard.service.core.context import Context

NAMES_LISTED = 50


def refuse_unknown_pools(context: Context, admitted: AdmittedJob) -> None:
    """Refuse a job that would wait for ever: a pool is not registered, or the job needs more units than a pool has."""
    if not context.tokens.pools.is_enforced:
        return
    entries, units_max = context.snapshots.token_pools.entries, context.tokens.quota_max
    for namespace, units in needs_of_request(admitted).items():
        if namespace not in entries:
            known = ", ".join(sorted(entries)[:NAMES_LISTED]) or "none"
            raise UnknownName(
                f"There is no token pool {namespace!r}, which {_source_of_need(admitted, namespace)} asks for.",
                next_step=f"Known token pools: {known}.",
            )
        if units > units_max:
            raise BadRequest(
                f"It asks for {units} tokens of {namespace} ({_source_of_need(admitted, namespace)} says so), "
                f"and no pool has more than {units_max}.",
                next_step="Ask for less; of an array, let fewer tasks run at once, as in 0-99%10.",
            )


def _source_of_need(admitted: AdmittedJob, namespace: str) -> str:
    """Return what makes the job need tokens of a pool: the request, a rule, or the server's config."""
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
    """Return how many tasks of the job its request and its rules let run at once."""
    if admitted.request.array is None:
        return 1
    indexes, requested_max = parse_array(admitted.request.array)
    return _at_once(indexes, requested_max, admitted.draft.parallel_max)


class TokenNeed(Protocol):
    """The columns of a stored job that its token needs depend on. Several queries return such rows."""

    @property
    def tokens(self) -> str | None: ...
    @property
    def array(self) -> str | None: ...
    @property
    def array_max(self) -> int | None: ...


def tasks_at_once_of_row(row: TokenNeed) -> int:
    """Return how many tasks of a stored job run at once. The column `array_max` already includes its rules."""
    return 1 if row.array is None else _at_once(IdSet.parse(row.array), row.array_max)


def _at_once(indexes: IdSet, *bounds: int | None) -> int:
    return min([len(indexes), *(bound for bound in bounds if bound is not None)])


def needs_of_row(row: TokenNeed) -> dict[str, int]:
    """Return the units a job holds from assignment to end. An array holds those of all tasks that run at once."""
    if not row.tokens:
        return {}
    at_once = tasks_at_once_of_row(row)
    needs = msgspec.json.decode(row.tokens, type=dict[str, int])
    return {namespace: units * at_once for namespace, units in needs.items()}


def token_wait_reason(needs: Mapping[str, int]) -> str:
    """Return the reason shown until the leader's next round, which adds the holders of the tokens."""
    return f"waits for tokens: {', '.join(f'{pool} {units}' for pool, units in needs.items())}"
