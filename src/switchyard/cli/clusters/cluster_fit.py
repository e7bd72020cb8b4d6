"""`yard cluster fit FILE`: on which clusters a job would fit, how many times, and why not. Submits nothing."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, Verb
from switchyard.cli.terminal.table import Column, print_table
from switchyard.errors import EXIT_OK, EXIT_REJECTED
from switchyard.model.cluster.verdict import Fit, FitAnswer

COLUMNS = (
    Column("CLUSTER"),
    Column("EVER"),
    Column("TIMES", right=True),
    Column("NOW"),
    Column("WHY", flexible=True),
)
ANSWER_WORDS = {True: "yes", False: "no", None: "?"}


def _fit(args: Namespace) -> int:
    from switchyard.cli.submit.submit import read_job_file
    from switchyard.cli.submit.submit_files import drop_file_keys

    form = drop_file_keys(read_job_file(args.file))
    with connect(args) as yard:
        answer = yard.fit(form, match_engine=args.match_engine, only_fitting=args.only_fitting)
    content = [fit for fit in answer.items if fit.ever] if args.output == "name" else answer
    if not emit(content, args.output, key="cluster"):
        _print(answer)
    return EXIT_OK if answer.fitting else EXIT_REJECTED


def _print(answer: FitAnswer) -> None:
    if not answer.asked:
        print("There is no cluster yet. `yard cluster invite NAME` brings one in.")
        return
    ranked = sorted(answer.items, key=lambda fit: (not fit.ever, not fit.now, fit.cluster))
    print_table(COLUMNS, [_row(fit) for fit in ranked])
    print(f"\nIt fits on {answer.fitting} of {answer.asked} clusters (engine {answer.engine}). Nothing was submitted.")


def _row(fit: Fit) -> list[str]:
    why = fit.reason if not fit.ever else fit.now_reason
    return [
        fit.cluster,
        ANSWER_WORDS[fit.ever],
        "" if fit.slots is None else str(fit.slots),
        ANSWER_WORDS[fit.now] if fit.ever else "",
        why or fit.reason,
    ]


def _arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a job file in any form; - is stdin")
    parser.add_argument("--match-engine", metavar="NAME", help="the engine that checks the fit (default: the server's)")
    parser.add_argument("--only-fitting", action="store_true", help="only the clusters that it fits on")


VERBS = (
    Verb(
        "fit",
        "Ask all clusters whether a job would fit, without submitting it; exits 5 if it fits nowhere",
        _fit,
        _arguments,
        examples="  yard cluster fit job.yaml\n  yard cluster fit jobspec.json --match-engine walk -o json",
    ),
)
