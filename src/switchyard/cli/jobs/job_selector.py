"""The options that name or select jobs, the same for `ls` and for every command that acts on many jobs."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from switchyard.cli.terminal.parser import Parser, add_force, add_labels, add_repeatable, duration_s
from switchyard.errors import BadRequest, Malformed
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import Job, State
from switchyard.model.wire.api import JobSelector
from switchyard.sdk.client import CoreClient

JOB_WITH_TASKS = re.compile(r"([0-9A-Za-z]+)\[([0-9,:%-]*)\]\Z")
OWNER_ME = "me"


@dataclass(frozen=True, slots=True)
class JobTarget:
    """A named job, and the tasks of it that are meant. None: the job itself."""

    job: str
    tasks: str | None = None


def add_job_filters(parser: Parser) -> None:
    group = parser.add_argument_group("which jobs")
    add_repeatable(group, "--state", metavar="S", help="only in this state; repeatable")
    group.add_argument("--cluster", metavar="NAME", help="only on this cluster")
    group.add_argument("--project", metavar="NAME", help="only of this project")
    group.add_argument("--domain", metavar="NAME", help="only of this domain")
    group.add_argument("--workflow", metavar="NAME", help="only of this workflow")
    group.add_argument("--launch-plan", metavar="NAME", help="only of this launch plan")
    group.add_argument("--owner", metavar="USER", help="only of this user; `me` is you")
    add_labels(group, "only with this label; repeatable")
    group.add_argument("--since", type=duration_s, metavar="T", help="only created within this time: 90, 15m, 2h, 1d")


def add_job_targets(parser: Parser) -> None:
    """Add job ids, filters, --all, --dry-run and --force."""
    parser.add_argument("job", nargs="*", metavar="ID", help="a job's id, or enough of its start")
    add_job_filters(parser)
    parser.add_argument("-a", "--all", action="store_true", help="every job you may act on")
    parser.add_argument("--dry-run", action="store_true", help="only print how many jobs are meant, and the first ids")
    add_force(parser)


def targets_of(args: Namespace) -> list[JobTarget]:
    """Return the named jobs. An empty list: the command line selects jobs by filters."""
    has_selector = args.all or any(
        (
            *(args.state, args.cluster, args.project, args.domain, args.owner, args.label, args.since),
            *(args.workflow, args.launch_plan),
        )
    )
    if args.job and has_selector:
        raise BadRequest("Name jobs by id, or say which are meant, not both.")
    if not args.job and not has_selector:
        raise BadRequest(
            "Which jobs?", next_step="Give ids, or say which: --label run=7, --state pending, --owner me, or --all."
        )
    tasks = getattr(args, "tasks", None)
    if tasks is not None and len(args.job) != 1:
        raise BadRequest("--tasks goes with one job.", next_step="Or name them with each: 'ID[3,5-7]'.")
    return [parse_target(text, tasks) for text in args.job]


def parse_target(text: str, tasks: str | None = None) -> JobTarget:
    """`01JCQ0V7` or `01JCQ0V7[3,5-7]`."""
    match = JOB_WITH_TASKS.match(text)
    if match is None:
        return JobTarget(text, check_tasks(tasks))
    if tasks is not None:
        raise BadRequest(f"{text} names tasks already.", next_step="Leave out --tasks.")
    return JobTarget(match[1], check_tasks(match[2]))


def parse_task(text: str) -> tuple[str, int | None]:
    """Read `01JCQ0V7` or `01JCQ0V7[17]`: the job, and one task of an array."""
    target = parse_target(text)
    if target.tasks is None:
        return target.job, None
    if not target.tasks.isdigit():
        raise BadRequest(
            f"{text} names several tasks, and one is shown at a time.", next_step=f"Name one: '{target.job}[17]'."
        )
    return target.job, int(target.tasks)


def check_tasks(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(IdSet.parse(text))
    except ValueError as exc:
        raise Malformed(f"{exc}.", next_step="Tasks are written as 3,5-7.") from exc


class JobFilters(TypedDict):
    """The options of `add_job_filters` but the states, as the client takes them."""

    cluster: str | None
    project: str | None
    domain: str | None
    workflow: str | None
    launch_plan: str | None
    owner: str | None
    labels: dict[str, str]
    since_s: int | None


def filters_of(yard: CoreClient, args: Namespace) -> JobFilters:
    return {
        "cluster": args.cluster,
        "project": args.project,
        "domain": args.domain,
        "workflow": args.workflow,
        "launch_plan": args.launch_plan,
        "owner": yard.whoami().name if args.owner == OWNER_ME else args.owner,
        "labels": dict(args.label),
        "since_s": args.since,
    }


def selector_of(yard: CoreClient, args: Namespace) -> JobSelector:
    return JobSelector(states=states_of(args), **filters_of(yard, args))


def select_jobs(yard: CoreClient, args: Namespace, *, states: tuple[State, ...]) -> Iterator[Job]:
    """Yield the selected jobs that are in one of these states."""
    selected = [state for state in (states_of(args) or states) if state in states]
    jobs = yard.jobs(state=selected, **filters_of(yard, args)) if selected else iter(())
    # An array with some tasks on a cluster is listed for it, but is changed only as a whole, at the cluster it is on.
    return jobs if args.cluster is None else (job for job in jobs if job.cluster == args.cluster)


def states_of(args: Namespace) -> list[State]:
    return [parse_state(text) for text in args.state]


def parse_state(text: str, noun: str = "job") -> State:
    try:
        return State(text.upper())
    except ValueError as exc:
        known = ", ".join(state.value.lower() for state in State)
        raise BadRequest(f"{text!r} is not a state of a {noun}.", next_step=f"States are: {known}.") from exc
