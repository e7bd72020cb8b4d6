"""`yard logs`: print the output of a job; `-f` follows it."""

from __future__ import annotations

import sys
import threading
from argparse import ArgumentTypeError, Namespace

from switchyard.cli.jobs.job_selector import parse_task
from switchyard.cli.jobs.log_view import LogWriter
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import print_notice
from switchyard.cli.terminal.parser import Parser, add_shared, positive_int
from switchyard.errors import BadRequest, NotFound, YardError
from switchyard.model.cluster.cluster import POLLING_BACKEND
from switchyard.model.job.job import Job
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  yard logs 01JCQ0V7 > result.txt
  yard logs 01JCQ0V7 --stderr
  yard logs 01JCQ0V7 --stream both         each to the stream it was written to
  yard logs -f 01JCQ0V7                    as it writes, until the job has ended
  yard logs -f 01JCQ0V7 --offset 52310     from a byte on: what was not seen yet
  yard logs '01JCQ0V7[17]'                 one task of an array; or --task 17
  yard logs 01JCQ0V7 --attempt 1           what the first try wrote
  yard logs 01JCQ0V7 --file results.csv -f a file in the job's folder, as it grows

  On a terminal, control and invisible characters are shown as marks; into a pipe every byte goes as it is."""


def main(argv: list[str]) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    args.job, args.task = _parse_task(args.job, args.task)
    if args.file is not None:
        if args.stream is not None:
            parser.error("--file shows a file, which has no --stream or --stderr")
        return _show_file(args)
    args.stream = args.stream or "stdout"
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


def _show_file(args: Namespace) -> int:
    """Print a file in the job's folder; with -f as it grows."""
    writer = LogWriter(args.file, to_stderr=False, offset=args.offset)
    with connect(args) as yard:
        try:
            for part in yard.logs(
                args.job, task=args.task, attempt=args.attempt, offset=args.offset, follow=args.follow, file=args.file
            ):
                if notice := getattr(part, "notice", ""):
                    print_notice(notice)
                for chunk in part.chunks:
                    writer.write_at(chunk.offset, chunk.data)
        except KeyboardInterrupt:
            writer.end()
            if args.follow and writer.next_offset:
                print_notice(f"The job goes on; `--offset {writer.next_offset}` follows the file from here.")
            raise
        writer.end()
        if not writer.count:
            print_notice(f"The file has no bytes{f' beyond offset {args.offset}' if args.offset else ''}.")
    return 0


class _StreamReader:
    """Reads one output stream of a job and writes it."""

    def __init__(self, yard: CoreClient, args: Namespace, stream: str, *, is_one_of_two: bool) -> None:
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
    """Follow the first stream in this thread, the others in threads. All end when the job has ended."""
    first, *beside = readers
    threads = [threading.Thread(target=other.run_aside, daemon=True) for other in beside]
    for thread in threads:
        thread.start()
    try:
        first.run()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        if not beside and first.writer.next_offset:
            sys.stdout.flush()
            print_notice(f"The job goes on; `--offset {first.writer.next_offset}` follows it from here.")
        raise
    for other in beside:
        if other.error is not None:
            raise other.error


def _is_poller_job(yard: CoreClient, job: Job) -> bool:
    """Whether the job runs on a cluster without an agent, which cannot send output."""
    try:
        return job.cluster is not None and yard.cluster(job.cluster).backend == POLLING_BACKEND
    except NotFound:  # removed, or not visible to this user
        return False


def _say_why_empty(job: Job, args: Namespace, *, only_polls: bool) -> None:
    if only_polls:
        print_notice(
            f"Job {job.id} is {job.state.value}. Its cluster {job.cluster} only polls and sends no output: "
            "what it wrote is there."
        )
        return
    written = "nothing" if args.stream == "both" else f"nothing to {args.stream}"
    if args.offset:
        written += f" beyond offset {args.offset}"
    if job.state in FINAL_STATES:
        print_notice(f"Job {job.id} is {job.state.value} and wrote {written}.")
    else:
        print_notice(
            f"Job {job.id} is {job.state.value} and wrote {written} as yet. `yard logs -f {job.id}` follows it."
        )


def _parser() -> Parser:
    parser = Parser("yard logs", "Print the output of a job.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the job's id, or enough of its start; ID[17]: a task of an array")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--stream", choices=("stdout", "stderr", "both"), help="which output (default stdout)")
    which.add_argument(
        "--stderr", dest="stream", action="store_const", const="stderr", help="the same as --stream stderr"
    )
    parser.add_argument(
        "--file",
        metavar="NAME",
        help="not the output, but this file in the job's folder; after the end, if --out kept it",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow the output until the job has ended")
    parser.add_argument("--task", type=_parse_offset, metavar="N", help="of an array: the output of this task")
    parser.add_argument(
        "--attempt", type=positive_int, metavar="N", help="the output of this attempt (default: the last one)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--offset", type=_parse_offset, default=0, metavar="BYTE", help="only from this byte on")
    where.add_argument(
        "--since-start", dest="offset", action="store_const", const=0, help="from the first byte on (the default)"
    )
    add_shared(parser, outputs=(), is_patient=True)
    return parser


def _parse_task(text: str, task: int | None) -> tuple[str, int | None]:
    """Read `01JCQ0V7` or `01JCQ0V7[17]`: the job, and the task of an array."""
    job, index = parse_task(text)
    if index is not None and task is not None:
        raise BadRequest(f"{text} names a task already.", next_step="Leave out --task.")
    return job, task if index is None else index


def _parse_offset(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
