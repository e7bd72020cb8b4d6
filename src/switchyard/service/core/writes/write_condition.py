"""Conditional writes: a write succeeds only if the stored value is still the value that the caller read."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import Outdated
from switchyard.store.rules import attributes


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """The condition of a write. Without a condition the last writer wins (Flyte's API)."""

    if_match: str | None = None  # the row must have this etag; `*`: the row must exist
    if_none_match: bool = False  # the row must not exist

    def check(self, row: attributes.StoredAttribute | None, what: str) -> None:
        self.check_tag(None if row is None else row.etag, "" if row is None else row.changed_by, f"row of {what}")

    def check_tag(self, etag: str | None, changed_by: str, what: str) -> None:
        """Raise Outdated if the condition is not met. `etag`: of the stored value; None: no value is stored."""
        if self.if_none_match and etag is not None:
            raise Outdated(
                f"There is a {what} already, changed by {changed_by}.",
                next_step="Read it, then write with If-Match and its ETag.",
            )
        if self.if_match is not None and (etag is None or self.if_match not in ("*", etag)):
            now = "it is gone" if etag is None else f"{changed_by} changed it"
            raise Outdated(f"The {what} is no longer what you read: {now}.")
