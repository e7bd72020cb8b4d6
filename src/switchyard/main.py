"""The `yard` command: finds the subcommand and imports only that one. It knows no command's options."""

from __future__ import annotations

import gc
import os
import sys

from switchyard.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, BadRequest, YardError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: what `yes | head` gives, so `pipefail` scripts see the usual number

# Per group: command, where its main(argv) -> exit code lives, one line.
COMMAND_GROUPS: dict[str, list[tuple[str, str, str]]] = {
    "Jobs": [
        (
            "submit",
            "switchyard.cli.submit",
            "Submit a job, an array, or thousands; --plan only shows where it would go",
        ),
        ("ls", "switchyard.cli.ls", "List jobs"),
        ("show", "switchyard.cli.show", "Show one job in full"),
        ("wait", "switchyard.cli.wait", "Wait for jobs to end; exits as the job did"),
        ("watch", "switchyard.cli.watch", "Watch jobs change, as a live table or line by line"),
        ("logs", "switchyard.cli.logs", "Print what a job wrote; -f follows it as it writes"),
        ("quote", "switchyard.cli.quote", "Ask the clusters when a job would begin there, and for how much"),
        ("explain", "switchyard.cli.explain", "Say why a job is where it is, or what an error code means"),
        ("events", "switchyard.cli.events", "Show what happened to a job, or to all"),
        ("stats", "switchyard.cli.stats", "Draw where jobs went, as bars"),
        ("tasks", "switchyard.cli.tasks", "List the tasks of an array"),
        ("cancel", "switchyard.cli.cancel", "Cancel jobs, by id or all that a selector means"),
        ("retry", "switchyard.cli.retry", "Submit jobs that are over once more"),
        ("hold", "switchyard.cli.hold", "Keep jobs from being handed over"),
        ("release", "switchyard.cli.release", "Let held jobs go"),
        ("priority", "switchyard.cli.priority", "Give jobs another priority"),
    ],
    "Clusters": [
        ("cluster", "switchyard.cli.cluster", "List, invite, describe, cordon and remove clusters; ask what fits"),
        ("pool", "switchyard.cli.pool", "List, set and remove pools, which bound where jobs may run"),
        ("queue", "switchyard.cli.queue", "List, set and remove queues: limits, priorities, fair share"),
        ("cluster-label", "switchyard.cli.cluster_label", "List, set and remove labels, which narrow where jobs go"),
        (
            "agent",
            "switchyard.agent.command",
            "Run an agent beside a cluster; also: ls, show, pause, resume, rotate, rm, doctor",
        ),
    ],
    "Rules": [
        ("get", "switchyard.cli.attributes_get", "Show an attribute that is set at a scope, or all of a kind"),
        ("update", "switchyard.cli.attributes_update", "Set an attribute at a scope, from a file"),
        ("delete", "switchyard.cli.attributes_delete", "Remove an attribute that is set at a scope"),
        ("history", "switchyard.cli.attributes_history", "Show who changed an attribute, when, from what to what"),
        ("explain-policy", "switchyard.cli.policy", "Show every rule that holds somewhere, and the level that gave it"),
        (
            "token-pool",
            "switchyard.cli.token_pool",
            "List, register and bound token pools: licences and services that jobs share",
        ),
        (
            "cluster-resources",
            "switchyard.cli.cluster_resources",
            "Fill the templates of a project's namespace, or show what would change",
        ),
    ],
    "Access": [
        ("login", "switchyard.cli.login", "Store a token for a server"),
        ("logout", "switchyard.cli.logout", "Forget the token for a server"),
        ("whoami", "switchyard.cli.whoami", "Show who the server takes you for"),
        ("user", "switchyard.cli.user", "Add, list, edit and remove users"),
        ("token", "switchyard.cli.token", "Create, list and revoke tokens"),
        ("grant", "switchyard.cli.grant", "Say who may view, submit, operate or administer what"),
        ("project", "switchyard.cli.project", "List, create, change and archive projects"),
        ("audit", "switchyard.cli.audit", "Show who changed what"),
    ],
    "Server": [
        ("server", "switchyard.server.command", "Run a server"),
        ("db", "switchyard.server.db_command", "Upgrade, check, back up and restore the database"),
        ("demo", "switchyard.cli.demo", "Start a server and three clusters here, and run a dozen jobs"),
        ("completion", "switchyard.cli.completion", "Print the completion script of bash, zsh or fish"),
        ("schema", "switchyard.cli.schema", "Print the JSON Schema of a job file, for editors"),
        ("version", "switchyard.cli.version", "Show the versions of this program and of the server"),
    ],
}
# These verbs of `yard agent` ask the server; all else about an agent is the agent's own program.
AGENT_VERBS = dict.fromkeys(("ls", "show", "pause", "resume", "rotate", "rm"), "switchyard.cli.agent")

