"""A job as a row, as fields, as one line, and as an exit code. It knows the model and tables, not the server."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TextIO

from switchyard.cli.output import paint_state, printable
from switchyard.cli.table import Column, format_age, format_duration, format_timestamp, print_fields, print_table
from switchyard.errors import EXIT_ERROR, EXIT_OK, EXIT_REJECTED
from switchyard.model.job import Job, JobSpec, Native, Resources, State, Task, TaskCounts
from switchyard.model.quantity import show_bytes
from switchyard.model.retry import Retry

EXIT_CANCELLED = 130  # as a program that was interrupted
EXIT_CODES_HELP = """\
exit code:
  as the job's own: its exit code, or 128 + the signal that killed it; 1 if it FAILED without either,
  130 if it was CANCELLED, 5 if it was REJECTED; 7 if --timeout ran out (the job goes on)."""

JOB_COLUMNS = (
    Column("ID"),
    Column("NAME", flexible=True),
    Column("STATE"),
    Column("CLUSTER", flexible=True),
    Column("PROJECT", flexible=True, optional=True),
    Column("AGE", right=True),
    Column("TIME", right=True, optional=True),
    Column("EXIT", right=True),
    Column("REASON", flexible=True),
)


def print_jobs(jobs: Sequence[Job], now: int) -> None:
    """The table of jobs; arrays among them have a column of their own."""
    columns, rows = list(JOB_COLUMNS), [format_job_row(job, now) for job in jobs]
    if any(job.tasks for job in jobs):
        columns.insert(3, Column("TASKS", right=True))
        for job, row in zip(jobs, rows, strict=True):
            row.insert(3, f"{count_ended_tasks(job.tasks)}/{job.tasks.total}" if job.tasks else "")
    print_table(columns, rows)


def format_job_row(job: Job, now: int) -> list[str]:
    return [
        job.id,
        job.name,
        job.state.value,
        job.cluster or "",
        job.project,
        format_age(job.created_us, now),
        format_run_time(job, now),
        format_exit(job),
        format_reason(job),
    ]


def format_run_time(job: Job, now: int) -> str:
    return format_duration((job.ended_us or now) - job.started_us) if job.started_us else ""


def count_ended_tasks(tally: TaskCounts) -> int:
    return tally.ok + tally.failed + tally.cancelled


def format_tally(tally: TaskCounts) -> str:
    """`1000 tasks: 532 ok, 3 failed, 50 live, 415 waiting`."""
    parts = [(tally.ok, "ok"), (tally.failed, "failed"), (tally.cancelled, "cancelled"), (tally.live, "live")]
    told = [f"{number} {word}" for number, word in (*parts, (tally.waiting, "waiting")) if number]
    return f"{tally.total} tasks: {', '.join(told)}"


def format_exit(job: Job | Task) -> str:
    """The exit code, or the signal's name."""
    if job.signal:
        import signal

        try:
            return signal.Signals(job.signal).name
        except ValueError:
            return f"signal {job.signal}"
    return "" if job.exit_code is None else str(job.exit_code)


def format_reason(job: Job) -> str:
    is_ending = job.cancel_requested and job.ended_us is None
    is_late = job.late_us is not None and job.leased_us is None and job.ended_us is None
    return "; ".join(filter(None, ["cancel requested" if is_ending else "", "late" if is_late else "", job.reason]))


def exit_code_of(job: Job) -> int:
    """What a waiting command exits with: the job's own code as far as there is one."""
    if job.state is State.SUCCEEDED:
        return EXIT_OK
    if job.state is State.REJECTED:
        return EXIT_REJECTED
    if job.state is State.CANCELLED:
        return EXIT_CANCELLED
    if job.signal:
        return (128 + job.signal) & 0xFF
    return job.exit_code if job.exit_code and 0 < job.exit_code < 256 else EXIT_ERROR


def format_job_line(job: Job, now: int, *, stream: TextIO | None = None) -> str:
    """One job in one line: where it stands and why."""
    where = f" on {job.cluster}" if job.cluster and job.state is not State.PENDING else ""
    took = f" after {format_run_time(job, now)}" if job.ended_us and job.started_us else ""
    code = f", exit {format_exit(job)}" if format_exit(job) not in ("", "0") and not job.reason else ""
    why = f": {format_reason(job)}" if format_reason(job) else ""
    state = paint_state(job.state.value, stream=stream)
    return f"{job.id}  {state}" + printable(f"{where}{took}{code}{why}")


