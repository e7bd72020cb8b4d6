"""`yard cluster-resources`: render the templates of a namespace, and show what clusters made of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from difflib import unified_diff

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser, Verb, run_noun
from switchyard.cli.terminal.table import Column, format_duration, now_us, print_table
from switchyard.features.kubernetes.model.namespace_objects import ClusterObject
from switchyard.features.kubernetes.model.rendering import Rendering
from switchyard.features.kubernetes.sdk.resource_calls import ClusterResourceClient

ABOUT = """\
Cluster resources: what a project's namespace is given on a cluster, from the operator's templates. The values come from
the platform's config, then the domain's, then the rows of `cluster-resource-attribute`; the most specific one holds."""
STYLES = {"+": "green", "-": "red", "@": "cyan"}


def main(argv: list[str]) -> int:
    return run_noun("cluster-resources", ABOUT, VERBS, argv)


def _render(args: Namespace) -> int:
    with connect(args, ClusterResourceClient) as yard:
        rendering = yard.render_cluster_resources(args.project, args.domain)
    if not emit(rendering, args.output, key="namespace"):
        print("---\n".join(f"# {rendered.file}\n{rendered.text}" for rendered in rendering.files), end="")
    return 0


def _diff(args: Namespace) -> int:
    with connect(args, ClusterResourceClient) as yard:
        change = yard.cluster_resource_changes(args.project, args.domain)
    if emit(change, args.output, key="now.namespace"):
        return 0
    lines = list(diff_renderings(change.last, change.now))
    for line in lines:
        print(paint(printable(line), STYLES.get(line[:1], "")))
    if change.last is None:
        print_notice(f"Nothing was rendered yet for {args.project} in {args.domain}: all of it is new.")
    elif not lines:
        print_notice(f"No change since the last render, {format_duration(now_us() - (change.last.at_us or 0))} ago.")
    return 0


def diff_renderings(last: Rendering | None, now: Rendering) -> Iterator[str]:
    """Yield a unified diff for each file. A new or removed file is all plus or all minus."""
    before = {rendered.file: rendered.text for rendered in last.files} if last else {}
    after = {rendered.file: rendered.text for rendered in now.files}
    for file in sorted({*before, *after}):
        old, new = before.get(file, "").splitlines(), after.get(file, "").splitlines()
        yield from unified_diff(old, new, f"last/{file}", f"now/{file}", lineterm="")


def _status(args: Namespace) -> int:
    with connect(args, ClusterResourceClient) as yard:
        states = list(
            yard.cluster_resource_states(
                project=args.project, domain=args.domain, cluster=args.cluster, is_problem=args.problems
            )
        )
    if emit(states, args.output, key="object"):
        return 0
    if not states:
        print_notice("No objects: no Kubernetes cluster has joined, or the server has no templates.")
        return 0
    print_table(
        (
            Column("CLUSTER"),
            Column("NAMESPACE", flexible=True),
            Column("OBJECT", flexible=True),
            Column("STATE"),
            Column("REPORTED", optional=True),
            Column("REASON", flexible=True),
        ),
        [
            (state.cluster, state.namespace, state.object, state.state, _ago(state.at_us), _reason_text(state))
            for state in states
        ],
    )
    return 0


def _ago(at_us: int | None) -> str:
    return "" if at_us is None else f"{format_duration(now_us() - at_us)} ago"


def _reason_text(state: ClusterObject) -> str:
    drift = f"{state.drift}, {_ago(state.drift_us)}" if state.drift else ""
    return "; ".join(text for text in (state.reason, drift) if text)


def _status_arguments(parser: Parser) -> None:
    parser.add_argument("-p", "--project", metavar="P", help="only of this project")
    parser.add_argument("-d", "--domain", metavar="D", help="only of this domain")
    parser.add_argument("--cluster", metavar="NAME", help="only on this cluster")
    parser.add_argument("--problems", action="store_true", help="without objects that are applied")


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
    Verb(
        "status",
        "Show the state of each object on each Kubernetes cluster",
        _status,
        _status_arguments,
        examples="  yard cluster-resources status -p vision\n  yard cluster-resources status --problems -o json",
    ),
)
