"""Prints why an execution runs where it does: the draw, each cluster's verdict for each task, rules, waits."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.jobs.verdicts import (
    CHOSEN_MARK,
    print_list,
    print_verdicts,
    print_wrapped_table,
    print_wrapped_text,
)
from switchyard.cli.rules.policy import print_used_values
from switchyard.cli.terminal.output import paint, paint_state, printable
from switchyard.cli.terminal.table import Column, format_age, now_us, print_table
from switchyard.features.flyte.model.workflow_execution import ExecutionExplanation, NodeWait, TaskVerdicts

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
