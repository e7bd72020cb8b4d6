"""`yard fetch`: get the output files of a job."""

from __future__ import annotations

from switchyard.cli.jobs.job_selector import parse_target
from switchyard.cli.submit.submit_files import print_fetched, print_waiting
from switchyard.cli.terminal.connect import SUBMIT_RETRY_S, connect
from switchyard.cli.terminal.parser import Parser, add_shared, duration_s
from switchyard.cli.terminal.progress import TransferBar
from switchyard.errors import EXIT_ERROR, EXIT_OK

EXAMPLES = """\
  yard fetch 01JCQ0V7                      all its output files, into this folder
  yard fetch 01JCQ0V7 'results/*.csv' --to /tmp/results
  yard fetch '01JCQ0V7[3]'                 one task of an array; or --tasks 3
  yard fetch 01JCQ0V7 --to out             of an array: out/0/…, out/1/…

  Files that are here and equal are not fetched again, so a fetch that was cut goes on where it stopped. If a file is
  here and differs, nothing is written without --force. Of a job with several attempts, the last one's files come.
  Exits 1 if files that the job left cannot be had, and names the tasks of an array whose files did not come; 7 after
  --timeout; 69 if the server is away for longer than --patience."""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    target = parse_target(args.job, args.tasks)
    with connect(args, retry_s=SUBMIT_RETRY_S) as yard, TransferBar() as bar:
        result = yard.fetch(
            target.job,
            args.pattern,
            to=args.to,
            tasks=target.tasks,
            force=args.force,
            timeout_s=args.timeout,
            on_progress=bar,
            on_wait=print_waiting,
        )
    print_fetched(result)
    return EXIT_ERROR if result.failed or result.skipped else EXIT_OK


def _parser() -> Parser:
    parser = Parser("yard fetch", "Get the output files of a job: those that `--out` named.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the job's id, or enough of its start; ID[3,5-7]: tasks of an array")
    parser.add_argument("pattern", nargs="*", metavar="PATTERN", help="only these files: 'results/*', '**/*.csv'")
    parser.add_argument("--to", default=".", metavar="DIR", help="the folder to write into (default: this one)")
    parser.add_argument("--tasks", "--task", metavar="SET", help="of an array: only these tasks, as in 3,5-7")
    parser.add_argument("--force", action="store_true", help="replace files that are here and differ")
    parser.add_argument(
        "--timeout", type=duration_s, metavar="T", help="wait at most this long (90, 15m) for files on their way"
    )
    add_shared(parser, outputs=(), is_patient=True)
    return parser
