"""Executions of Flyte's workflows: the list, and one with its nodes as a graph and over time."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.features.flyte.model.workflow_execution import PHASES
from switchyard.features.flyte.server.execution_resource import (
    EXECUTION_FILTERS,
    PLACE_CURSOR,
    execution_key,
    need_flyteidl,
    read_execution_filter,
)
from switchyard.features.flyte.server.pages.execution_drawing import draw_gantt, draw_graph, phase_badge, phase_words
from switchyard.model.rules.access import Role
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import ID_CURSOR
from switchyard.server.pages.web_page import PageValues, WebPage

ROWS = 50
NODES_SHOWN = 300  # on one page; the others follow
VALUE_CHARS_MAX = 2000  # of an input or output; `yard flyte show -o json` has all
FINAL_PHASES = ("SUCCEEDED", "FAILED", "ABORTED")
MORE_FIELDS = ("project", "domain", "owner", "cluster", "pool", "label")


def load_list(call: Call) -> PageValues:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_page

    wanted = read_execution_filter(call)
    page = execution_page(call.context, call.actor, wanted, before=call.id_cursor, limit=ROWS)
    filters = {name: value for name, value in call.query if name != "cursor"}
    return {
        "executions": page.items,
        "next": page.next,
        "is_first": call.id_cursor is None,
        "filters": filters,
        "phases": PHASES,
        "more_fields": MORE_FIELDS,
        "has_more_filters": not filters.keys().isdisjoint(MORE_FIELDS),
    }


def load_one(call: Call) -> PageValues:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_details
    from switchyard.features.flyte.service.executions.calls.explanations import explain_execution
    from switchyard.features.flyte.service.executions.nodes.node_outlines import node_page

    context, actor, key = call.context, call.actor, execution_key(call)
    details = execution_details(context, actor, key)
    offset = call.number("cursor", 0)
    nodes = node_page(context, actor, key, offset=offset, limit=NODES_SHOWN)
    execution = details.execution
    may_submit = actor.may_project(Role.SUBMIT, execution.project)
    return {
        "title": execution.name,
        "details": details,
        "execution": execution,
        "address": f"/executions/{execution.project}/{execution.domain}/",
        "told": explain_execution(context, actor, key),
        "graph": draw_graph(nodes.items) if offset == 0 and nodes.next is None else None,
        "gantt": draw_gantt(nodes.items, begin_us=execution.created_us, end_us=execution.ended_us or context.now_us()),
        "offset": offset,
        "next": nodes.next,
        "is_final": execution.phase in FINAL_PHASES,
        "may_submit": may_submit,
        "may_stop": actor.may_project(Role.OPERATE, execution.project)
        or (may_submit and execution.owner == actor.name),
        "value_text": _value_text,
    }


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


FILTERS = {"phase_words": phase_words, "phase_badge": phase_badge}
TEMPLATES = "switchyard.features.flyte.server.pages"
LIST_PAGE = WebPage(
    "/executions",
    "executions.html",
    "Executions",
    load_list,
    (*EXECUTION_FILTERS, ID_CURSOR),
    live=("rows",),
    refresh_s=5.0,
    pause_s=2.0,
    is_heavy=True,
    menu="Executions",
    templates=TEMPLATES,
    filters=FILTERS,
)
ONE_PAGE = WebPage(
    "/executions/{project}/{domain}/{execution}",
    "execution.html",
    "Execution",
    load_one,
    (PLACE_CURSOR,),
    live=("heading", "actions", "graph", "nodes", "placement", "facts"),
    refresh_s=5.0,
    pause_s=2.0,
    is_heavy=True,
    templates=TEMPLATES,
    filters=FILTERS,
)
PAGES = (LIST_PAGE, ONE_PAGE)
