"""Prints the verdicts of all clusters on a job, with the chosen cluster marked, and hints. It knows no command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from switchyard.cli.terminal.output import paint, printable
from switchyard.cli.terminal.table import (
    Column,
    display_width,
    format_duration,
    now_us,
    print_table,
    screen_width,
    shorten,
)
from switchyard.model.cluster.quote import Quote, QuoteOutcome
from switchyard.model.cluster.verdict import Explanation, Plan, Verdict

CHOSEN_MARK = "✔ "
CHOSEN = "chosen"
NO_MARKS: Mapping[str, str] = MappingProxyType({})
NO_TASKS: Mapping[str, int] = MappingProxyType({})
DRAW_NOTES = {"weighted": ", drawn on the job's id", "random": ", drawn on the job's id with all alike"}
ENDED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")  # a REJECTED job may fit by now
REASON_WIDTH_MIN = 24  # columns for the reason, however narrow the screen
NAME_WIDTH_MIN = 8  # and for a cluster's name

T = TypeVar("T")


def print_verdicts(
    verdicts: Sequence[Verdict],
    *,
    marks: Mapping[str, str] = NO_MARKS,
    tasks: Mapping[str, int] = NO_TASKS,
    quotes: Sequence[Quote] = (),
    since_us: int | None = None,
) -> None:
    """Print the marked clusters first, each with its word, and those with tasks; then yes, wait and no.

    `tasks`: how many tasks of an array each cluster has. `since_us`: for verdicts without a time of their own.
    """
    if not verdicts:
        print("There is no cluster yet. `yard cluster invite NAME` brings one in.")
        return
    order = {"yes": 0, "wait": 1, "no": 2}
    first = {*marks, *tasks}
    ranked = sorted(verdicts, key=lambda row: (row.cluster not in first, order[row.say.value], row.cluster))
    quoted = {quote.cluster: quote for quote in quotes}
    columns, rows = [Column("CLUSTER"), Column("VERDICT"), Column("STEP")], []
    columns += [Column("TASKS", right=True)] if tasks else []
    has_times = since_us is not None or any(verdict.since_us is not None for verdict in verdicts)
    columns += [Column("SINCE", optional=True)] if has_times else []
    columns += [Column("ETA", right=True), Column("COST", right=True)] if quoted else []
    for verdict in ranked:
        mark = CHOSEN_MARK if verdict.cluster in marks else " " * len(CHOSEN_MARK) if marks else ""
        cells = [mark + verdict.cluster, verdict.say.value, verdict.step]
        cells += [str(tasks.get(verdict.cluster, ""))] if tasks else []
        cells += [_age_text(verdict.since_us or since_us)] if has_times else []
        cells += [_eta(quoted.get(verdict.cluster)), _cost(quoted.get(verdict.cluster))] if quoted else []
        rows.append([*cells, _reason_text(verdict, marks.get(verdict.cluster, ""))])
    print_wrapped_table([*columns, Column("WHY")], rows)


def print_wrapped_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose last column wraps on a narrow screen, so that a reason is never cut."""
    screen = screen_width()
    if screen is None:
        print_table(columns, rows)
        return
    from textwrap import wrap

    heads, cells = list(columns), [[printable(cell) for cell in row] for row in rows]
    while _width_before_last(heads, cells) + REASON_WIDTH_MIN > screen and any(head.optional for head in heads):
        place = max(place for place, head in enumerate(heads) if head.optional)
        heads, cells = _without(heads, place), [_without(row, place) for row in cells]
    over = _width_before_last(heads, cells) + REASON_WIDTH_MIN - screen
    if over > 0:  # a long name
        longest = max(len(row[0]) for row in cells)
        cells = [[shorten(row[0], max(longest - over, NAME_WIDTH_MIN)), *row[1:]] for row in cells]
    width = max(screen - _width_before_last(heads, cells), REASON_WIDTH_MIN)
    lines: list[Sequence[str]] = []
    for row in cells:
        first, *more = wrap(row[-1], width) or [""]
        lines += [[*row[:-1], first], *([*("" for _ in row[1:]), line] for line in more)]
    print_table(heads, lines)


