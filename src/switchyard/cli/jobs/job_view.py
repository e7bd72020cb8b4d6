"""Formats a job as a table row, as fields, as one line, and as an exit code. It calls no server."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from switchyard.cli.terminal.output import all_fields, paint, paint_state, printable
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_duration,
    format_timestamp,
    print_fields,
    print_table,
)
from switchyard.errors import EXIT_ERROR, EXIT_OK, EXIT_REJECTED
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.failures.retry_rule import RetryRule
from switchyard.model.files.files import JobFiles, OutputSet, OutputState
from switchyard.model.job.job import Job, JobAttempt, JobSpec, Native, Resources, State, Task, TaskAttempt, TaskCounts
from switchyard.model.job.retry import Retry
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.model.rules.names import escape_hidden
from switchyard.model.wire.api import CreatedJob, Event
from switchyard.sdk.jobs.handle import JobHandle

EXIT_CANCELLED = 130  # as after SIGINT
SHORT_RUN_US = 10_000_000  # shorter runs are shown in parts of a second
EXIT_CODES_HELP = """\
exit code:
  as the job's own: its exit code, or 128 + the signal that killed it; 1 if it FAILED without either,
  130 if it was CANCELLED, 5 if it was REJECTED; 7 if --timeout ran out (the job goes on),
  69 if the server was away for longer than --patience (the job goes on)."""

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
    """Print a table of jobs, with a column for tasks if there are arrays among them."""
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
    """How long the job has run. Of an ended one that was short in parts of a second: `0s` would look like nothing."""
    if not job.started_us:
        return ""
    if job.ended_us is None or job.ended_us - job.started_us >= SHORT_RUN_US:
        return format_duration((job.ended_us or now) - job.started_us)
    ran_us = max(0, job.ended_us - job.started_us)
    return f"{ran_us // 1000}ms" if ran_us < 1_000_000 else f"{ran_us // 100_000 / 10}s"


def count_ended_tasks(tally: TaskCounts) -> int:
    return tally.ok + tally.failed + tally.cancelled


def format_tally(tally: TaskCounts) -> str:
    """`1000 tasks: 532 ok, 3 failed, 50 live, 415 waiting`."""
    parts = [(tally.ok, "ok"), (tally.failed, "failed"), (tally.cancelled, "cancelled"), (tally.live, "live")]
    counts = [f"{number} {word}" for number, word in (*parts, (tally.waiting, "waiting")) if number]
    return f"{tally.total} tasks: {', '.join(counts)}"


def format_tasks_by_cluster(counts: Mapping[str, int]) -> str:
    """`alpha 34, beta 66`: where the tasks of an array run or ran, the most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cluster} {count}" for cluster, count in ordered)


def format_together(job: Job) -> str:
    """Whether the tasks of an array that should stay together do so."""
    if not job.together:
        return ""
    if len(job.tasks_by_cluster) > 1:
        return "asked for, but its cluster was lost or removed: the rest ran on another one"
    return "yes: all tasks on one cluster"


def format_place(job: Job) -> str:
    """Where the job is or ran. Of an array the clusters that have its tasks: the drawn one may have none of them."""
    if job.tasks_by_cluster:
        only = next(iter(job.tasks_by_cluster))
        return only if len(job.tasks_by_cluster) == 1 else format_tasks_by_cluster(job.tasks_by_cluster)
    return job.cluster or ""


def format_exit(job: Job | Task | TaskAttempt) -> str:
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
    """Return the exit code of a command that waited for this job: the job's own code if it has one."""
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
    """Format the job's state, cluster and reason as one line."""
    where = f" on {place}" if (place := format_place(job)) and job.state is not State.PENDING else ""
    took = f" after {format_run_time(job, now)}" if job.ended_us and job.started_us else ""
    code = f", exit {format_exit(job)}" if format_exit(job) not in ("", "0") and not job.reason else ""
    why = f": {format_reason(job)}" if format_reason(job) else ""
    state = paint_state(job.state.value, stream=stream)
    return f"{job.id}  {state}" + printable(f"{where}{took}{code}{why}")


def created_job(handle: JobHandle) -> CreatedJob:
    stale = handle.seen.stale_tokens if isinstance(handle.seen, CreatedJob) else []
    return CreatedJob(handle.id, handle.state.value, handle.cluster, handle.reason, stale)


def format_created(job: CreatedJob) -> str:
    """`Job 01JCQ0V7… goes to alpha`, or its state where no cluster is chosen yet."""
    where = f"goes to {job.cluster}" if job.cluster else f"is {job.state}"
    return f"Job {paint(job.id, 'bold')} " + printable(where + (f": {job.reason}" if job.reason else ""))


