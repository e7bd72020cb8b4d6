"""`yard project`: list, create, change and archive projects."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, print_result
from switchyard.cli.terminal.parser import (
    Parser,
    Verb,
    add_force,
    add_labels,
    add_name,
    add_repeatable,
    changed_labels,
    run_noun,
)
from switchyard.cli.terminal.table import Column, format_age, print_list
from switchyard.errors import BadRequest
from switchyard.model.wire.api import Project

COLUMNS = (
    Column("NAME"),
    Column("TITLE", flexible=True, optional=True),
    Column("DESCRIPTION", flexible=True),
    Column("LABELS", flexible=True, optional=True),
    Column("STATE"),
    Column("AGE", right=True),
)
ABOUT = """\
Projects: what jobs belong to, and where grants and rules hold. A project's labels go to each of its jobs. An archived
project takes no jobs and no rules; what it has stays readable."""


def main(argv: list[str]) -> int:
    return run_noun("project", ABOUT, VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        projects = [project for project in yard.projects() if args.archived or not project.is_archived]
    return print_list(projects, args.output, COLUMNS, _row)


def _row(project: Project, now: int) -> list[str]:
    labels = ",".join(f"{key}={value}" for key, value in sorted(project.labels.items()))
    state = "archived" if project.is_archived else "active"
    return [project.name, project.title, project.description, labels, state, format_age(project.created_us, now)]


def _create(args: Namespace) -> int:
    with connect(args) as yard:
        project = yard.create_project(
            args.name, title=args.title, description=args.description, labels=dict(args.label)
        )
    name = project.name
    text = f"Project {name} is made. `yard grant add submit --to WHO --on project:{name}` lets others in."
    return print_result(project, args.output, text)


def _update(args: Namespace) -> int:
    changes = (args.title, args.description, args.activate or None, args.label or None, args.unlabel or None)
    if all(change is None for change in changes):
        raise BadRequest("There is nothing to change.", next_step="`yard project update --help` has the options.")
    with connect(args) as yard:
        has_labels = args.label or args.unlabel
        labels = changed_labels(yard.project(args.name).labels, args) if has_labels else None
        project = yard.change_project(
            args.name,
            title=args.title,
            description=args.description,
            labels=labels,
            archived=False if args.activate else None,
        )
    return print_result(project, args.output, f"Project {project.name} is changed.")


def _archive(args: Namespace) -> int:
    if not confirm(f"Archive project {args.name}? It takes no more jobs.", force=args.force):
        return 1
    with connect(args) as yard:
        yard.change_project(args.name, archived=True)
    print(f"Project {args.name} is archived. `yard project update {args.name} --activate` takes it up again.")
    return 0


def _ls_arguments(parser: Parser) -> None:
    parser.add_argument("--archived", action="store_true", help="list archived projects, too")


def _create_arguments(parser: Parser) -> None:
    add_name(parser, "the project's name")
    parser.add_argument("--title", default="", metavar="TEXT", help="the display name")
    parser.add_argument("--description", default="", metavar="TEXT", help="what it is")
    add_labels(parser)


def _update_arguments(parser: Parser) -> None:
    add_name(parser, "the project's name")
    parser.add_argument("--title", metavar="TEXT", help="the display name")
    parser.add_argument("--description", metavar="TEXT", help="what it is")
    add_labels(parser)
    add_repeatable(parser, "--unlabel", metavar="K", help="remove a label; repeatable")
    parser.add_argument("--activate", action="store_true", help="activate an archived project")


def _archive_arguments(parser: Parser) -> None:
    add_name(parser, "the project's name")
    add_force(parser)


VERBS = (
    Verb("ls", "List projects", _ls, _ls_arguments, examples="  yard project ls"),
    Verb(
        "create",
        "Create a project",
        _create,
        _create_arguments,
        examples='  yard project create vision --description "Image models"',
    ),
    Verb(
        "update",
        "Change a project, or activate an archived one",
        _update,
        _update_arguments,
        examples="  yard project update vision -l team=red --description 'Image models, second generation'",
    ),
    Verb(
        "archive",
        "Archive a project: no more jobs, no more rules",
        _archive,
        _archive_arguments,
        examples="  yard project archive vision",
        outputs=(),
    ),
)
