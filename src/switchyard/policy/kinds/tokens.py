"""Tokens (9): the tokens that jobs hold until their end. A job may ask for more than its rules say, not for less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.model.rules.tokens import TOKENS_OF_JOB_MAX, UNITS_MAX, Namespace
from switchyard.policy.draft import REQUEST, Draft, Entry, RecordOverrides
from switchyard.policy.kinds.kind import Kind, Merge

UnitsOrZero = Annotated[int, Meta(ge=0, le=UNITS_MAX)]  # 0: none, although a less specific level sets some


class TokensValue(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Annotated[dict[Namespace, UnitsOrZero], Meta(min_length=1, max_length=TOKENS_OF_JOB_MAX)]


class TokensKind(Kind):
    number = 9
    name = "tokens"
    title = "tokens"
    value = TokensValue
    merge = Merge.KEY
    depth = 2
    sample: ClassVar[dict[str, Any]] = {"tokens": {"matlab": 1}}

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        ruled = {**draft.tokens, **{path.removeprefix("tokens."): entry.value for path, entry in fields.items()}}
        overrides: RecordOverrides = {
            (self.name, f"tokens.{pool}"): Entry(units, REQUEST)
            for pool, units in draft.request.spec.tokens.items()
            if units > ruled.get(pool, 0)
        }
        return replace(draft, tokens=ruled, own=draft.own | overrides)


def add_task_type_tokens(draft: Draft) -> Draft:
    """Start with the config's tokens for this task type; rules override them pool by pool."""
    needed = draft.platform.task_tokens.get(draft.request.spec.task_type)
    return replace(draft, tokens=dict(needed)) if needed else draft


def combine_tokens(draft: Draft) -> Draft:
    """Take the rules' or the job's number of each pool, whichever is larger; drop pools with none."""
    ruled, asked = draft.tokens, draft.request.spec.tokens
    if not ruled and not asked:
        return draft
    needed = {pool: max(ruled.get(pool, 0), asked.get(pool, 0)) for pool in (*ruled, *asked)}
    return replace(draft, tokens={pool: units for pool, units in needed.items() if units})
