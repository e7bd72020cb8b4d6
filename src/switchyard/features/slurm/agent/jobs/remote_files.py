"""Folders and files of jobs on the machine that the commands reach by ssh."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from shlex import quote

from switchyard.agent.backends import OutputPiece
from switchyard.agent.backends.shared.shared_files import ScriptNote
from switchyard.agent.site.accounts import LocalAccount
from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner

REMOTE_READ_PAUSE_S = 5.0  # over ssh, until a stream without new output is read again
STREAMS_CACHED_MAX = 10_000
FOLDERS_MAX = 100  # made in one command over ssh, whose length is bounded
NOTES_MAX = 500  # read in one command over ssh


class RemoteFiles:
    """Files on the machine that the commands reach by ssh."""

    def __init__(self, root: str, caller: CommandRunner) -> None:
        self._root = root
        self._caller = caller
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # stream → time and size of the last read

    def folder(self, name: str) -> str:
        return f"{self._root}/{name}"

    def make(self, name: str, account: LocalAccount | None, places: Sequence[str] = ()) -> None:
        assert account is None, "the site's file is checked for it"
        folder = self.folder(name)
        folders = [f"{folder}/{place}" for place in places[:FOLDERS_MAX]]
        self._caller.ask(["mkdir", "-p", "-m", "700", "--", folder, *folders])

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece:
        key, now = (name, file), time.monotonic()
        with self._lock:
            asked_at, total = self._seen.get(key, (-REMOTE_READ_PAUSE_S, 0))
            if offset >= total and now - asked_at < REMOTE_READ_PAUSE_S:
                return OutputPiece(b"", total)
        path = quote(f"{self._root}/{name}/{file}")
        text = f"[ -f {path} ] || exit 3; wc -c <{path}; tail -c +{offset + 1} {path} | head -c {size}"
        result = self._caller.call(["sh", "-c", text])
        if result.code not in (0, 3):
            raise Unavailable(f"The output of {name} cannot be read: {result.err.strip()[:200]}")
        first, _, data = result.out.partition(b"\n") if result.code == 0 else (b"0", b"", b"")
        total = int(first) if first.strip().isdigit() else 0
        with self._lock:
            if len(self._seen) > STREAMS_CACHED_MAX:
                self._seen.clear()
            self._seen[key] = (now, total)
        return OutputPiece(data, total)

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        asked = list(wanted)
        notes: dict[tuple[str, str], ScriptNote] = {}
        for first in range(0, len(asked), NOTES_MAX):
            notes |= self._notes(asked[first : first + NOTES_MAX])
        return notes

    def _notes(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        words = " ".join(quote(f"{name}/{file}") for name, file in asked)
        show = 'printf "%s %s %s\\n" "$f" "$(stat -c %Y "$f")" "$(head -n 1 "$f")"'
        text = f'cd {quote(self._root)} && for f in {words}; do [ -f "$f" ] && {show}; done; true'
        notes = {}
        for line in self._caller.ask(["sh", "-c", text]).splitlines():
            path, _, remainder = line.partition(" ")
            at, _, note = remainder.partition(" ")
            name, _, file = path.partition("/")
            if at.isdigit() and (name, file) in asked:
                notes[name, file] = ScriptNote(note.strip(), int(at))
        return notes

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        asked = list(wanted)
        claimed: set[tuple[str, str]] = set()
        for first in range(0, len(asked), NOTES_MAX):
            batch = {f"{name}/{file}": (name, file) for name, file in asked[first : first + NOTES_MAX]}
            write = f'{{ printf "%s\\n" {quote(text)} >"$f"; }} 2>/dev/null || [ ! -e "$f" ] && echo "$f"'
            loop = f"set -C; for f in {' '.join(map(quote, batch))}; do {write}; done; true"
            answer = self._caller.ask(["sh", "-c", f"cd {quote(self._root)} && {{ {loop}; }}"])
            claimed |= {batch[path] for path in answer.splitlines() if path in batch}
        return claimed

    def remove(self, name: str) -> None:
        self._caller.call(["rm", "-rf", "--", self.folder(name)])
