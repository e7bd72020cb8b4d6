"""`yard submit`: submit a job from flags and a file, plan it, or wait for its end."""

from __future__ import annotations

import argparse
import sys
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from switchyard.cli.jobs.job_view import EXIT_CODES_HELP, created_job, exit_code_of, format_created, format_tally
from switchyard.cli.jobs.verdicts import print_explanation, print_plan
from switchyard.cli.jobs.wait_view import wait_for_job, write_output
from switchyard.cli.submit.submit_files import add_files, fetch_after_wait, name_files, send_files, split_files
from switchyard.cli.submit.submit_select import add_select, parameters_of, select_of
from switchyard.cli.submit.submit_tokens import add_clusters, print_stale_tokens, read_clusters
from switchyard.cli.terminal.connect import SUBMIT_RETRY_S, connect
from switchyard.cli.terminal.output import emit, paint, print_notice
from switchyard.cli.terminal.parser import (
    Parser,
    add_labels,
    add_repeatable,
    add_shared,
    duration_s,
    int_or_text,
    key_value,
    positive_int,
)
from switchyard.errors import EXIT_OK, EXIT_REJECTED, BadRequest, Malformed, Unavailable
from switchyard.model.cluster.verdict import Plan
from switchyard.model.failures.retry_text import parse_rules
from switchyard.model.job.job import Job, JobRequest, OnLost, State
from switchyard.model.job.retry import Cause
from switchyard.model.wire.api import BULK_JOBS_MAX
from switchyard.sdk.client import CoreClient
from switchyard.sdk.files.file_request import FileRequest
from switchyard.sdk.jobs.handle import JobHandle

ABOUT = """\
Submit a job. The server picks the cluster, can always say why, and hands the job over exactly once.
The command runs as it is written, without a shell; write `sh -c '…'` for one."""

EXAMPLES = f"""\
  yard submit -- hostname
  yard submit --wait -c 4 --memory 8GiB --time-limit 1h -- python train.py --epochs 3
  yard submit --plan -n 16 --gpus 1 -- ./simulate        where would it go, and why?
  yard submit -f job.yaml --name again --label team=ml   flags win over the file
  id=$(yard submit -o name -- ./step1) && yard wait $id
  yard submit --array 0-999%50 -- ./one-of-many          SWITCHYARD_ARRAY_INDEX says which; 50 at once
  yard submit --gpu 'h100:2 or a100-80gb:4' -- ./train    YARD_ALTERNATIVE says which: 1 or 2
  yard submit --retry 3 --retry-on cluster,lost --backoff 30s -- ./fragile
  yard submit --memory 8GiB --retry-on out-of-memory:3,memory=x2,memory-max=64GiB -- ./hungry
  yard submit --image oci:./sim:7 -- ./simulate          only where the image can run
  yard submit --in train.py --out 'results/*' --wait -- python train.py      files go there, results come back
  yard submit --workdir . --out model.pt -- ./train.sh   the whole folder, without what .yardignore names
  yard submit --array 0-9 --in 'parts/{{index}}.csv:part.csv' --in count.py -- python count.py part.csv
  yard submit --clusters two.yaml -- ./simulate          one of the clusters in this file, by their submit tokens
  yard submit --after 01JCQ0V7 --after 01JCQ0WA:any -- ./then
  yard submit --bulk jobs.jsonl --label run=7            thousands: a list, or one JSON object per line

job file (every field but command may be left out):
  command: [python, train.py]        # or one line, split as a shell would
  name: train                        # and: project, domain, priority, labels, cluster
  env: {{EPOCHS: "3"}}                 # and: cwd, image
  tasks: 4                           # in all; what follows is for each of them
  cores: 2                           # and: gpus, memory, ephemeral_storage, nodes
  memory: 8GiB
  limits: {{memory: 16GiB}}
  time_limit: 1h
  on_lost: requeue                   # if its cluster falls silent: wait, requeue or fail
  lost_after: 10m
  in: [train.py, data:input]         # from this file's folder on; and: workdir, out_required
  out: [results/*]                   # kept at the end: `yard fetch`
  array: 0-999%50                    # and: after: [ID:any], hold: true, expires_after: 1h
  retry:                             # and: causes: [cluster, lost], exit_codes: 1,75, backoff: 10s, backoff_max: 10m
    limit: 3
    on: {{out-of-memory: {{limit: 2, memory: x2, memory_max: 64GiB}}, node-lost: {{elsewhere: true}}}}

{EXIT_CODES_HELP}
  Without --wait: 0 once the job is accepted, 5 if no cluster could ever run it."""

