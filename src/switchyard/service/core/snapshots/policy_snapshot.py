"""Reads rules that changed in the database into the policy."""

from __future__ import annotations

import msgspec
import structlog

from switchyard.errors import YardError
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.scope import level_of
from switchyard.policy.resolve import Policy, RuleRow
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.store.engine.database import Tx
from switchyard.store.rules import attributes as attribute_store

log = structlog.get_logger()


def next_policy(tx: Tx, policy: Policy, version: int) -> Policy:
    """Return the policy with the rows that changed. A restored database has a lower version: then read all rows."""
    if version < policy.version:
        policy = Policy(-1, kinds=policy.kinds, platform=policy.platform)
    return policy.changed(
        version, (_rule_row(policy, row) for row in attribute_store.attribute_list_since(tx, policy.version))
    )


def _rule_row(policy: Policy, row: attribute_store.StoredAttribute) -> RuleRow:
    kind, key = policy.kinds.by_name.get(row.kind), (row.domain, row.project, row.workflow, row.launch_plan)
    value = None
    try:
        if kind is not None and row.value is not None:
            value, ignored = kind.restrict(kind.read(msgspec.json.decode(row.value)), level_of(key))
            if ignored:
                log.warning("part of a rule is ignored", kind=row.kind, row=row.id, scope=key, reason=ignored)
    except YardError as exc:  # written by another version of the kind's package; the other rules still apply
        log.error("attribute not understood", kind=row.kind, row=row.id, error=exc.detail)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("attributes", row.id, f"{row.kind}: {exc}")
    return RuleRow(row.id, row.kind, key, value)
