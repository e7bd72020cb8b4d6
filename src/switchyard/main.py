"""The `yard` command: imports and runs one subcommand. It knows no options of subcommands."""

from __future__ import annotations

import gc
import os
import sys

from switchyard.commands import all_commands, find_command, import_command
from switchyard.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, BadRequest, YardError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: what `yes | head` gives, so `pipefail` scripts see the usual number

COMPLETE_COMMAND = "__complete"  # what the shells' completion scripts call

HELP_FOOTER = """\
Options come after the command. `yard COMMAND --help` has options and examples.

Environment: YARD_URL (the server), YARD_TOKEN, YARD_CONFIG (default ~/.config/switchyard/config.yaml), NO_COLOR,
             YARD_INSECURE_HTTP=1 (send the token over http:// to another machine).
Exit codes:  0 ok · 1 error · 2 usage · 3 not found · 4 denied · 5 rejected · 6 conflict · 7 timed out
             69 the server is away · 130 interrupted; `yard wait` and `yard submit --wait` exit as the job did
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Print an error as two lines: what happened, and what to do."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for ✔
    words = sys.argv[1:] if argv is None else argv
    if not any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        return _main(words)
    from switchyard.cli.terminal.terminal import guarded_terminal

    with guarded_terminal():
        return _main(words)


def _main(words: list[str]) -> int:
    try:
        code = _run(words)
        sys.stdout.flush()  # raises BrokenPipeError here, where it is caught
    except YardError as exc:
        _print_error(exc)
        return exc.exit_code
    except RecursionError:
        _print_error(
            YardError(
                "A value is nested too deeply for this program.",
                next_step="Show jobs one by one to find it. A server of this version refuses such values.",
            )
        )
        return EXIT_ERROR
    except UnicodeEncodeError:
        if not (odd := [word for word in words if not word.isascii() and not _is_utf8(word)]):
            raise
        _print_error(
            BadRequest(
                f"{ascii(odd[0])[:80]} has bytes that are no UTF-8, which cannot be sent.",
                next_step="Write the word in UTF-8.",
            )
        )
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except SystemExit as exc:  # argparse, after --help
        return exc.code if isinstance(exc.code, int) else EXIT_OK if exc.code is None else EXIT_USAGE
    return code


def _is_utf8(word: str) -> bool:
    return word.encode(errors="ignore") == word.encode(errors="surrogatepass")


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
        from switchyard.cli.terminal.completion import complete

        return complete(argv[1:])
    return _command(argv)


def _command(argv: list[str]) -> int:
    place = find_command(argv)
    if place is None:
        raise _unknown(argv[0])
    gc.disable()  # imports make no garbage; collecting takes 10 % of a server's start
    try:
        command = import_command(place)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("switchyard."):
            raise
        raise YardError(
            f"`yard {argv[0]}` needs the package {exc.name}, which is not installed.",
            next_step="Install the server's parts too: pip install 'switchyard[server]'.",
        ) from exc
    finally:
        gc.freeze()
        gc.enable()
    return command(argv[1:])


def _unknown(name: str) -> BadRequest:
    from difflib import get_close_matches

    if name.startswith("-"):
        return BadRequest(
            f"{name} is not an option of yard itself.",
            next_step=f"Options come after the command, as in `yard ls {name}`; `yard --help` lists the commands.",
        )
    known = [command for commands in all_commands().values() for command, _, _ in commands]
    close = get_close_matches(name, known, n=1)
    guess = f"Did you mean `yard {close[0]}`? " if close else ""
    return BadRequest(f"There is no command {name!r}.", next_step=f"{guess}`yard --help` lists them all.")


def _help() -> str:
    lines = ["usage: yard COMMAND [OPTIONS]", "", "One place to submit jobs to many clusters.", ""]
    for group, commands in all_commands().items():
        lines += [group, *(f"  {command:<17} {summary}" for command, _, summary in commands), ""]
    return "\n".join(lines) + "\n" + HELP_FOOTER


def _print_error(exc: YardError) -> None:
    from switchyard.model.rules.names import printable_line

    sys.stdout.flush()
    for word, text in (("error", exc.detail), ("next", exc.next_step)):
        if text:
            print(f"{word}: " + "\n".join(map(printable_line, text.split("\n"))), file=sys.stderr)


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's flush at exit does not fail on the broken pipe."""
    from contextlib import suppress

    with suppress(OSError, ValueError):  # stdout may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