TASKS_SHOWN = 10  # failed ones named at the end of a wait
FLAG_FIELDS = (
    *("name", "project", "domain", "priority", "cluster", "cwd", "image", "nodes", "tasks", "cores", "gpus", "memory"),
    *("gpu_type", "gpu_memory", "devices"),
    *("ephemeral_storage", "time_limit", "on_lost", "lost_after", "array", "together", "hold", "expires_after"),
    *("workflow", "launch_plan", "pool", "cluster_label", "task_type", "match_engine"),
)


def parse_gpu_choices(text: str) -> list[tuple[str, int]]:
    """`h100:2`, or `h100:2 or a100-80gb:4`."""
    from switchyard.sdk.transport.alternatives import split_gpu_choices

    try:
        return [parse_gpus(choice) for choice in split_gpu_choices(text)]
    except ValueError as exc:
        raise ArgumentTypeError(str(exc)) from exc


def parse_gpus(text: str) -> tuple[str, int]:
    """`h100:2` or `h100`."""
    kind, sign, count = text.partition(":")
    return parse_gpu_type(kind), positive_int(count) if sign else 1


def parse_gpu_type(text: str) -> str:
    """An empty type would mean any: a variable of the shell that is not set."""
    if not text:
        raise ArgumentTypeError("the type is empty; write a type, as in h100, or --gpus N alone for GPUs of any type")
    return text


def parse_token_units(text: str) -> tuple[str, int]:
    """`matlab` or `matlab=2`."""
    pool, sign, units = text.partition("=")
    return pool, positive_int(units) if sign else 1


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if args.bulk is not None:
        return _bulk(args)
    if args.each:
        raise BadRequest("--each goes with --bulk.")
    request, files = read_request(args)
    with connect(args, retry_s=SUBMIT_RETRY_S) as yard:
        if args.plan:
            return _plan(yard, name_files(request, files), args)
        (request,) = send_files(yard, [(request, files)])
        job = yard.submit(request, key=args.key)
        print_stale_tokens(created_job(job).stale_tokens)
        if job.state is State.REJECTED:
            return _print_rejected(job, args)
        has_outputs = request.spec.files is not None and bool(request.spec.files.out)
        wait_or_print = _wait if args.wait else _print_accepted
        return wait_or_print(yard, job, args, has_outputs=has_outputs)


def read_request(args: Namespace) -> tuple[JobRequest, FileRequest]:
    """Return the job request of the file, with the flags laid over it, and its local files."""
    from switchyard.sdk.transport.request import build_job_request

    where = _source_name(args.file)
    form = {} if args.file is None else read_job_file(args.file)
    plain, files = split_files(form, args, file=args.file, where=where)
    return build_job_request(plain, job_fields_of(args), where=where), files


