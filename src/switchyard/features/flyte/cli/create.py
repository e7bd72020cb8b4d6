"""`yard create execution`: run a launch plan or a task of Flyte's from a file of flytectl's, or run one again."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any

from switchyard.cli.terminal.connect import SUBMIT_RETRY_S, connect
from switchyard.cli.terminal.option_file import read_option_file
from switchyard.cli.terminal.output import emit, paint_state, print_notice, printable
from switchyard.cli.terminal.parser import Parser, Verb, key_value, positive_int, run_noun
from switchyard.errors import EXIT_ERROR, EXIT_OK, BadRequest, Malformed
from switchyard.features.flyte.cli.flyte_view import is_final
from switchyard.features.flyte.model.workflow_execution import CreatedExecution, WorkflowExecution, is_execution_name
from switchyard.features.flyte.sdk.execution_calls import DOMAIN, PROJECT, WorkflowClient
from switchyard.model.wire.decode import load_yaml

ABOUT = """\
Create what Flyte's clients create. `yard create execution` takes the files that `flytectl get launchplan --execFile`
and `flytectl get task --execFile` write, and flytectl's options."""
POLL_S = 0.5  # with --wait
# The option, flytectl's spelling, the field of the request, and what it is.
TEXTS = (
    ("--cluster-pool", "--clusterPool", "pool", "POOL", "bounds where all nodes run"),
    ("--cluster-label", "--targetExecutionCluster", "label", "LABEL", "narrows where all nodes run"),
    ("--version", "--version", "version", "V", "of the launch plan or task (default: the active one, else the newest)"),
    ("--target-project", "--targetProject", "target_project", "P", "where the execution is made, if elsewhere"),
    ("--target-domain", "--targetDomain", "target_domain", "D", "where the execution is made, if elsewhere"),
    ("--service-account", "--kubeServiceAcct", "service_account", "NAME", "of Kubernetes, that its pods run as"),
    ("--iam-role", "--iamRoleARN", "iam_role", "ARN", "that its tasks assume"),
)


def main(argv: list[str]) -> int:
    return run_noun("create", ABOUT, VERBS, argv)


def _execution(args: Namespace) -> int:
    request = _request(args)
    if args.dry_run:
        import yaml  # slow to import

        print(yaml.safe_dump(request, sort_keys=False, allow_unicode=True, width=1000), end="")
        print_notice("Nothing was created (--dryRun).")
        return EXIT_OK
    with connect(args, WorkflowClient, retry_s=SUBMIT_RETRY_S) as yard:
        created = yard.create_execution(**request)
        if not args.wait:
            if not emit(created, args.output):
                _tell(created)
            return EXIT_OK
        print_notice(f"Execution {created.project}:{created.domain}:{created.name}")
        over = _wait(yard, created)
    if not emit(over, args.output):
        print(f"{printable(over.name)}  {paint_state(over.phase)}" + printable(_place(over)))
    return EXIT_OK if over.phase == "SUCCEEDED" else EXIT_ERROR


def _tell(created: CreatedExecution) -> None:
    name = f"{created.project}:{created.domain}:{created.name}"
    print(printable(f"Execution {name}"))
    print_notice(f"`yard flyte show {name}` shows it.")


def _place(execution: WorkflowExecution) -> str:
    return f" on {', '.join(execution.clusters)}" if execution.clusters else ""


def _wait(yard: WorkflowClient, created: CreatedExecution) -> WorkflowExecution:
    while True:
        found = yard.execution(created.name, project=created.project, domain=created.domain).execution
        if is_final(found):
            return found
        time.sleep(POLL_S)


def _request(args: Namespace) -> dict[str, Any]:
    """The fields of a LaunchRequest: those of the file, with the options of the command line laid over them."""
    sources = [word for word in ("exec_file", "relaunch", "recover") if getattr(args, word) is not None]
    if len(sources) != 1:
        raise BadRequest(
            "Give one of --execFile, --relaunch and --recover.",
            next_step="`flytectl get launchplan NAME --execFile f` writes a file: `workflow`, `version`, `inputs`.",
        )
    project, domain = args.project or PROJECT, args.domain or DOMAIN
    request: dict[str, Any] = {"project": project, "domain": domain}
    if args.exec_file is not None:
        file = read_exec_file(args.exec_file)
        request |= {"entity_project": project, "entity_domain": domain, **file}
    elif args.version or args.target_project or args.target_domain:
        raise BadRequest("An execution is run again in its own project, domain and version.")
    else:
        request[sources[0]] = getattr(args, sources[0])
    given = {field: getattr(args, field) for _, _, field, _, _ in TEXTS if getattr(args, field) is not None}
    for word in ("project", "domain"):
        if (target := given.pop(f"target_{word}", None)) is not None:
            request[word] = target
    request |= given
    for name in filter(None, (args.name, args.relaunch, args.recover)):
        if not is_execution_name(name):
            raise BadRequest(
                f"{name[:200]!r} is no name of an execution.",
                next_step="A name is a letter, then letters, digits and -, at most 63 characters.",
            )
    if args.name is not None:
        request["name"] = args.name
    if args.overwrite_cache:
        request["overwrite_cache"] = True
    if args.max_parallelism is not None:
        request["max_parallelism"] = args.max_parallelism
    if args.annotation:
        request["annotations"] = dict(args.annotation)
    return request