COMPLETE_COMMAND = "__complete"  # what the shells' completion scripts call

HELP_FOOTER = """\
Options come after the command. `yard COMMAND --help` has options and examples.

Environment: YARD_URL (the server), YARD_TOKEN, YARD_CONFIG (default ~/.config/switchyard/config.yaml), NO_COLOR,
             YARD_INSECURE_HTTP=1 (send the token over http:// to another machine).
Exit codes:  0 ok · 1 error · 2 usage · 3 not found · 4 denied · 5 rejected · 6 conflict · 7 timed out
             130 interrupted; `yard wait` and `yard submit --wait` exit as the job did
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and give its exit code. Every failure ends here as two lines: what happened, what to do."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show ✔ is no reason to fail
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # a reader that went away shows here, while it can still be caught
    except YardError as exc:
        _print_error(exc)
        return exc.exit_code
    except RecursionError:
        _print_error(
            YardError(
                "A value is nested too deeply for this program.",
                next_step="Name jobs one by one to find it; a server of this version takes none so deep.",
            )
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except SystemExit as exc:  # argparse, after --help
        return exc.code if isinstance(exc.code, int) else EXIT_OK if exc.code is None else EXIT_USAGE
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help") or argv == ["help"]:
        print(_help(), end="")
        return EXIT_OK if argv else EXIT_USAGE
    if argv[0] in ("-V", "--version"):
        from switchyard import __version__

        print(f"yard {__version__}")
        return EXIT_OK
    if argv[0] == "help":
        argv = [*argv[1:], "--help"]
    if argv[0] == COMPLETE_COMMAND:
        from switchyard.cli.completion_words import main as complete

        return complete(argv[1:])
    return _command(argv[0], argv[1:])


def _command(name: str, argv: list[str]) -> int:
    from importlib import import_module

    paths = {command: path for commands in COMMAND_GROUPS.values() for command, path, _ in commands}
    if name not in paths:
        raise _unknown(name, list(paths))
    path = AGENT_VERBS.get(argv[0], paths[name]) if name == "agent" and argv else paths[name]
    gc.disable()  # what an import makes is never garbage, and looking for some takes a tenth of a server's start
    try:
        module = import_module(path)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("switchyard."):
            raise
        raise YardError(
            f"`yard {name}` needs the package {exc.name}, which is not installed.",
            next_step="Install the server's parts too: pip install 'switchyard[server]'.",
        ) from exc
    finally:
        gc.freeze()
        gc.enable()
    code: int = module.main(argv)
    return code


def _unknown(name: str, known: list[str]) -> BadRequest:
    from difflib import get_close_matches

    if name.startswith("-"):
        return BadRequest(
            f"{name} is not an option of yard itself.",
            next_step=f"Options come after the command, as in `yard ls {name}`; `yard --help` lists the commands.",
        )
    close = get_close_matches(name, known, n=1)
    guess = f"Did you mean `yard {close[0]}`? " if close else ""
    return BadRequest(f"There is no command {name!r}.", next_step=f"{guess}`yard --help` lists them all.")


def _help() -> str:
    lines = ["usage: yard COMMAND [OPTIONS]", "", "One place to submit jobs to many clusters.", ""]
    for group, commands in COMMAND_GROUPS.items():
        lines += [group, *(f"  {command:<17} {summary}" for command, _, summary in commands), ""]
    return "\n".join(lines) + "\n" + HELP_FOOTER


def _print_error(exc: YardError) -> None:
    sys.stdout.flush()
    print(f"error: {exc.detail}", file=sys.stderr)
    if exc.next_step:
        print(f"next: {exc.next_step}", file=sys.stderr)


def _silence_stdout() -> None:
    """Point stdout away, so that Python's own flush at exit meets no broken pipe."""
    from contextlib import suppress

    with suppress(OSError, ValueError):  # stdout may be no real file: then nothing is flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
