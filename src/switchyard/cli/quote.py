"""`yard quote`: ask the clusters that could run a job when it would begin there, and for how much. Submits nothing."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.output import emit, paint, printable
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.submit import read_job_file
from switchyard.cli.table import Column, format_duration, print_table
from switchyard.errors import EXIT_OK, EXIT_REJECTED
from switchyard.model.quote import Quote, QuoteOutcome, Quotes

EXAMPLES = """\
  yard quote job.yaml
  yard quote job.yaml --pool gpu -o json | jq .soonest
  yard submit -f job.yaml --select soonest    ask, and go where it begins first"""
COLUMNS = (
    Column("CLUSTER"),
    Column("SAYS"),
    Column("STARTS", right=True),
    Column("COST", right=True),
    Column("SURE", right=True),
    Column("HOLDS", right=True),
    Column("WHY", flexible=True),
)
QUOTE_WORDS = {QuoteOutcome.YES: "yes", QuoteOutcome.NO: "no", QuoteOutcome.NONE: "no answer"}


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard quote",
        "Ask the clusters that could run a job when it would begin, and for how much. Submits nothing.\n"
        "At most 8 are asked; one that does not answer in time counts as no answer. Exits 5 if none says yes.",
        examples=EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", help="a job file in any form; - is stdin")
    parser.add_argument("--pool", metavar="NAME", help="only clusters of this pool")
    parser.add_argument("--cluster", metavar="NAME", help="only this cluster")
    parser.add_argument("--project", metavar="NAME", help="as a job of this project")
    parser.add_argument("--domain", metavar="NAME", help="and of this domain")
    add_shared(parser)
    args = parser.parse_args(argv)
    form = read_job_file(args.file)
    with connect(args) as yard:
        found = yard.quote(form, pool=args.pool, cluster=args.cluster, project=args.project, domain=args.domain)
    if args.output:
        emit(found, args.output, name=lambda each: each.soonest or each.cheapest or "")
    else:
        _print(found)
    return EXIT_OK if any(each.said is QuoteOutcome.YES for each in found.items) else EXIT_REJECTED


def _print(found: Quotes) -> None:
    if not found.items:
        print(printable(f"Nobody could be asked: {found.reason or 'no cluster takes it'}."))
        return
    print_table(COLUMNS, [_row(each) for each in found.items])
    print()
    for word, name in (("soonest", found.soonest), ("cheapest", found.cheapest)):
        if name is not None:
            print(f"{paint(f'{word:<8}', 'bold')}  {printable(name)}")


def _row(quote: Quote) -> list[str]:
    return [
        quote.cluster,
        QUOTE_WORDS[quote.said],
        _start_text(quote),
        "" if quote.cost is None else f"{quote.cost:.4g}",
        "" if quote.confidence is None or quote.said is not QuoteOutcome.YES else f"{quote.confidence:.0%}",
        "" if quote.valid_s is None or quote.said is QuoteOutcome.NONE else format_duration(round(quote.valid_s * 1e6)),
        quote.reason,
    ]


def _start_text(quote: Quote) -> str:
    """As it counts; what the cluster itself said, where that is another time."""
    if quote.starts_s is None:
        return ""
    counts = "now" if round(quote.starts_s) == 0 else f"in {format_duration(round(quote.starts_s) * 1_000_000)}"
    if quote.eta_s is None or round(quote.eta_s) == round(quote.starts_s):
        return counts
    return f"{counts} (says {format_duration(round(quote.eta_s) * 1_000_000)})"
