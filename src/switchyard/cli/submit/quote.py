"""`yard quote`: ask the clusters that could run a job when it would begin there, and for how much. Submits nothing."""

from __future__ import annotations

from switchyard.cli.submit.submit import read_job_file
from switchyard.cli.submit.submit_files import drop_file_keys
from switchyard.cli.submit.submit_tokens import add_clusters, print_stale_tokens, read_clusters
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, paint, printable
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import Column, format_duration, print_table
from switchyard.errors import EXIT_OK, EXIT_REJECTED
from switchyard.model.cluster.quote import Quote, QuoteOutcome, Quotes

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
        "Ask the clusters that could run a job when they could start it, and for how much. Submits nothing.\n"
        "At most 8 are asked; one that does not answer in time counts as no answer. Exits 5 if none says yes.",
        examples=EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", help="a job file in any form; - is stdin")
    parser.add_argument("--pool", metavar="NAME", help="only clusters of this pool")
    parser.add_argument("--cluster", metavar="NAME", help="only this cluster")
    add_clusters(parser)
    parser.add_argument("--project", metavar="NAME", help="quote it as a job of this project")
    parser.add_argument("--domain", metavar="NAME", help="quote it as a job of this domain")
    add_shared(parser)
    args = parser.parse_args(argv)
    form = drop_file_keys(read_job_file(args.file))
    with connect(args) as yard:
        quotes = yard.quote(
            form,
            pool=args.pool,
            cluster=args.cluster,
            clusters=read_clusters(args.clusters),
            project=args.project,
            domain=args.domain,
        )
    print_stale_tokens(quotes.stale_tokens)
    if args.output == "name":
        print(printable(quotes.soonest or quotes.cheapest or ""))
    elif not emit(quotes, args.output):
        _print(quotes)
    return EXIT_OK if any(quote.said is QuoteOutcome.YES for quote in quotes.items) else EXIT_REJECTED


def _print(quotes: Quotes) -> None:
    if not quotes.items:
        print(printable(f"Nobody could be asked: {quotes.reason or 'no cluster takes it'}."))
        return
    print_table(COLUMNS, [_row(quote) for quote in quotes.items])
    print()
    for word, name in (("soonest", quotes.soonest), ("cheapest", quotes.cheapest)):
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
    """The start that the router reckons with, and the cluster's own estimate where it differs."""
    if quote.starts_s is None:
        return ""
    counts = "now" if round(quote.starts_s) == 0 else f"in {format_duration(round(quote.starts_s) * 1_000_000)}"
    if quote.eta_s is None or round(quote.eta_s) == round(quote.starts_s):
        return counts
    return f"{counts} (says {format_duration(round(quote.eta_s) * 1_000_000)})"