def _width_before_last(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """The width of all table columns but the last."""
    return sum(
        2 + max([display_width(c.title), *(display_width(row[i]) for row in rows)]) for i, c in enumerate(columns[:-1])
    )


def _without(items: list[T], place: int) -> list[T]:
    return items[:place] + items[place + 1 :]


def _age_text(us: int | None) -> str:
    return format_duration(now_us() - us) if us else ""


def _eta(quote: Quote | None) -> str:
    if quote is None or quote.said is not QuoteOutcome.YES or quote.eta_s is None:
        return (
            "" if quote is None or quote.said is QuoteOutcome.YES else {"no": "no", "none": "silent"}[quote.said.value]
        )
    return "now" if quote.eta_s < 1 else format_duration(int(quote.eta_s * 1_000_000))


def _cost(quote: Quote | None) -> str:
    return "" if quote is None or quote.cost is None else f"{quote.cost:.4g}"


def _reason_text(verdict: Verdict, mark: str) -> str:
    reason = verdict.reason or ("fits" if verdict.say.value == "yes" else verdict.step)
    return f"{mark}: {reason}" if mark else reason


def mark_chosen(plan: Plan) -> Mapping[str, str]:
    return {plan.chosen: CHOSEN} if plan.chosen else NO_MARKS


def print_plan(plan: Plan) -> None:
    """Print where a job would go, for `submit --plan`."""
    print_verdicts(plan.verdicts, marks=mark_chosen(plan), quotes=plan.quotes)
    print()
    if plan.chosen:
        with_set = f" with alternative {plan.alternative}" if plan.alternative is not None else ""
        selected = f"{plan.chosen}{with_set} (selected by {plan.algorithm})"
        print_wrapped_text(f"The job would go to {selected}. Nothing was submitted.")
    else:
        state = "REJECTED" if plan.outcome == "reject" else "PENDING"
        print_wrapped_text(f"The job would be {state}: {plan.reason or 'no cluster takes it'}. Nothing was submitted.")
    print_list("Would run if:", plan.hints, between="or ")


def _has_changed(explanation: Explanation) -> bool:
    """Whether the verdicts have changed since the decision, while they still matter to the job."""
    if explanation.plan is None:
        return bool(explanation.now)
    return explanation.state not in ENDED_STATES and _without_times(explanation.now) != _without_times(
        explanation.plan.verdicts
    )


def _without_times(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(
        (msgspec.structs.replace(verdict, since_us=None) for verdict in verdicts), key=lambda verdict: verdict.cluster
    )


def print_explanation(explanation: Explanation, *, tasks: Mapping[str, int] = NO_TASKS) -> None:
    """Print the verdicts of the decision, those of now where they differ, and hints.

    `tasks`: how many tasks of an array each cluster has. None: the chosen cluster is marked.
    """
    if explanation.plan:
        plan = explanation.plan
        marks = NO_MARKS if tasks else mark_chosen(plan)
        print_verdicts(plan.verdicts, marks=marks, tasks=tasks, quotes=explanation.quotes, since_us=plan.at_us)
        if plan.chosen:
            selected = "Selected" if marks else f"{plan.chosen} was selected"
            with_set = f" with alternative {plan.alternative}" if plan.alternative is not None else ""
            print_wrapped_text(f"{selected}{with_set} by {plan.algorithm}{DRAW_NOTES.get(plan.algorithm, '')}.")
    if _has_changed(explanation):
        print(paint("\nNow:", "bold") if explanation.plan else paint("Now:", "bold"))
        print_verdicts(explanation.now)
    print_list("Would run if:", explanation.hints, between="or ")
    print_list("Notes:", explanation.notes, between="")


def print_wrapped_text(text: str) -> None:
    """Print a sentence, wrapped at the width of the screen."""
    from textwrap import wrap

    screen = screen_width()
    for line in [printable(text)] if screen is None else wrap(printable(text), max(screen, REASON_WIDTH_MIN)):
        print(line)


def print_list(title: str, lines: Sequence[str], *, between: str) -> None:
    """Print the title once, and the lines below each other beside it. Long lines wrap."""
    from textwrap import wrap

    screen = screen_width()
    indent = " " * (len(title) + 2)
    for index, line in enumerate(lines):
        lead = paint(title, "bold") if index == 0 else " " * len(title)
        word = between if index else " " * len(between) if len(lines) > 1 else ""
        space = max((screen or 10**6) - len(indent) - len(word), REASON_WIDTH_MIN)
        first, *more = wrap(printable(line), space, break_long_words=False, break_on_hyphens=False) or [""]
        print(f"{lead}  {word}{first}")
        for continued in more:
            print(f"{indent}{' ' * len(word)}{continued}")
