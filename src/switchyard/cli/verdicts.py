"""What every cluster said about a job, as a table with the chosen one marked. It knows plans, not jobs."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.output import clean, paint
from switchyard.cli.table import Column, print_table
from switchyard.model.verdict import Explanation, Plan, Verdict

COLUMNS = (Column("CLUSTER"), Column("VERDICT"), Column("STEP"), Column("WHY", flexible=True))
CHOSEN = "✔ "
DRAWN = {"weighted": ", drawn on the job's id", "random": ", drawn on the job's id with all alike"}
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")  # a REJECTED job may fit by now


def print_verdicts(verdicts: Sequence[Verdict], *, chosen: str | None) -> None:
    """The chosen cluster first, then yes, wait and no."""
    order = {"yes": 0, "wait": 1, "no": 2}
    ranked = sorted(verdicts, key=lambda each: (each.cluster != chosen, order[each.say.value], each.cluster))
    if not ranked:
        print("There is no cluster yet. `yard cluster invite NAME` brings one in.")
        return
    pad = CHOSEN if chosen else ""
    rows = [
        [
            (CHOSEN if each.cluster == chosen else " " * len(pad)) + each.cluster,
            each.say.value,
            each.step,
            _why(each, is_chosen=each.cluster == chosen),
        ]
        for each in ranked
    ]
    print_table(COLUMNS, rows)


def _why(verdict: Verdict, *, is_chosen: bool) -> str:
    reason = verdict.reason or ("fits" if verdict.say.value == "yes" else verdict.step)
    return f"chosen: {reason}" if is_chosen else reason


def print_plan(plan: Plan) -> None:
    """What would become of a job, for `submit --plan`."""
    print_verdicts(plan.verdicts, chosen=plan.chosen)
    print()
    if plan.chosen:
        print(clean(f"The job would go to {plan.chosen} (selected by {plan.algorithm}). Nothing was submitted."))
    else:
        state = "REJECTED" if plan.outcome == "reject" else "PENDING"
        print(clean(f"The job would be {state}: {plan.reason or 'no cluster takes it'}. Nothing was submitted."))


def _has_news(found: Explanation) -> bool:
    """Whether the clusters of now say something else, and it still matters to the job."""
    if found.plan is None:
        return bool(found.now)
    order = sorted(found.now, key=lambda each: each.cluster)
    return found.state not in OVER and order != sorted(found.plan.verdicts, key=lambda each: each.cluster)


def print_explanation(found: Explanation) -> None:
    """The decision as it was made, how things are now where that differs, and what would help."""
    if found.plan:
        print_verdicts(found.plan.verdicts, chosen=found.plan.chosen)
        if found.plan.chosen:
            print(clean(f"Selected by {found.plan.algorithm}{DRAWN.get(found.plan.algorithm, '')}."))
    if _has_news(found):
        print(paint("\nNow:", "bold") if found.plan else paint("Now:", "bold"))
        print_verdicts(found.now, chosen=None)
    _print_list("Would run if:", found.hints, between="or ")
    _print_list("Notes:", found.notes, between="")


def _print_list(title: str, lines: Sequence[str], *, between: str) -> None:
    """The title once, then each line below the other."""
    for index, line in enumerate(lines):
        lead = paint(title, "bold") if index == 0 else " " * len(title)
        print(f"{lead}  {between if index else ' ' * len(between) if len(lines) > 1 else ''}{clean(line)}")
