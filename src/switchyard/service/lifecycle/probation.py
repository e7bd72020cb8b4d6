"""The changes of one stored probation: it begins, a canary passes or fails, it ends. No I/O."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from switchyard.model.cluster.probation import Canary
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.route.probation import ProbationTerms, pause_us
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.store.clusters.probations import ProbationRow

CANARY_US_MAX = 600_000_000  # without a result by then, another task is tried: it may wait in a batch system
LEVEL_MAX = 20


def begin_probation(
    before: ProbationRow | None,
    *,
    key: tuple[str, str, str],
    subject: str,
    reason: str,
    terms: ProbationTerms,
    now_us: int,
) -> ProbationRow:
    """Return a new probation of a cluster, an owner and a node. `before`: the last one, which makes pauses longer."""
    level = 0 if before is None else min(before.level + 1, LEVEL_MAX)
    cluster_id, owner_id, node = key
    return ProbationRow(
        cluster_id=cluster_id,
        owner_id=owner_id,
        node=node,
        subject=subject,
        state="on",
        is_confirmed=False,
        reason=reason[:500],
        since_us=now_us,
        next_us=now_us + pause_us(terms, level),
        last_us=now_us,
        passed=0,
        level=level,
        canaries="[]",
    )


def confirm_probation(row: ProbationRow) -> ProbationRow:
    """An operator knows that the cluster is broken: no canaries, and no end by itself."""
    return replace(row, is_confirmed=True, canaries="[]")


def exempt_cluster(cluster_id: str, reason: str, now_us: int) -> ProbationRow:
    """Return the row of a cluster that is never put on probation."""
    row = begin_probation(
        None, key=(cluster_id, "", ""), subject="", reason=reason, terms=ProbationTerms(), now_us=now_us
    )
    return replace(row, state="off")


def end_probation(row: ProbationRow, now_us: int) -> ProbationRow:
    return replace(row, state="ended", last_us=now_us, canaries="[]", is_confirmed=False)


def pass_canary(row: ProbationRow, canaries: list[Canary], terms: ProbationTerms, now_us: int) -> ProbationRow:
    """A canary did well: the next one may start at once, and enough of them end the probation."""
    row = replace(row, passed=row.passed + 1, next_us=now_us, last_us=now_us, canaries=write_canaries(canaries))
    return end_probation(row, now_us) if row.passed >= terms.successes and not row.is_confirmed else row


def fail_canary(row: ProbationRow, canaries: list[Canary], terms: ProbationTerms, now_us: int) -> ProbationRow:
    """A canary failed quickly: the pause before the next one doubles."""
    level = min(row.level + 1, LEVEL_MAX)
    next_us = now_us + pause_us(terms, level)
    return replace(row, passed=0, level=level, next_us=next_us, last_us=now_us, canaries=write_canaries(canaries))


def read_canaries(row: ProbationRow) -> list[Canary]:
    try:
        return msgspec.json.decode(row.canaries, type=list[Canary])
    except UNREADABLE_ERRORS as exc:  # the tasks are forgotten, and others are tried
        log_unreadable("probations", row.cluster_id, f"column canaries: {exc}")
        return []


def write_canaries(canaries: list[Canary]) -> str:
    return msgspec.json.encode(canaries).decode()


def is_due(row: ProbationRow, terms: ProbationTerms, now_us: int) -> bool:
    """Whether another canary may start now."""
    return not row.is_confirmed and now_us >= row.next_us and len(read_canaries(row)) < terms.canaries