def print_job(job: Job, now: int) -> None:
    """All there is to say about a job, for reading."""
    spec = job.spec if isinstance(job.spec, JobSpec) else None
    fields = [
        ("id", job.id),
        ("name", job.name),
        ("state", job.state.value),
        ("reason", format_reason(job)),
        ("held", "yes: `yard release` lets it go" if job.is_held else ""),
        ("array", job.array or ""),
        ("tasks", format_tally(job.tasks) if job.tasks else ""),
        ("cluster", job.cluster or ""),
        ("exit", format_exit(job)),
        ("owner", job.owner),
        ("project", f"{job.project} / {job.domain}"),
        ("workflow", " / ".join(filter(None, (job.workflow, job.launch_plan)))),
        ("pool", job.pool or ""),
        ("label", job.cluster_label or ""),
        ("spill", "; ".join(job.spill)),
        ("queue", job.queue),
        ("queue tags", " ".join(job.tags)),
        ("priority", str(job.priority) if job.priority else ""),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(job.labels.items()))),
        *(_spec_fields(spec, is_env_hidden=job.is_env_hidden) if spec else []),
        ("attempt", f"{job.attempt} (fence {job.fence})" if job.attempt else ""),
        ("retries", str(job.tries) if job.tries else ""),
        ("retry of", job.retry_of or ""),
        ("native id", job.native_id or ""),
        ("created", format_timestamp(job.created_us, now)),
        ("assigned", format_timestamp(job.assigned_us, now)),
        ("leased", format_timestamp(job.leased_us, now)),
        ("started", format_timestamp(job.started_us, now)),
        ("ended", format_timestamp(job.ended_us, now)),
        ("tried again", format_timestamp(job.wake_us, now)),
        ("expires", format_timestamp(job.expires_us, now)),
        ("late since", format_timestamp(job.late_us, now)),
        ("ran for", format_run_time(job, now)),
        ("on nodes", job.usage.nodes if job.usage else ""),
        ("most memory", show_bytes(job.usage.memory_bytes_max) if job.usage and job.usage.memory_bytes_max else ""),
    ]
    print_fields(fields)


def _spec_fields(spec: JobSpec, *, is_env_hidden: bool) -> list[tuple[str, str]]:
    env = " ".join(f"{key}={shlex.quote(value)}" for key, value in spec.env.items())
    on_lost = spec.on_lost.value if spec.on_lost.value != "wait" or spec.lost_after else ""
    return [
        ("command", shlex.join(spec.command)),
        ("env", "hidden: shown to its owner and to operators of its project" if is_env_hidden else env),
        ("cwd", spec.cwd or ""),
        ("image", spec.image or ""),
        ("asks for", format_resources(spec.resources)),
        ("native", _native_text(spec.native) if spec.native else ""),
        ("time limit", str(spec.resources.time_limit or "")),
        ("retry", _retry_text(spec.retry)),
        ("on lost", f"{on_lost} after {spec.lost_after}" if on_lost and spec.lost_after else on_lost),
    ]


def _native_text(native: Native) -> str:
    """`account=physics licenses=matlab:2 exclusive`, as it was said."""
    said = {name: getattr(native, name) for name in native.__struct_fields__}
    texts = {name: " ".join(value) if isinstance(value, list) else value for name, value in said.items()}
    return " ".join(name if value is True else f"{name}={value}" for name, value in texts.items() if value)


def _retry_text(policy: Retry) -> str:
    """`3 times after job (1,75), lost; waits 10s … 600s`."""
    if not policy.limit:
        return ""
    codes = f" ({policy.exit_codes})" if policy.exit_codes else ""
    causes = [cause.value + (codes if cause.value == "job" else "") for cause in policy.causes]
    times = "once" if policy.limit == 1 else f"{policy.limit} times"
    return f"{times} after {', '.join(causes)}; waits {policy.backoff} … {policy.backoff_max} s"


def format_resources(asked: Resources) -> str:
    """`4 tasks on 2 nodes, each: 2 cores, 16GiB memory`."""
    tasks = "1 task" if asked.tasks == 1 else f"{asked.tasks} tasks"
    nodes = "" if asked.nodes is None else f" on {asked.nodes} node{'s' if asked.nodes > 1 else ''}"
    each = asked.asked
    parts = [
        "1 core" if str(each.cores) == "1" else f"{each.cores} cores",
        f"{each.gpus} gpu{'s' if each.gpus > 1 else ''}" if each.gpus else "",
        f"{each.memory} memory" if each.memory else "",
        f"{each.ephemeral_storage} storage" if each.ephemeral_storage else "",
    ]
    limits = {name: getattr(asked.limits, name) for name in asked.limits.__struct_fields__}
    capped = ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    return f"{tasks}{nodes}, each: {', '.join(filter(None, parts))}" + (f" (limits: {capped})" if capped else "")
