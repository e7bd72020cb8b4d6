"""Which files of a folder are not sent: those that `.yardignore` names, as in gitignore, and parts of a cut fetch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.errors import BadRequest
from switchyard.sdk.files.file_names import show_name
from switchyard.sdk.files.target import is_part_name

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = b".yardignore"
IGNORE_BYTES_MAX = 2**20
FOLDER_MARK = "ps_d"  # pathspec's name of the slash after a folder that a line means
ALWAYS_IGNORED = frozenset({b".git"})  # unless a line `!.git` asks for it: it is large, and it holds old content


class IgnoreRules:
    """The ignore files from the scanned folder down to this one. A deeper file wins, and in a file the last line."""

    def __init__(self, levels: tuple[tuple[bytes, GitIgnoreSpec], ...] = ()) -> None:
        self._levels = levels

    def deeper(self, path: bytes) -> IgnoreRules:
        """Return the rules of this folder, which has an ignore file."""
        return IgnoreRules(((path, _read_rules(path + b"/" + IGNORE_FILE)), *self._levels))

    def ignores(self, path: bytes, name: bytes, *, is_folder: bool) -> bool:
        """Whether the file at this path, with this last part, stays here. Not asked below an ignored folder."""
        for folder, rules in self._levels:
            inner = os.fsdecode(path[len(folder) + 1 :]) + ("/" if is_folder else "")
            verdict = _last_verdict(rules, inner)
            if verdict is not None:
                return verdict
        return name in ALWAYS_IGNORED or is_part_name(name)


def _last_verdict(rules: GitIgnoreSpec, path: str) -> bool | None:
    """Whether the last line that means this path ignores it, as git asks at each level. None: no line means it.

    `check_file` of pathspec judges a path by its folders too. Here these were judged before, so a match of a folder
    above does not count.
    """
    for pattern in reversed(rules.patterns):
        if pattern.include is None or pattern.regex is None:
            continue
        for match in pattern.regex.finditer(path):
            if match.groupdict().get(FOLDER_MARK) is None or match.end(FOLDER_MARK) == len(path):
                return pattern.include
    return None


def _read_rules(file: bytes) -> GitIgnoreSpec:
    try:
        with Path(os.fsdecode(file)).open("rb") as opened:
            data = opened.read(IGNORE_BYTES_MAX + 1)
    except OSError as exc:
        raise BadRequest(
            f"Cannot read {show_name(file)}: {exc.strerror}.", next_step="Without it, files would be sent by mistake."
        ) from exc
    if len(data) > IGNORE_BYTES_MAX:
        raise BadRequest(f"{show_name(file)} has more than {IGNORE_BYTES_MAX} bytes.")
    from pathspec import GitIgnoreSpec  # costs 30 ms, so only where there is such a file

    try:
        return GitIgnoreSpec.from_lines(os.fsdecode(data).splitlines())
    except ValueError as exc:
        raise BadRequest(f"{show_name(file)}: {exc}", next_step="The lines are those of a .gitignore.") from exc
