"""Names of environment variables that a shell takes, and how others come through a shell. Pure.

Linux and Kubernetes take names such as `A-B` and `a.b`. A POSIX shell cannot set such a variable, and dash and BusyBox
do not even pass it on to the programs that they start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def is_shell_name(name: str) -> bool:
    return bool(SHELL_NAME.match(name))


def copied_variables(variables: Mapping[str, str], *, prefix: str) -> tuple[dict[str, str], str]:
    """For a command that a shell starts: copies of the variables that the shell drops, and words before the command.

    Add the copies to the environment, and write `exec WORDS "$@"` in the shell's text. The words are empty if all names
    are plain. The values are in the environment, and not in the text. `prefix`: of the names of copies; each shell has
    its own, since a command may go through several.
    """
    odd = [name for name in variables if not is_shell_name(name)]
    copies = {name: f"{prefix}{number}" for number, name in enumerate(odd)}
    if not copies:
        return {}, ""
    removed = " ".join(f"-u {copy}" for copy in copies.values())
    given = " ".join(f'{quote(name)}="${copy}"' for name, copy in copies.items())
    return {copy: variables[name] for name, copy in copies.items()}, f"env {removed} -- {given} "
