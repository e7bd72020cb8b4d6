"""`yard cluster-resources`: the templates of a namespace, filled for one project and domain."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from difflib import unified_diff

from switchyard.cli.connect import connect
from switchyard.cli.output import emit, paint, print_notice, printable
from switchyard.cli.parser import Parser, Verb, run_noun
from switchyard.cli.table import format_duration, now_us
from switchyard.model.rendering import Rendering

ABOUT = """\
Cluster resources: what a project's namespace is given on a cluster, from the operator's templates. The values come from
the platform's config, then the domain's, then the rows of `cluster-resource-attribute`; the most specific one holds."""
STYLES = {"+": "green", "-": "red", "@": "cyan"}


def main(argv: list[str]) -> int:
    return run_noun("cluster-resources", ABOUT, VERBS, argv)


def _render(args: Namespace) -> int:
    with connect(args) as yard:
        made = yard.render_cluster_resources(args.project, args.domain)
    if args.output:
        emit(made, args.output, name=lambda each: each.namespace)
        return 0
    print("---\n".join(f"# {each.file}\n{each.text}" for each in made.files), end="")
    return 0


def _diff(args: Namespace) -> int:
    with connect(args) as yard:
        found = yard.cluster_resource_changes(args.project, args.domain)
    if args.output:
        emit(found, args.output, name=lambda each: each.now.namespace)
        return 0
    lines = list(diff_renderings(found.last, found.now))
    for line in lines:
        print(paint(printable(line), STYLES.get(line[:1], "")))
    if found.last is None:
        print_notice(f"Nothing was rendered yet for {args.project} in {args.domain}: all of it is new.")
    elif not lines:
        print_notice(f"No change since the last render, {format_duration(now_us() - (found.last.at_us or 0))} ago.")
    return 0


def diff_renderings(last: Rendering | None, now: Rendering) -> Iterator[str]:
    """File by file; one that came or went is all plus or all minus."""
    before = {each.file: each.text for each in last.files} if last else {}
    after = {each.file: each.text for each in now.files}
    for file in sorted({*before, *after}):
        old, new = before.get(file, "").splitlines(), after.get(file, "").splitlines()
        yield from unified_diff(old, new, f"last/{file}", f"now/{file}", lineterm="")


def _arguments(parser: Parser) -> None:
    parser.add_argument("-p", "--project", required=True, metavar="P", help="the project")
    parser.add_argument("-d", "--domain", required=True, metavar="D", help="the domain")


VERBS = (
    Verb(
        "render",
        "Fill the templates, show the result and keep it as the last one",
        _render,
        _arguments,
        examples="  yard cluster-resources render -p vision -d development",
    ),
    Verb(
        "diff",
        "Show what would change against the last render; keep nothing",
        _diff,
        _arguments,
        examples="  yard cluster-resources diff -p vision -d development",
    ),
)
