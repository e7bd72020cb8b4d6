"""Prints executions and their nodes as tables and fields, and why an execution runs where it does. No command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from switchyard.cli.jobs.verdicts import (
    CHOSEN_MARK,
    print_list,
    print_verdicts,
    print_wrapped_table,
    print_wrapped_text,
)
from switchyard.cli.rules.policy import print_used_values
from switchyard.cli.terminal.output import paint, paint_state, printable
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_duration,
    format_timestamp,
    now_us,
    print_fields,
    print_table,
    shorten,
)
from switchyard.features.flyte.model.workflow_execution import (
    ExecutionDetails,
    ExecutionExplanation,
    ExecutionNode,
    NodeWait,
    TaskVerdicts,
    WorkflowExecution,
)

FINAL_PHASES = ("SUCCEEDED", "FAILED", "ABORTED")
NAME_CHARS_MAX = 21  # of a name that is never shortened: random ones have 20, and the table then fits 80 columns
VALUE_CHARS_MAX = 200  # of one input or output; -o json shows it whole
NOT_BEGUN = "not begun"
COLUMNS = (
    Column("NAME"),
    Column("PHASE"),
    Column("LAUNCHED", flexible=True),
    Column("POOL", flexible=True),
    Column("LABEL", flexible=True),
    Column("CLUSTER", flexible=True),
    Column("PROJECT", flexible=True, optional=True),
    Column("DOMAIN", optional=True),
    Column("OWNER", optional=True),
    Column("AGE", right=True),
    Column("TOOK", right=True, optional=True),
)
NODE_COLUMNS = (
    Column("NODE"),
    Column("RUNS", optional=True),
    Column("PHASE"),
    Column("TRIES", right=True, optional=True),
    Column("JOB"),
    Column("CLUSTER", optional=True),
    Column("TOOK", right=True),
    Column("WHY"),
)


def is_final(execution: WorkflowExecution) -> bool:
    return execution.phase in FINAL_PHASES


def print_executions(executions: Sequence[WorkflowExecution]) -> None:
    now, columns = now_us(), list(COLUMNS)
    if any(len(one.name) > NAME_CHARS_MAX for one in executions):
        columns[0] = replace(columns[0], flexible=True)  # else it is whole, to be copied
    print_table(columns, [_cells(one, now) for one in executions])


def _cells(one: WorkflowExecution, now: int) -> list[str]:
    return [
        one.name,
        one.phase,
        one.launched,
        one.pool,
        one.label,
        ", ".join(one.clusters),
        one.project,
        one.domain,
        one.owner,
        format_age(one.created_us, now),
        format_span(one.started_us, one.ended_us, now),
    ]


def format_span(started_us: int | None, ended_us: int | None, now: int) -> str:
    return "" if started_us is None else format_duration((ended_us or now) - started_us)


def print_details(details: ExecutionDetails) -> None:
    one, now = details.execution, now_us()
    error = details.error
    stopped = f"by {details.abort_by}" + (f": {details.abort_cause}" if details.abort_cause else "")
    counts = ", ".join(f"{count} {phase}" for phase, count in sorted(details.nodes.items()))
    fields = [
        ("name", one.name),
        ("project", f"{one.project} / {one.domain}"),
        ("phase", one.phase + (" (archived)" if one.is_archived else "")),
        ("error", f"{error.code}: {error.message}" if error is not None else ""),
        ("terminated", stopped if details.abort_by else ""),
        (one.kind.replace("_", " "), f"{one.launched} version {one.version}"),
        ("workflow", one.workflow if one.workflow != one.launched else ""),
        ("started by", {"MANUAL": ""}.get(one.mode, one.mode.lower().replace("_", " "))),
        ("parent", details.parent),
        ("runs again", details.reference),
        ("owner", one.owner),
        ("pool", _bound(one.pool, details.asked_pool)),
        ("label", _bound(one.label, details.asked_label)),
        ("cluster", ", ".join(one.clusters) + (" (each node by itself)" if details.is_spread else "")),
        ("namespace", details.namespace),
        ("data in", details.data_prefix),
        ("at most", f"{details.max_parallelism} nodes at once" if details.max_parallelism else ""),
        ("labels", _pairs(details.labels)),
        ("annotations", _pairs(details.annotations)),
        ("created", format_timestamp(one.created_us, now)),
        ("started", format_timestamp(one.started_us, now)),
        ("ended", format_timestamp(one.ended_us, now)),
        ("took", format_span(one.started_us, one.ended_us, now)),
        ("nodes", counts),
    ]
    print_fields(fields)
    for title, values in (("Inputs", details.inputs), ("Outputs", details.outputs)):
        if values:
            print(paint(f"\n{title}:", "bold"))
            print_fields([(f"  {name}", _value(value)) for name, value in values.items()])


def _bound(used: str, asked: str) -> str:
    """A pool or label, and whether a rule gave it."""
    if used and not asked:
        return f"{used} (by a rule or the domain's default)"
    return used or asked


def _pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()))


def _value(value: Any) -> str:
    return shorten(msgspec.json.encode(value).decode(), VALUE_CHARS_MAX)


def print_nodes(nodes: Sequence[ExecutionNode]) -> None:
    now, depths = now_us(), node_depths(nodes)
    rows = [_node_cells(node, depths[node.id], now) for node in nodes]
    print_wrapped_table(NODE_COLUMNS, rows)


def _node_cells(node: ExecutionNode, depth: int, now: int) -> list[str]:
    last = node.attempts[-1] if node.attempts else None
    return [
        "  " * depth + short_id(node),
        node.runs or node.kind.value,
        node.phase or NOT_BEGUN,
        str(len(node.attempts)) if len(node.attempts) > 1 else "",
        last.job if last is not None else node.child,
        last.cluster if last is not None else "",
        format_span(node.created_us, node.ended_us, now),
        node_note(node),
    ]


def short_id(node: ExecutionNode) -> str:
    """The id of a node without that of the node around it, which stands above it."""
    inner = node.id.removeprefix(f"{node.parent}-") if node.parent else node.id
    number, _, rest = inner.partition("-")
    return rest if node.parent and rest and number.isdigit() else inner


def node_depths(nodes: Sequence[ExecutionNode]) -> dict[str, int]:
    """How many nodes are around each node."""
    depths: dict[str, int] = {}
    for node in nodes:
        depths[node.id] = depths.get(node.parent, -1) + 1 if node.parent else 0
    return depths


def node_note(node: ExecutionNode) -> str:
    """What there is to say of a node besides its phase."""
    elements = node.elements
    counts = ""
    if elements is not None:
        failed = f", {elements.failed} failed" if elements.failed else ""
        counts = f"{elements.succeeded} of {elements.size} elements succeeded{failed}"
    cached = "from the cache" if node.cache == "CACHE_HIT" else ""
    kind = "failure node" if node.is_failure_node else ""
    return "; ".join(filter(None, [kind, counts, cached, node.error, node.waits]))


CANDIDATE_COLUMNS = (Column("CANDIDATE"), Column("WEIGHT", right=True))
WAIT_COLUMNS = (Column("NODE"), Column("JOB"), Column("WHY"))
TASKS_NAMED_MAX = 5


def print_execution_explanation(explanation: ExecutionExplanation) -> None:
    one = explanation.execution
    where = f" on {', '.join(one.clusters)}" if one.clusters else ""
    print(f"{paint('Execution', 'bold')} {one.name}  {paint_state(one.phase)}{printable(where)}")
    scope = f"project {one.project}, domain {one.domain}"
    bounds = [f"pool {one.pool}" if one.pool else "", f"label {one.label}" if one.label else ""]
    launched = f"{one.kind.replace('_', ' ')} {one.launched} version {one.version}"
    age = format_age(one.created_us, now_us())
    print_wrapped_text(f"created {age} ago by {one.owner}: {launched}; {', '.join(filter(None, [scope, *bounds]))}")
    print_wrapped_text(f"Why there: {explanation.how}.")
    if explanation.candidates:
        print(paint(f"\nThe draw on {printable(explanation.seed)}, as it would be now:", "bold"))
        rows = [
            [_mark(one.cluster == explanation.drawn) + one.cluster, f"{one.weight:g}"] for one in explanation.candidates
        ]
        print_table(CANDIDATE_COLUMNS, rows)
    for names, task in _grouped(explanation.tasks):
        print(paint(f"\n{printable(names)}:", "bold"))
        _print_task(task)
    if explanation.policy is not None and explanation.policy.values:
        print(paint("\nRules that hold for its tasks:", "bold"))
        print_used_values(explanation.policy.values)
    _print_waits(explanation.waits)
    print_list("Notes:", explanation.notes, between="")


def _mark(is_drawn: bool) -> str:
    return CHOSEN_MARK if is_drawn else " " * len(CHOSEN_MARK)


def _print_task(task: TaskVerdicts) -> None:
    if task.refused:
        print_wrapped_text(f"refused: {task.refused}")
        return
    if task.reason:
        print_wrapped_text(task.reason)
    print_verdicts(task.verdicts)


def _grouped(tasks: Sequence[TaskVerdicts]) -> list[tuple[str, TaskVerdicts]]:
    """Tasks with the same verdicts as one, with the names of all."""
    groups: list[tuple[list[str], TaskVerdicts]] = []
    for task in tasks:
        name = f"{task.node} ({task.task})" if task.node else task.task  # the task of a map has no node of its own
        for names, first in groups:
            same = (first.verdicts, first.refused, first.reason) == (task.verdicts, task.refused, task.reason)
            if same:
                names.append(name)
                break
        else:
            groups.append(([name], task))
    return [(_joined(names), task) for names, task in groups]


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - TASKS_NAMED_MAX} more tasks" if len(names) > TASKS_NAMED_MAX else ""
    return ", ".join(names[:TASKS_NAMED_MAX]) + more


def _print_waits(waits: Sequence[NodeWait]) -> None:
    if not waits:
        return
    print(paint("\nWhat it waits for:", "bold"))
    print_wrapped_table(WAIT_COLUMNS, [[wait.node, wait.job, wait.reason] for wait in waits])