def job_fields_of(args: Namespace) -> dict[str, Any]:
    """Return the job's fields that flags set. None: not set."""
    fields = {name: getattr(args, name) for name in FLAG_FIELDS}
    if args.gpu is not None:
        if args.gpus is not None or args.gpu_type is not None:
            raise BadRequest("--gpu TYPE:N says the type and the number; leave out --gpus and --gpu-type.")
        (fields["gpu_type"], fields["gpus"]), *others = args.gpu
        args.alternatives = [*(f"gpu={kind}:{count}" for kind, count in others), *args.alternatives]
    fields["alternatives"] = args.alternatives or None
    fields["labels"] = dict(args.label) or None
    fields["env"] = dict(args.env) or None
    fields["limits"] = {name.replace("-", "_"): int_or_text(value) for name, value in args.limit} or None
    fields["command"] = _command(args.command) or None
    fields["after"] = args.after or None
    fields["tags"] = args.queue_tag or None
    fields["spill"] = args.spill or None
    fields["clusters"] = read_clusters(args.clusters)
    fields["select"] = select_of(args)
    fields["parameters"] = parameters_of(args) or None
    fields["tokens"] = dict(args.token) or None
    fields["native"] = native_of(args) or None
    fields["retry"] = retry_of(args) or None
    fields["compatibility"] = None if args.compatibility is None else _read_compatibility(args.compatibility)
    return fields


def _read_compatibility(file: str) -> list[Any]:
    """Read a file with the compatibility that the image needs."""
    from switchyard.model.job.image_compatibility import compatibility_from_document
    from switchyard.model.wire.decode import load_yaml

    return list(compatibility_from_document(load_yaml(_read_bytes(file), where=file), where=file))


def _bulk(args: Namespace) -> int:
    from switchyard.cli.submit.bulk import submit_bulk

    if args.file is not None or args.plan:
        raise BadRequest("--bulk goes with neither --file nor --plan.")
    with connect(args, retry_s=SUBMIT_RETRY_S) as yard:
        return submit_bulk(yard, args, job_fields_of(args))


