"""`yard logs`: what a job wrote, byte for byte; `-f` while it writes."""

from __future__ import annotations

import sys
import threading
from argparse import ArgumentTypeError, Namespace

from switchyard.cli.connect import connect
from switchyard.cli.log_view import LogWriter
from switchyard.cli.output import print_notice
from switchyard.cli.parser import Parser, add_shared, positive_int
from switchyard.errors import NotFound, YardError
from switchyard.model.cluster import POLLING_BACKEND
from switchyard.model.job import Job
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.sdk.client import Client

EXAMPLES = """\
  yard logs 01JCQ0V7 > result.txt
  yard logs 01JCQ0V7 --stderr
  yard logs 01JCQ0V7 --stream both         each to the stream it was written to
  yard logs -f 01JCQ0V7                    as it writes, until the job has ended
  yard logs -f 01JCQ0V7 --offset 52310     from a byte on: what was not seen yet
  yard logs 01JCQ0V7 --task 17             one task of an array
  yard logs 01JCQ0V7 --attempt 1           what the first try wrote

  On a terminal, control characters are shown instead of obeyed; into a pipe every byte goes as it is."""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    streams = ("stdout", "stderr") if args.stream == "both" else (args.stream,)
    with connect(args) as yard:
        readers = [_StreamReader(yard, args, stream, is_one_of_two=len(streams) > 1) for stream in streams]
        if args.follow:
            _follow(readers)
        else:
            for reader in readers:
                reader.run()
        if not any(reader.writer.count for reader in readers):
            job = yard.job(args.job)
            _say_why_empty(job, args, only_polls=_is_poller_job(yard, job))
    return 0


class _StreamReader:
    """One stream on its way to the reader."""

    def __init__(self, yard: Client, args: Namespace, stream: str, *, is_one_of_two: bool) -> None:
        self._yard = yard
        self._args = args
        self._stream = stream
        self.error: YardError | None = None
        self.writer = LogWriter(stream, to_stderr=is_one_of_two and stream == "stderr", offset=args.offset)

    def run(self) -> None:
        args = self._args
        attempt = args.attempt
        parts = self._yard.logs(
            args.job,
            stream=self._stream,
            task=args.task,
            attempt=attempt,
            offset=args.offset,
            follow=args.follow,
        )
        for part in parts:
            if attempt is not None and part.attempt != attempt:
                self.writer.begin(part.attempt)
            attempt = part.attempt
            for chunk in part.chunks:
                self.writer.write(chunk.offset, chunk.data)
        self.writer.end()

    def run_aside(self) -> None:
        try:
            self.run()
        except YardError as exc:
            self.error = exc


def _follow(readers: list[_StreamReader]) -> None:
    """The first here, another one beside it: they end by themselves when the job does."""
    first, *others = readers
    threads = [threading.Thread(target=other.run_aside, daemon=True) for other in others]
    for thread in threads:
        thread.start()
    try:
        first.run()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        if not others and first.writer.reached:
            sys.stdout.flush()
            print_notice(f"\nThe job goes on; `--offset {first.writer.reached}` follows it from here.")
        raise
    for other in others:
        if other.error is not None:
            raise other.error


def _is_poller_job(yard: Client, job: Job) -> bool:
    """Whether nobody stands beside its cluster who could send what it writes."""
    try:
        return job.cluster is not None and yard.cluster(job.cluster).backend == POLLING_BACKEND
    except NotFound:  # it is gone, or not ours to see
        return False


def _say_why_empty(job: Job, args: Namespace, *, only_polls: bool) -> None:
    if only_polls:
        print_notice(
            f"Job {job.id} is {job.state.value}. Its cluster {job.cluster} only polls and sends no output: "
            "what it wrote is there."
        )
        return
    what = "nothing" if args.stream == "both" else f"nothing to {args.stream}"
    if args.offset:
        what += f" beyond offset {args.offset}"
    if job.state in FINAL_STATES:
        print_notice(f"Job {job.id} is {job.state.value} and wrote {what}.")
    else:
        print_notice(f"Job {job.id} is {job.state.value} and wrote {what} as yet. `yard logs -f {job.id}` follows it.")


def _parser() -> Parser:
    parser = Parser("yard logs", "Print what a job wrote.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the job's id, or enough of its start")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--stream", choices=("stdout", "stderr", "both"), default="stdout", help="which output (default stdout)"
    )
    which.add_argument(
        "--stderr", dest="stream", action="store_const", const="stderr", help="the same as --stream stderr"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it writes, until the job has ended")
    parser.add_argument("--task", type=_parse_offset, metavar="N", help="of an array: this task's")
    parser.add_argument("--attempt", type=positive_int, metavar="N", help="what this try wrote (default: the last one)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--offset", type=_parse_offset, default=0, metavar="BYTE", help="only from this byte on")
    where.add_argument(
        "--since-start", dest="offset", action="store_const", const=0, help="from the first byte on (the default)"
    )
    add_shared(parser, outputs=())
    return parser


def _parse_offset(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
