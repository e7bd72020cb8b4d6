"""What every cluster said about a job, as a table with the chosen one marked; and what would help. Knows no command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from switchyard.cli.output import paint, printable
from switchyard.cli.table import Column, display_width, format_duration, now_us, print_table, screen_width, shorten
from switchyard.model.quote import Quote, QuoteOutcome
from switchyard.model.verdict import Explanation, Plan, Verdict

CHOSEN_MARK = "✔ "
DRAW_NOTES = {"weighted": ", drawn on the job's id", "random": ", drawn on the job's id with all alike"}
ENDED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")  # a REJECTED job may fit by now
REASON_WIDTH_MIN = 24  # columns for the reason, however narrow the screen
NAME_WIDTH_MIN = 8  # and for a cluster's name

T = TypeVar("T")


def print_verdicts(
    verdicts: Sequence[Verdict], *, chosen: str | None, quotes: Sequence[Quote] = (), since_us: int | None = None
) -> None:
    """The chosen cluster first, then yes, wait and no. `since_us`: of those that do not say since when."""
    if not verdicts:
        print("There is no cluster yet. `yard cluster invite NAME` brings one in.")
        return
    order = {"yes": 0, "wait": 1, "no": 2}
    ranked = sorted(verdicts, key=lambda each: (each.cluster != chosen, order[each.say.value], each.cluster))
    quoted = {quote.cluster: quote for quote in quotes}
    columns, rows = [Column("CLUSTER"), Column("VERDICT"), Column("STEP")], []
    has_times = since_us is not None or any(verdict.since_us is not None for verdict in verdicts)
    columns += [Column("SINCE", optional=True)] if has_times else []
    columns += [Column("ETA", right=True), Column("COST", right=True)] if quoted else []
    for each in ranked:
        mark = CHOSEN_MARK if each.cluster == chosen else " " * len(CHOSEN_MARK) if chosen else ""
        cells = [mark + each.cluster, each.say.value, each.step]
        cells += [_age_text(each.since_us or since_us)] if has_times else []
        cells += [_eta(quoted.get(each.cluster)), _cost(quoted.get(each.cluster))] if quoted else []
        rows.append([*cells, _reason_text(each, is_chosen=each.cluster == chosen)])
    print_wrapped_table([*columns, Column("WHY")], rows)


def print_wrapped_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last column goes on in further lines where the screen is too narrow: a reason is read whole."""
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
    """The columns of the screen before the last column of the table."""
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


def _reason_text(verdict: Verdict, *, is_chosen: bool) -> str:
    reason = verdict.reason or ("fits" if verdict.say.value == "yes" else verdict.step)
    return f"chosen: {reason}" if is_chosen else reason


def print_plan(plan: Plan) -> None:
    """What would become of a job, for `submit --plan`."""
    print_verdicts(plan.verdicts, chosen=plan.chosen, quotes=plan.quotes)
    print()
    if plan.chosen:
        print_wrapped_text(f"The job would go to {plan.chosen} (selected by {plan.algorithm}). Nothing was submitted.")
    else:
        state = "REJECTED" if plan.outcome == "reject" else "PENDING"
        print_wrapped_text(f"The job would be {state}: {plan.reason or 'no cluster takes it'}. Nothing was submitted.")
    print_list("Would run if:", plan.hints, between="or ")


def _has_changed(found: Explanation) -> bool:
    """Whether the clusters of now say something else, and it still matters to the job."""
    if found.plan is None:
        return bool(found.now)
    return found.state not in ENDED_STATES and _without_times(found.now) != _without_times(found.plan.verdicts)


def _without_times(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(
        (msgspec.structs.replace(each, since_us=None) for each in verdicts), key=lambda verdict: verdict.cluster
    )


def print_explanation(found: Explanation) -> None:
    """The decision as it was made, how things are now where that differs, and what would help."""
    if found.plan:
        plan = found.plan
        print_verdicts(plan.verdicts, chosen=plan.chosen, quotes=found.quotes, since_us=plan.at_us)
        if plan.chosen:
            print_wrapped_text(f"Selected by {plan.algorithm}{DRAW_NOTES.get(plan.algorithm, '')}.")
    if _has_changed(found):
        print(paint("\nNow:", "bold") if found.plan else paint("Now:", "bold"))
        print_verdicts(found.now, chosen=None)
    print_list("Would run if:", found.hints, between="or ")
    print_list("Notes:", found.notes, between="")


def print_wrapped_text(text: str) -> None:
    """A sentence, broken between words where the screen ends."""
    from textwrap import wrap

    screen = screen_width()
    for line in [printable(text)] if screen is None else wrap(printable(text), max(screen, REASON_WIDTH_MIN)):
        print(line)


def print_list(title: str, lines: Sequence[str], *, between: str) -> None:
    """The title once, then each line below the other; a line that is too long goes on below itself."""
    from textwrap import wrap

    screen = screen_width()
    indent = " " * (len(title) + 2)
    for index, line in enumerate(lines):
        lead = paint(title, "bold") if index == 0 else " " * len(title)
        word = between if index else " " * len(between) if len(lines) > 1 else ""
        space = max((screen or 10**6) - len(indent) - len(word), REASON_WIDTH_MIN)
        first, *more = wrap(printable(line), space, break_long_words=False, break_on_hyphens=False) or [""]
        print(f"{lead}  {word}{first}")
        for rest in more:
            print(f"{indent}{' ' * len(word)}{rest}")