def print_job(job: Job, now: int, *, outputs: str = "") -> None:
    """Print all fields of a job. `outputs`: what is known of its output files."""
    spec = job.spec if isinstance(job.spec, JobSpec) else None
    fields = [
        ("id", job.id),
        ("name", job.name),
        ("state", job.state.value),
        ("reason", format_reason(job)),
        ("held", "yes: `yard release` lets it go" if job.is_held else ""),
        ("array", job.array or ""),
        ("tasks", format_tally(job.tasks) if job.tasks else ""),
        ("together", format_together(job)),
        ("tasks on", format_tasks_by_cluster(job.tasks_by_cluster)),
        ("cluster", job.cluster or ""),
        ("exit", format_exit(job)),
        ("failure", job.failure or ""),
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
        *(_alternative_fields(spec, job.alternative) if spec and spec.alternatives else []),
        ("output files", outputs),
        ("attempt", f"{job.attempt} (fence {job.fence})" if job.attempt else ""),
        ("retries", str(job.tries) if job.tries else ""),
        *((f"attempt {attempt.attempt}", _format_job_attempt(attempt)) for attempt in job.attempts),
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
        ("was given", format_allocation(job.usage.allocated) if job.usage and job.usage.allocated else ""),
        ("warning", f"it was given {words}" if job.usage and (words := job.usage.differences) else ""),
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
        *_file_fields(spec.files),
        ("asks for", "" if spec.alternatives else format_resources(spec.resources)),
        ("native", _native_text(spec.native) if spec.native else ""),
        ("time limit", "" if spec.alternatives else str(spec.resources.time_limit or "")),
        ("retry", _retry_text(spec.retry)),
        ("on lost", f"{on_lost} after {spec.lost_after}" if on_lost and spec.lost_after else on_lost),
    ]


def _alternative_fields(spec: JobSpec, chosen: int | None) -> list[tuple[str, str]]:
    """Show each set of a job with alternatives, and which of them the job has."""
    from switchyard.model.jobspec.alternatives import sets_of

    fields = []
    for number, resources in enumerate(sets_of(spec), 1):
        limit = f", time limit {resources.time_limit}" if resources.time_limit is not None else ""
        mark = " (it has this one)" if number == chosen else ""
        fields.append((f"alternative {number}", f"{format_resources(resources)}{limit}{mark}"))
    return fields


def _file_fields(files: JobFiles | None) -> list[tuple[str, str]]:
    if files is None:
        return []
    return [
        ("files sent", f"tree {files.tree[:12]}" if files.tree else ""),
        ("for each task", f"tree {files.task_tree[:12]}" if files.task_tree else ""),
        ("keeps", " ".join(map(shlex.quote, files.out)) + (" (required)" if files.out_required else "")),
    ]


def format_outputs(job: str, outputs: Sequence[OutputSet], absent: str = "") -> str:
    """`3 files, 1.2MiB: yard fetch 01JCQ0V7…; no file for none*`. `absent`: whose files are not known yet."""
    ready = [output for output in outputs if output.state is OutputState.READY]
    moving = sum(output.state is OutputState.UPLOADING for output in outputs)
    failed = [output for output in outputs if output.state is OutputState.FAILED]
    count = sum(output.files for output in ready)
    size = show_bytes(sum(output.bytes for output in ready))
    patterns = dict.fromkeys(pattern for output in outputs for pattern in output.missing)
    parts = [
        f"{format_file_count(count)}, {size}: yard fetch {job}" if ready else "",
        "on their way" + (f" from {moving} tasks" if moving > 1 else "") if moving else "",
        f"no file for {' '.join(patterns)}" if patterns else "",
        next((f"not all: {output.error}" for output in ready if output.error), ""),
        _skipped_text([text for output in outputs for text in output.skipped]),
        f"cannot be had: {failed[0].error or 'the cluster did not say why'}" if failed else "",
        absent,
    ]
    return printable("; ".join(filter(None, parts)))


def _skipped_text(skipped: Sequence[str]) -> str:
    more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
    return f"not taken: {skipped[0]}{more}" if skipped else ""


