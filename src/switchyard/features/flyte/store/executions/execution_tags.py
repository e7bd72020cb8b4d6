"""Queries about tags and labels of executions, by which lists are filtered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from switchyard.features.flyte.store.entities.entity_filters import condition
from switchyard.features.flyte.store.tables.executions_tables import execution_tags, executions
from switchyard.features.flyte.workflow.lists.list_query import ListFilter
from switchyard.store.engine.database import Tx

# The store's words for what filters name, with the kind of row and its column.
TAG_COLUMNS = {"tag_name": ("tag", "key"), "label_key": ("label", "key"), "label_value": ("label", "value")}


def tags_insert(tx: Tx, execution_id: str, *, tags: Sequence[str], labels: Mapping[str, str]) -> None:
    rows = [("tag", name, "") for name in dict.fromkeys(tags)] + [("label", *pair) for pair in labels.items()]
    if rows:
        values = [{"execution_id": execution_id, "kind": kind, "key": key, "value": value} for kind, key, value in rows]
        tx.execute(sa.insert(execution_tags), values)


def tag_conditions(tx: Tx, filters: Sequence[ListFilter]) -> list[sa.ColumnElement[bool]]:
    """The conditions that filters on tags and labels make. Filters on labels hold for one and the same label."""
    of_labels = [one for one in filters if TAG_COLUMNS[one.column][0] == "label"]
    groups = [[one] for one in filters if one not in of_labels] + ([of_labels] if of_labels else [])
    return [_has_tag(tx, group) for group in groups]


def _has_tag(tx: Tx, filters: Sequence[ListFilter]) -> sa.ColumnElement[bool]:
    kind = TAG_COLUMNS[filters[0].column][0]
    tags = execution_tags.c
    matches = [condition(tx, one, lambda name: tags[TAG_COLUMNS[name][1]]) for one in filters]
    return sa.exists().where(tags.execution_id == executions.c.id, tags.kind == kind, *matches)
