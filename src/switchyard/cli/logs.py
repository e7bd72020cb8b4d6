"""`yard logs`: what a job wrote, byte for byte."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.output import note
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.watching import write_output
from switchyard.model.job import Job
from switchyard.model.lifecycle import FINAL
from switchyard.sdk.client import Client

EXAMPLES = """\
  yard logs 01JCQ0V7 > result.txt
  yard logs 01JCQ0V7 --stderr
  yard logs 01JCQ0V7 --stream both         each to the stream it was written to
  yard logs -f 01JCQ0V7                    until the job has ended"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    streams = ("stdout", "stderr") if args.stream == "both" else (args.stream,)
    with connect(args) as yard:
        if args.follow:
            return _follow(yard, args.job, streams)
        sizes = [_write(yard, args.job, stream, streams, after=0) for stream in streams]
        if not any(sizes):
            _say_why_empty(yard.job(args.job), args.stream)
    return 0


def _follow(yard: Client, job: str, streams: tuple[str, ...]) -> int:
    reached = dict.fromkeys(streams, 0)
    for seen in yard.looks(job):
        for stream in streams:
            reached[stream] = _write(yard, seen.id, stream, streams, after=reached[stream])
    return 0


def _write(yard: Client, job: str, stream: str, streams: tuple[str, ...], *, after: int) -> int:
    both = len(streams) > 1
    return write_output(yard.output(job, stream=stream), to_stderr=both and stream == "stderr", after=after)


def _say_why_empty(job: Job, stream: str) -> None:
    what = "nothing" if stream == "both" else f"nothing to {stream}"
    if job.state in FINAL:
        note(f"Job {job.id} is {job.state.value} and wrote {what}.")
    else:
        note(f"Job {job.id} is {job.state.value}: its output comes when it ends. `yard logs -f {job.id}` waits for it.")


def _parser() -> Parser:
    parser = Parser("yard logs", "Print what a job wrote, byte for byte.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the job's id, or enough of its start")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--stream", choices=("stdout", "stderr", "both"), default="stdout", help="which output (default stdout)"
    )
    which.add_argument(
        "--stderr", dest="stream", action="store_const", const="stderr", help="the same as --stream stderr"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    add_shared(parser, outputs=())
    return parser