def _add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="of the execution; the same again creates no second one"
    )
    parser.add_argument("-p", "--project", metavar="P", help=f"of the launch plan or task (default {PROJECT})")
    parser.add_argument("-d", "--domain", metavar="D", help=f"of the launch plan or task (default {DOMAIN})")
    parser.add_argument(
        "--exec-file", "--execFile", dest="exec_file", metavar="FILE", help="what to launch, with which inputs"
    )
    parser.add_argument("--relaunch", metavar="NAME", help="run this execution again with the same inputs")
    parser.add_argument("--recover", metavar="NAME", help="run the nodes of this execution that have not succeeded")
    for option, spelling, field, metavar, about in TEXTS:
        parser.add_argument(*dict.fromkeys((option, spelling)), dest=field, metavar=metavar, help=about)
    parser.add_argument(
        "--overwrite-cache",
        "--overwriteCache",
        dest="overwrite_cache",
        action="store_true",
        help="take no cached outputs",
    )
    parser.add_argument(
        "--max-parallelism",
        "--maxParallelism",
        dest="max_parallelism",
        type=positive_int,
        metavar="N",
        help="at most so many task nodes run at once (default: no bound)",
    )
    parser.add_argument(
        "--annotation", type=key_value, action="append", default=[], metavar="K=V", help="an annotation; repeatable"
    )
    parser.add_argument("--dry-run", "--dryRun", dest="dry_run", action="store_true", help="only show the request")
    parser.add_argument("--wait", action="store_true", help="wait until it is over; exit 0 if it has succeeded")


VERBS = (
    Verb(
        "execution",
        "Create an execution of a launch plan or task, or run one again",
        _execution,
        _add_arguments,
        examples="  yard create execution --execFile twice.yaml --clusterPool lab\n"
        "  yard create execution -p vision -d production --execFile train.yaml --wait nightly-7\n"
        "  yard create execution --relaunch first-run --clusterPool big      the same inputs, elsewhere\n"
        "  yard create execution --recover first-run                         only what has not succeeded",
    ),
)


FILE_BYTES_MAX = 4 * 2**20  # the server's limit for one execution
# flytectl's word for each field of a request.
WORDS = {
    "workflow": "launch_plan",
    "task": "task",
    "version": "version",
    "targetProject": "project",
    "targetDomain": "domain",
    "clusterPool": "pool",
    "targetExecutionCluster": "label",
    "kubeServiceAcct": "service_account",
    "iamRoleARN": "iam_role",
    "overwriteCache": "overwrite_cache",
    "inputs": "inputs",
    "envs": "envs",
}
MAPS = ("inputs", "envs")
# Keys that flytectl has for its own options. They mean nothing in a file.
OPTIONS = ("execFile", "relaunch", "recover", "dryRun")


def read_exec_file(name: str) -> dict[str, Any]:
    """The fields of a request, from a file of flytectl's.

    Unknown keys and values of a wrong form are refused; empty ones are left out.
    """
    fields = load_yaml(read_option_file(name, "--execFile", bytes_max=FILE_BYTES_MAX), where=name)
    if not isinstance(fields, dict) or not fields:
        raise Malformed(
            f"{name}: not a map of fields.",
            next_step="A file has `workflow` or `task`, `version` and `inputs`; `flytectl get launchplan` writes one.",
        )
    unknown = [str(key) for key in fields if key not in WORDS and key not in OPTIONS]
    if unknown:
        raise Malformed(f"{name}: {'; '.join(map(_unknown, unknown[:10]))}.", next_step=f"Known: {', '.join(WORDS)}.")
    request: dict[str, Any] = {}
    for word, value in fields.items():
        if word in WORDS and value not in (None, "", {}):
            request[WORDS[word]] = _checked(name, word, value)
    given = [word for word in ("workflow", "task") if WORDS[word] in request]
    if len(given) != 1:
        problem = "names both a workflow and a task" if given else "names neither a workflow nor a task"
        raise Malformed(f"{name}: {problem}.", next_step="Give `workflow: NAME` of a launch plan, or `task: NAME`.")
    return request


def _unknown(key: str) -> str:
    close = get_close_matches(key, WORDS, n=1)
    return f"unknown key {key[:80]!r}" + (f" (did you mean {close[0]}?)" if close else "")


def _checked(name: str, word: str, value: Any) -> Any:
    if word in MAPS:
        if not isinstance(value, dict):
            raise Malformed(
                f"{name}: {word} is not a map.", next_step=f"Write `{word}:` and each name on a line below."
            )
        plain = {str(key): _plain(item) for key, item in value.items()}
        wrong = [key for key, item in plain.items() if word == "envs" and not isinstance(item, str)]
        if wrong:
            raise Malformed(f"{name}: envs.{wrong[0][:80]} is not a text.", next_step="Put quotes around it.")
        return plain
    if word == "overwriteCache":
        if not isinstance(value, bool):
            raise Malformed(f"{name}: {word} is not true or false.")
    elif not isinstance(value, str):
        raise Malformed(f"{name}: {word} is not a text.", next_step="Put quotes around it.")
    return value


def _plain(value: Any) -> Any:
    """A value of YAML as JSON has it: times as text, names of maps as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime | date) else value
