"""One job: where it is and why, its life to scale, its rules, its tasks, its output."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.model.cluster.idset import INDEX_MAX
from switchyard.model.cluster.verdict import Answer, Explanation, Verdict
from switchyard.model.job.job import Job, JobSpec, State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.jobspec.alternatives import set_names, spec_with_set
from switchyard.model.rules.access import Role
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.pages.timeline import draw_timeline
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.job import explanation, jobs
from switchyard.service.job.tasks import SHOWN_FIRST, TaskMap, task_map

EVENTS_MAX = 500  # the newest of a job, for its timeline; `yard events` has all of them
EVENTS_SHOWN = 40  # the newest of them
VERDICTS_MAX = 100  # clusters that are listed; of more only the counts are shown
ATTEMPT_MAX = 10**6
ANSWER_ORDER = {Answer.YES: 0, Answer.WAIT: 1, Answer.NO: 2}
QUERY = (
    QueryParameter("task", "integer", "of an array: the task whose output is shown", most=INDEX_MAX),
    QueryParameter("attempt", "integer", "whose output is shown; none: the newest", least=1, most=ATTEMPT_MAX),
    QueryParameter("stream", about="stdout or stderr", words=("stdout", "stderr")),
)
TASK_COLUMNS = 80
STEP, SQUARE = 10, 9  # units: a square and the space beside it


def load(call: Call) -> PageValues:
    context, actor, ref = call.context, call.actor, call.path["job"]
    job = jobs.job_get(context, actor, ref)
    reasons = explanation.job_explain(context, actor, job.id)
    events, has_all_events = jobs.newest_job_events(context, actor, job.id, limit=EVENTS_MAX)
    tasks = task_map(context, actor, job.id)
    verdicts = _verdicts(job, reasons)
    return {
        "title": job.name.strip() or job.id,
        "job": job,
        "spec": _spec_of_chosen_set(job),
        "alternatives": _alternatives(job),
        "command": _command(job),
        "told": reasons,
        "verdicts": verdicts[:VERDICTS_MAX],
        "verdict_counts": {answer.value: sum(v.say is answer for v in verdicts) for answer in Answer},
        "verdicts_left": max(0, len(verdicts) - VERDICTS_MAX),
        "chosen": reasons.plan.chosen if reasons.plan else None,
        "is_final": job.state in FINAL_STATES,
        "events": events[: -EVENTS_SHOWN - 1 : -1],
        "events_left": max(0, len(events) - EVENTS_SHOWN),
        "timeline": draw_timeline(job, events, context.now_us(), is_whole=has_all_events),
        "tasks": tasks,
        "drawing": draw_task_map(tasks) if tasks and tasks.cells else None,
        "task": call.number_or_none("task"),
        "attempt": call.number_or_none("attempt"),
        "stream": call.text("stream") or "stdout",
        "may_control": actor.may_project(Role.OPERATE, job.project)
        or (job.owner == actor.name and actor.may_project(Role.SUBMIT, job.project)),
    }


def _verdicts(job: Job, reasons: Explanation) -> list[Verdict]:
    """The verdicts of now while the job waits; of an ended or assigned job those that decided it."""
    is_waiting = job.state is State.PENDING
    verdicts = reasons.now if is_waiting or reasons.plan is None else reasons.plan.verdicts
    chosen = job.cluster
    return sorted(verdicts, key=lambda verdict: (verdict.cluster != chosen, ANSWER_ORDER[verdict.say], verdict.cluster))


def _spec(job: Job) -> JobSpec | None:
    if isinstance(job.spec, msgspec.Raw):
        return msgspec.json.decode(job.spec, type=JobSpec)
    return job.spec


def _spec_of_chosen_set(job: Job) -> JobSpec | None:
    spec = _spec(job)
    return spec_with_set(spec, job.alternative or 1) if spec is not None and spec.alternatives else spec


def _alternatives(job: Job) -> list[str]:
    """Name the sets of a job that has several."""
    spec = _spec(job)
    return list(set_names(spec)) if spec is not None and spec.alternatives else []


def _command(job: Job) -> str:
    spec: Any = _spec(job)
    return shlex.join(spec.command) if spec is not None else ""


PAGE = WebPage(
    "/jobs/{job}",
    "job.html",
    title="Job",
    load=load,
    query=QUERY,
    live=("heading", "actions", "timeline", "verdicts", "tasks", "facts", "events"),
    refresh_s=30,
    is_heavy=True,
    still_query=("task", "attempt", "stream"),
)


@dataclass(frozen=True, slots=True)
class TaskDrawing:
    """`paths`: the squares by state. `tasks`: the task that a click on each square opens."""

    width: int
    height: int
    columns: int
    paths: dict[str, str]
    tasks: str


def draw_task_map(tasks: TaskMap) -> TaskDrawing:
    columns = min(TASK_COLUMNS, max(len(tasks.cells), 1))
    parts: dict[str, list[str]] = {}
    for number, cell in enumerate(tasks.cells):
        y, x = divmod(number, columns)
        parts.setdefault(cell.word, []).append(f"M{x * STEP} {y * STEP}h{SQUARE}v{SQUARE}h-{SQUARE}z")
    rows = -(-len(tasks.cells) // columns)
    paths = {word: "".join(parts[word]) for word in SHOWN_FIRST if word in parts}
    return TaskDrawing(
        columns * STEP,
        rows * STEP,
        columns=columns,
        paths=paths,
        tasks=" ".join(str(cell.index) for cell in tasks.cells),
    )
