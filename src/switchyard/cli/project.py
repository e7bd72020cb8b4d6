"""`yard project`: what jobs belong to."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.connect import connect
from switchyard.cli.output import emit, emit_list
from switchyard.cli.parser import Parser, Verb, no_arguments, run_noun
from switchyard.cli.table import Column, age, now_us, print_table

COLUMNS = (Column("NAME"), Column("DESCRIPTION", flexible=True), Column("AGE", right=True))


def main(argv: list[str]) -> int:
    return run_noun("project", "Projects: what jobs belong to, and where grants hold.", VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        projects = list(yard.projects())
    if args.output:
        emit_list(projects, args.output, name=lambda each: each.name)
        return 0
    now = now_us()
    print_table(COLUMNS, [[each.name, each.description, age(each.created_us, now)] for each in projects])
    return 0


def _create(args: Namespace) -> int:
    with connect(args) as yard:
        project = yard.create_project(args.name, description=args.description)
    if args.output:
        emit(project, args.output, name=lambda each: each.name)
        return 0
    print(
        f"Project {project.name} is made. `yard grant add submit --to WHO --on project:{project.name}` lets others in."
    )
    return 0


def _create_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the project's name")
    parser.add_argument("--description", default="", metavar="TEXT", help="what it is")


VERBS = (
    Verb("ls", "List projects", _ls, no_arguments, examples="  yard project ls"),
    Verb(
        "create",
        "Create a project",
        _create,
        _create_arguments,
        examples='  yard project create vision --description "Image models"',
    ),
)