def format_file_count(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def keeps_outputs(job: Job) -> bool:
    """Whether the job was submitted with `--out`."""
    return isinstance(job.spec, JobSpec) and job.spec.files is not None and bool(job.spec.files.out)


def _native_text(native: Native) -> str:
    """`account=physics licenses=matlab:2 exclusive`."""
    options = {name: getattr(native, name) for name in native.__struct_fields__}
    texts = {name: " ".join(value) if isinstance(value, list) else value for name, value in options.items()}
    return " ".join(name if value is True else f"{name}={value}" for name, value in texts.items() if value)


def _retry_text(policy: Retry) -> str:
    """`3 times after job (1,75), lost; waits 10s … 600s`."""
    rules = "; ".join(f"after {kind}: {_rule_text(policy, rule)}" for kind, rule in policy.on.items())
    if not policy.limit:
        return rules
    codes = f" ({policy.exit_codes})" if policy.exit_codes else ""
    causes = [cause.value + (codes if cause.value == "job" else "") for cause in policy.causes]
    times = "once" if policy.limit == 1 else f"{policy.limit} times"
    text = f"{times} after {', '.join(causes)}; waits {policy.backoff} … {policy.backoff_max} s"
    return "; ".join(filter(None, (text, rules)))


def _rule_text(policy: Retry, rule: RetryRule) -> str:
    """`2 times, memory x2 up to 256GiB, elsewhere`."""
    limit = policy.limit_after(rule)
    raises = (("memory", rule.memory, rule.memory_max), ("time", rule.time, rule.time_max))
    parts = [
        "once" if limit == 1 else f"{limit} times" if limit else "never",
        *(f"{name} {factor}" + (f" up to {most}" if most else "") for name, factor, most in raises if factor),
        "elsewhere" if rule.elsewhere else "",
    ]
    return ", ".join(filter(None, parts))


def _format_job_attempt(attempt: JobAttempt) -> str:
    """`failed on alpha: out-of-memory, with memory 8GiB: killed by SIGKILL`."""
    where = f" on {attempt.cluster}" if attempt.cluster else ""
    what = f": {attempt.failure}" if attempt.failure is not None else ""
    asked = f", with {attempt.asked}" if attempt.asked is not None and str(attempt.asked) else ""
    return printable(f"{attempt.ended}{where}{what}{asked}" + (f": {attempt.reason}" if attempt.reason else ""))


def _gpu_words(resources: Resources) -> str:
    memory = f" with {resources.gpu_memory}" if resources.gpu_memory else ""
    return f"{f' of type {resources.gpu_type}' if resources.gpu_type else ''}{memory}"


def format_resources(resources: Resources) -> str:
    """`4 tasks on 2 nodes, each: 2 cores, 16GiB memory`."""
    tasks = "1 task" if resources.tasks == 1 else f"{resources.tasks} tasks"
    nodes = "" if resources.nodes is None else f" on {resources.nodes} node{'s' if resources.nodes > 1 else ''}"
    amounts = resources.asked
    parts = [
        "1 core" if str(amounts.cores) == "1" else f"{amounts.cores} cores",
        f"{amounts.gpus} gpu{'s' if amounts.gpus > 1 else ''}{_gpu_words(resources)}" if amounts.gpus else "",
        *resources.devices,
        f"{amounts.memory} memory" if amounts.memory else "",
        f"{amounts.ephemeral_storage} storage" if amounts.ephemeral_storage else "",
    ]
    limits = {name: getattr(resources.limits, name) for name in resources.limits.__struct_fields__}
    capped = ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    return f"{tasks}{nodes}, each: {', '.join(filter(None, parts))}" + (f" (limits: {capped})" if capped else "")


def format_allocation(allocated: GivenResources) -> str:
    """`4 cores, 16GiB memory, 2 gpus a100 (0,3)`; what was not told is left out."""
    types, ids = " ".join(allocated.gpu_types), f"({allocated.gpu_ids})" if allocated.gpu_ids else ""
    gpus = f"{allocated.gpus} gpu{'' if allocated.gpus == 1 else 's'}" if allocated.gpus else ""
    cores = f"{allocated.cores:g} core{'' if allocated.cores == 1 else 's'}" if allocated.cores else ""
    memory = f"{show_bytes(allocated.memory_bytes)} memory" if allocated.memory_bytes else ""
    return ", ".join(filter(None, (cores, memory, " ".join(filter(None, (gpus, types, ids)) if gpus else ""))))


def print_event(event: Event, form: str | None) -> None:
    """Print one event as one line, for a stream of events."""
    if form == "json":
        print(escape_hidden(msgspec.json.encode(all_fields(event)).decode()), flush=True)
        return
    where = f" on {event.cluster}" if event.cluster else ""
    why = f": {event.reason}" if event.reason else ""
    print(f"{event.seq}  {event.job}  {event.kind}  {paint_state(event.state)}{printable(where + why)}", flush=True)