def _command(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["--"] else words


def _source_name(file: str | None) -> str:
    return "The job" if file is None else "stdin" if file == "-" else file


def read_job_file(file: str) -> dict[str, Any]:
    """Read a job file of any form, as plain fields."""
    from switchyard.model.wire.decode import load_yaml

    form = load_yaml(_read_bytes(file), where=_source_name(file))
    if not isinstance(form, dict):
        raise Malformed(
            f"{_source_name(file)}: expected fields such as `command:`.", next_step="See `yard submit --help`."
        )
    return _from_flux(form, where=_source_name(file))


def _read_bytes(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise Malformed(
            f"Cannot read {file}: {exc.strerror}.", next_step="Name a file that is there, or - for stdin."
        ) from exc


def _from_flux(form: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Convert a Flux jobspec into plain fields, with a notice for what is left out. Other forms stay as they are."""
    from switchyard.model.jobspec.jobspec import from_jobspec, is_jobspec

    if not is_jobspec(form):
        return form
    job = from_jobspec(form, where=where)
    for text in job.notes:
        print_notice(f"note: {where}: {text}")
    return job.plain


def _plan(yard: CoreClient, request: JobRequest, args: Namespace) -> int:
    plan = yard.plan(request)
    print_stale_tokens(plan.stale_tokens)
    if not emit(plan, args.output, key="chosen"):
        print_plan(plan)
        _print_rules(plan)
    return EXIT_REJECTED if plan.outcome == "reject" else EXIT_OK


def _print_rules(plan: Plan) -> None:
    if plan.policy is not None and plan.policy.values:
        from switchyard.cli.rules.policy import print_used_values

        print(paint("\nRules it would be admitted under:", "bold"))
        print_used_values(plan.policy.values)


def _print_accepted(_: CoreClient, job: JobHandle, args: Namespace, *, has_outputs: bool) -> int:
    if emit(created_job(job), args.output, key="id"):
        return EXIT_OK
    print(format_created(created_job(job)))
    steps = [("wait for it", "wait"), ("see its output", "logs"), ("see why there", "explain"), ("cancel it", "cancel")]
    if has_outputs:
        steps.insert(2, ("fetch its files", "fetch"))
    for index, (goal, verb) in enumerate(steps):
        branch = "└──" if index == len(steps) - 1 else "├──"
        print(f"{paint(branch, 'dim')} to {goal + ':':<16} yard {verb} {job.id}")
    return EXIT_OK


def _print_rejected(job: JobHandle, args: Namespace) -> int:
    """Print the verdicts of all clusters. The job is stored in the final state REJECTED."""
    if not emit(created_job(job), args.output, key="id"):
        print_explanation(job.explain())
    print_notice(f"error: Job {job.id} was REJECTED: {job.reason or 'no cluster could ever run it'}")
    print_notice(f"next: Ask for less, or for another cluster; `yard explain {job.id}` shows this again.")
    return EXIT_REJECTED


def _wait(yard: CoreClient, job: JobHandle, args: Namespace, *, has_outputs: bool) -> int:
    """Wait for the end, print the output, fetch the output files; return the exit code of the job."""
    started, since = time.monotonic(), time.time()
    try:
        final = wait_for_job(yard, job.id, timeout_s=args.timeout)
    except (KeyboardInterrupt, Unavailable):
        print_notice(f"Job {job.id} goes on. `yard wait {job.id}` waits again, `yard cancel {job.id}` ends it.")
        raise
    if final.state is State.REJECTED and not args.output:
        return _print_rejected(JobHandle(yard, final), args)
    if emit(final, args.output, key="id"):
        pass
    elif final.tasks:
        _print_tasks(yard, final)
    else:
        write_output(yard.output(job.id, stream="stdout"))
        write_output(yard.output(job.id, stream="stderr"), to_stderr=True)
    code = exit_code_of(final)
    if not has_outputs or final.state is State.REJECTED:
        return code
    left_s = None if args.timeout is None else max(0.0, args.timeout - (time.monotonic() - started))
    failure = fetch_after_wait(yard, final, args, since=since, timeout_s=left_s)
    return code or failure  # files of a failed job are fetched too, and it stays the job's own exit code


def _print_tasks(yard: CoreClient, job: Job) -> None:
    """Print how an array ended. Its output is not printed: every task has its own."""
    assert job.tasks is not None
    print(f"{paint(job.id, 'bold')} {format_tally(job.tasks)}")
    if job.tasks.failed:
        failed = [str(task.index) for task in yard.tasks(job.id, state=State.FAILED, limit=TASKS_SHOWN)]
        more = " …" if job.tasks.failed > TASKS_SHOWN else ""
        print_notice(
            f"Failed: {','.join(failed)}{more}. `yard logs {job.id} --task {failed[0]}`, `yard retry {job.id}`."
        )


def _parse_env(text: str) -> tuple[str, str]:
    """Parse K=V, or K alone for its value in this environment."""
    import os

    if "=" in text:
        return key_value(text)
    if text not in os.environ:
        raise ArgumentTypeError(f"{text!r} is not set here; write {text}=VALUE")
    return text, os.environ[text]


def _parse_batch(text: str) -> int:
    if positive_int(text) > BULK_JOBS_MAX:
        raise ArgumentTypeError(f"at most {BULK_JOBS_MAX}")
    return int(text)


def _parser() -> Parser:
    parser = Parser("yard submit", ABOUT, examples=EXAMPLES, usage="yard submit [OPTIONS] [-f FILE] [--] CMD [ARGS…]")
    parser.add_argument("command", nargs="...", metavar="CMD", help="the command and its arguments")
    _add_job(parser)
    _add_needs(parser)
    add_files(parser)
    add_native(parser)
    add_select(parser)
    _add_when(parser)
    _add_mode_options(parser)
    add_shared(parser, is_patient=True)
    return parser


def _add_job(parser: Parser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument("-f", "--file", metavar="FILE", help="a job file (YAML); - is stdin")
    group.add_argument("--name", metavar="TEXT", help="the job's name")
    group.add_argument("--project", metavar="NAME", help="the project (default: default)")
    group.add_argument("--domain", metavar="NAME", help="the domain (default: development)")
    group.add_argument("--priority", type=int, metavar="N", help="higher goes first (default 0)")
    add_labels(group)
    add_repeatable(
        group,
        "-e",
        "--env",
        type=_parse_env,
        metavar="K[=V]",
        help="environment variable; K alone: with its value here; repeatable",
    )
    group.add_argument("--cwd", metavar="DIR", help="working directory on the cluster (default: one of its own)")
    group.add_argument(
        "--image",
        metavar="IMAGE",
        help="container image, pinned if the server lists its registry; oci:PATH[:TAG]: an OCI layout on disk",
    )
    group.add_argument("--compatibility", metavar="FILE", help="what the image needs of a node: architecture, driver …")
    group.add_argument("--cluster", metavar="NAME", help="only this cluster")
    add_clusters(group)
    group.add_argument("--workflow", metavar="NAME", help="the workflow it belongs to; rules can be set per workflow")
    group.add_argument("--launch-plan", metavar="NAME", help="the launch plan of the workflow")
    group.add_argument("--pool", metavar="NAME", help="only clusters of this pool")
    group.add_argument("--cluster-label", metavar="NAME", help="only clusters with this label")
    group.add_argument("--queue-tag", action="append", metavar="TAG", help="a tag that its queue must have; repeatable")
    group.add_argument("--task-type", metavar="NAME", help="its task type, which plugin overrides match")
    add_repeatable(
        group,
        "--token",
        type=parse_token_units,
        metavar="POOL[=N]",
        help="hold a token of this pool from the job's assignment to its end; repeatable",
    )


def _add_needs(parser: Parser) -> None:
    group = parser.add_argument_group("what it needs (each task)")
    group.add_argument("-n", "--tasks", type=int, metavar="N", help="tasks in all (default 1)")
    group.add_argument("-N", "--nodes", type=int, metavar="N", help="spread over this many nodes (default: any)")
    group.add_argument("-c", "--cores", type=int_or_text, metavar="N", help="cores (default 1); 500m is half of one")
    group.add_argument("-g", "--gpus", type=int, metavar="N", help="GPUs")
    group.add_argument(
        "--gpu",
        type=parse_gpu_choices,
        metavar="TYPE[:N]",
        help="GPUs of this type: h100:2, a100-80gb; 'h100:2 or a100-80gb:4': in order of preference",
    )
    group.add_argument(
        "--gpu-type", type=parse_gpu_type, metavar="TYPE", help="the type of the GPUs, by any of its names"
    )
    group.add_argument("--gpu-memory", type=int_or_text, metavar="SIZE", help="memory of each GPU, at least: 80GB")
    group.add_argument(
        "--device",
        action="append",
        dest="devices",
        metavar="KIND[:TYPE][:N]",
        help="other countable resources: fpga:u280, tpu:v5e:4; repeatable",
    )
    group.add_argument("-m", "--memory", type=int_or_text, metavar="SIZE", help="memory, as in 8GiB")
    group.add_argument("--ephemeral-storage", type=int_or_text, metavar="SIZE", help="scratch space, as in 100GiB")
    add_repeatable(
        group,
        "--or",
        dest="alternatives",
        metavar="K=V,…",
        help="else the same with these changes: gpu=a100:4,memory=64GiB; repeatable, in order of preference",
    )
    add_repeatable(group, "--limit", type=key_value, metavar="K=V", help="the most it may use: cores=2, memory=16GiB")
    group.add_argument("-t", "--time-limit", metavar="T", help="end it after this time: 90, 15m, 1h30m, 2d or 1:30:00")
    group.add_argument(
        "--on-lost",
        choices=[policy.value for policy in OnLost],
        help="what to do if its cluster falls silent (default wait)",
    )
    group.add_argument("--lost-after", metavar="T", help="how long the cluster may be silent before that")
    group.add_argument("--match-engine", metavar="NAME", help="the engine that checks the fit (default: the server's)")


def _add_when(parser: Parser) -> None:
    group = parser.add_argument_group("arrays, dependencies and retries")
    group.add_argument("--array", metavar="SET", help="a task for each index: 0-999, 0-100:10, 1,3,7; %%50: 50 at once")
    group.add_argument(
        "--together",
        action="store_const",
        const=True,
        help="keep all tasks on one cluster (default: every eligible cluster takes tasks as it has room)",
    )
    group.add_argument(
        "--after", action="append", metavar="ID[:HOW]", help="start after that job has ended: ok, any or notok"
    )
    group.add_argument("--hold", action="store_const", const=True, help="hold the job until `yard release`")
    group.add_argument("--expires-after", metavar="T", help="fail if it has not started by then")
    group.add_argument(
        "--spill",
        action="append",
        metavar="RULE",
        help="if it is pending for long: 'after 10m try pool burst', 'reject after 24h'; repeatable",
    )
    add_retry(group)


def _add_mode_options(parser: Parser) -> None:
    group = parser.add_argument_group("what to do")
    group.add_argument(
        "--bulk", metavar="FILE", help="many jobs: a list (YAML, JSON), or a JSON object per line; - is stdin"
    )
    group.add_argument(
        "--each", action="store_true", help="with --bulk: take or refuse each job by itself, not all or none"
    )
    group.add_argument(
        "--batch",
        type=_parse_batch,
        default=1000,
        metavar="N",
        help="with --bulk: jobs per request (default 1000, at most 10000)",
    )
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--plan", action="store_true", help="show where it would go and why; submit nothing")
    mode.add_argument("-w", "--wait", action="store_true", help="wait for its end, print its output, exit as it did")
    group.add_argument("--timeout", type=duration_s, metavar="T", help="with --wait: at most this long (90, 15m, 2h)")
    group.add_argument("--key", metavar="KEY", help="idempotency key: submitting again with it gives the same job")


def add_native(parser: Parser) -> None:
    group = parser.add_argument_group("for clusters with a batch system")
    group.add_argument("--account", metavar="NAME", help="the account to charge")
    group.add_argument("--qos", metavar="NAME", help="quality of service, by the cluster's own name")
    group.add_argument("--reservation", metavar="NAME", help="run in this reservation")
    group.add_argument("--constraint", metavar="TEXT", help="features of its nodes, in the cluster's words: 'a&b'")
    group.add_argument("--license", action="append", metavar="NAME[:N]", help="a licence; repeatable")
    group.add_argument("--exclusive", action="store_true", default=None, help="whole nodes")
    group.add_argument(
        "--option", action="append", metavar="WORD", help="any other option that the site allows: --option=--nice=5"
    )


def native_of(args: Namespace) -> dict[str, Any]:
    """Return the native options that flags set."""
    options = {
        "account": args.account,
        "qos": args.qos,
        "reservation": args.reservation,
        "constraint": args.constraint,
        "licenses": args.license,
        "exclusive": args.exclusive,
        "options": args.option,
    }
    return {name: value for name, value in options.items() if value is not None}


_CAUSES = frozenset(Cause)


def retry_of(args: Namespace) -> dict[str, Any]:
    """Return the retry policy that flags set."""
    causes: list[str] = []
    rules: list[str] = []
    for text in args.retry_on:
        words = text.split(",")
        if all(word in _CAUSES for word in words):
            causes += words
        else:
            rules.append(text)
    retry = {
        "limit": args.retry,
        "causes": causes or None,
        "exit_codes": args.retry_exit_codes,
        "backoff": args.backoff,
        "backoff_max": args.backoff_max,
        "on": parse_rules(rules) or None,
    }
    return {name: value for name, value in retry.items() if value is not None}


def add_retry(group: Parser | argparse._ArgumentGroup) -> None:
    group.add_argument("--retry", type=int, metavar="N", help="at most this many retries")
    add_repeatable(
        group,
        "--retry-on",
        metavar="CAUSE|RULE",
        help="after these causes: job, cluster or lost (default all three); or a rule for a kind of failure, with its "
        "own number of retries: out-of-memory:2,memory=x2,memory-max=256GiB or node-lost:5,elsewhere; repeatable",
    )
    group.add_argument(
        "--retry-exit-codes", metavar="CODES", help="retry the job's own failures only with these: 1,75,100-120"
    )
    group.add_argument("--backoff", metavar="T", help="pause before the first retry; it doubles (default 10s)")
    group.add_argument("--backoff-max", metavar="T", help="the longest pause (default 10m)")
