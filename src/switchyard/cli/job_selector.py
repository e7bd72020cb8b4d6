"""Which jobs are meant: by id, or by what they are. The same words for `ls` and for every command that acts on many."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from switchyard.cli.parser import Parser, add_force, duration_s, key_value
from switchyard.errors import BadRequest, Malformed
from switchyard.model.api import JobSelector
from switchyard.model.idset import IdSet
from switchyard.model.job import Job, State
from switchyard.sdk.client import Client

JOB_WITH_TASKS = re.compile(r"([0-9A-Za-z]+)\[([0-9,:%-]*)\]\Z")
OWNER_ME = "me"


@dataclass(frozen=True, slots=True)
class JobTarget:
    """A job that was named, and which of its tasks; none: the job itself."""

    job: str
    tasks: str | None = None


def add_job_filters(parser: Parser) -> None:
    """What a job may be looked for by."""
    group = parser.add_argument_group("which jobs")
    group.add_argument("--state", action="append", default=[], metavar="S", help="only in this state; repeatable")
    group.add_argument("--cluster", metavar="NAME", help="only on this cluster")
    group.add_argument("--project", metavar="NAME", help="only of this project")
    group.add_argument("--domain", metavar="NAME", help="only of this domain")
    group.add_argument("--workflow", metavar="NAME", help="only of this workflow")
    group.add_argument("--launch-plan", metavar="NAME", help="only of this launch plan")
    group.add_argument("--owner", metavar="USER", help="only of this user; `me` is you")
    group.add_argument(
        "-l",
        "--label",
        type=key_value,
        action="append",
        default=[],
        metavar="K=V",
        help="only with this label; repeatable",
    )
    group.add_argument("--since", type=duration_s, metavar="T", help="only made within this time: 90, 15m, 2h, 1d")


def add_job_targets(parser: Parser) -> None:
    """Ids, or a selector with the care that many jobs at once deserve."""
    parser.add_argument("job", nargs="*", metavar="ID", help="a job's id, or enough of its start")
    add_job_filters(parser)
    parser.add_argument("-a", "--all", action="store_true", help="every job you may act on")
    parser.add_argument("--dry-run", action="store_true", help="only say how many that would be, and the first of them")
    add_force(parser)


def targets_of(args: Namespace) -> list[JobTarget]:
    """The jobs that were named; none: they are to be selected."""
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
    some = JOB_WITH_TASKS.match(text)
    if some is None:
        return JobTarget(text, check_tasks(tasks))
    if tasks is not None:
        raise BadRequest(f"{text} names tasks already.", next_step="Leave --tasks away.")
    return JobTarget(some[1], check_tasks(some[2]))


def check_tasks(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(IdSet.parse(text))
    except ValueError as exc:
        raise Malformed(f"{exc}.", next_step="Tasks are written as 3,5-7.") from exc


def selector_of(yard: Client, args: Namespace) -> JobSelector:
    return JobSelector(
        states=states_of(args),
        cluster=args.cluster,
        project=args.project,
        domain=args.domain,
        workflow=args.workflow,
        launch_plan=args.launch_plan,
        owner=owner_of(yard, args),
        labels=dict(args.label),
        since_s=args.since,
    )


def select_jobs(yard: Client, args: Namespace, *, states: tuple[State, ...]) -> Iterator[Job]:
    """The jobs that are meant, among those for which the deed makes sense."""
    wanted = states_of(args)
    useful = [state for state in (wanted or states) if state in states]
    if not useful:
        return iter(())
    return yard.jobs(
        state=useful,
        cluster=args.cluster,
        project=args.project,
        domain=args.domain,
        workflow=args.workflow,
        launch_plan=args.launch_plan,
        owner=owner_of(yard, args),
        labels=dict(args.label),
        since_s=args.since,
    )


def owner_of(yard: Client, args: Namespace) -> str | None:
    return yard.whoami().name if args.owner == OWNER_ME else args.owner


def states_of(args: Namespace) -> list[State]:
    return [_parse_state(text) for text in args.state]


def _parse_state(text: str) -> State:
    try:
        return State(text.upper())
    except ValueError as exc:
        known = ", ".join(state.value.lower() for state in State)
        raise BadRequest(f"{text!r} is not a state of a job.", next_step=f"States are: {known}.") from exc
