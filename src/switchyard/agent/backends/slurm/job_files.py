"""The files that a job's script writes: on a file system that agent and nodes share, or read over ssh."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Protocol

from switchyard.agent.accounts import LocalAccount, open_untrusted, share_folder
from switchyard.agent.backends import OutputPiece
from switchyard.agent.backends.slurm.command_runner import CommandRunner
from switchyard.errors import Unavailable

NOTE_BYTES_MAX = 4096
REMOTE_READ_PAUSE_S = 5.0  # over ssh, a stream that had nothing new is not asked for again before that
STREAMS_CACHED_MAX = 10_000
FOLDERS_MAX = 100  # made over ssh at once: more words than that may be too long for a line
NOTES_MAX = 500  # read over ssh at once, likewise
ABSENT_ERRORS = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class ScriptNote:
    """A word or two that a script left, and when."""

    text: str
    at_s: int


class JobFiles(Protocol):
    def folder(self, name: str) -> str: ...

    def make(self, name: str, account: LocalAccount | None, places: Sequence[str] = ()) -> None:
        """A folder for this account to write in; none: our own. Scripts make these places in it if we do not."""

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece: ...

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        """Of these (name, file), the ones that are there; empty, if we may not read it. Raises: nobody can tell now."""

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        """Write `text` into these (name, file), each only where it is not there; all but those that are there."""

    def remove(self, name: str) -> None: ...


class SharedFiles:
    """On a file system that the agent sees, too."""

    def __init__(self, root: Path, *, is_for_others: bool = False) -> None:
        self._root = root
        try:
            new = [each for each in (*reversed(root.parents), root) if not each.exists()]
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in new if is_for_others else ():
                each.chmod(0o711)  # whatever our umask is: jobs of others pass through to their own folders
        except OSError as exc:
            raise Unavailable(
                f"The folder {root} cannot be made: {exc.strerror}.",
                next_step="Name one as `folder` that the agent may write in, and that the nodes see.",
            ) from exc

    def folder(self, name: str) -> str:
        return str(self._root / name)

    def make(self, name: str, account: LocalAccount | None, places: Sequence[str] = ()) -> None:
        path = self._root / name
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            if account is None:  # in a folder of theirs, a name could be a link to somewhere else
                for place in places:
                    (path / place).mkdir(exist_ok=True)
        except OSError as exc:
            raise Unavailable(f"The folder {path} cannot be made: {exc.strerror}.") from exc
        if account is not None:
            share_folder(path, account)

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece:
        path = f"{self._root}/{name}/{file}"
        try:
            # Of a thousand running tasks most have written nothing new: those need not be opened.
            if (found := os.lstat(path)).st_size <= offset or not size:
                return OutputPiece(b"", found.st_size if stat.S_ISREG(found.st_mode) else 0)
            with open_untrusted(Path(path)) as stream:
                stream.seek(offset)
                return OutputPiece(stream.read(size), os.fstat(stream.fileno()).st_size)
        except OSError:  # not there yet, or the job put something else into its place
            return OutputPiece(b"", 0)

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        found = {}
        for name, file in wanted:
            path = self._root / name / file
            try:
                with open_untrusted(path) as stream:
                    text = stream.read(NOTE_BYTES_MAX).decode(errors="replace").strip()
                    found[name, file] = ScriptNote(text, int(os.fstat(stream.fileno()).st_mtime))
            except ABSENT_ERRORS:
                continue
            except PermissionError:  # we made the folder for us to read: the job has been there
                found[name, file] = ScriptNote("", int(time.time()))
            except OSError as exc:
                if exc.errno != errno.ELOOP:  # a link, put into its place by the job
                    raise Unavailable(f"{path} cannot be read: {exc.strerror}.") from exc
                found[name, file] = ScriptNote("", int(time.time()))
        return found

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        claimed = set()
        for name, file in wanted:
            try:
                with (self._root / name / file).open("x") as stream:
                    stream.write(f"{text}\n")
            except FileExistsError:
                continue
            except OSError:
                pass  # no folder, or no room in it: there is nothing that we could do
            claimed.add((name, file))
        return claimed

    def remove(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)


class RemoteFiles:
    """At the other end of the caller's ssh."""

    def __init__(self, root: str, caller: CommandRunner) -> None:
        self._root = root
        self._caller = caller
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # when a stream was asked for last, and its size then

    def folder(self, name: str) -> str:
        return f"{self._root}/{name}"

    def make(self, name: str, account: LocalAccount | None, places: Sequence[str] = ()) -> None:
        assert account is None, "the site's file is checked for it"
        folder = self.folder(name)
        made = [f"{folder}/{place}" for place in places[:FOLDERS_MAX]]
        self._caller.ask(["mkdir", "-p", "-m", "700", "--", folder, *made])

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece:
        key, now = (name, file), time.monotonic()
        with self._lock:
            asked_at, total = self._seen.get(key, (-REMOTE_READ_PAUSE_S, 0))
            if offset >= total and now - asked_at < REMOTE_READ_PAUSE_S:
                return OutputPiece(b"", total)
        path = quote(f"{self._root}/{name}/{file}")
        text = f"[ -f {path} ] || exit 3; wc -c <{path}; tail -c +{offset + 1} {path} | head -c {size}"
        said = self._caller.call(["sh", "-c", text])
        if said.code not in (0, 3):
            raise Unavailable(f"The output of {name} cannot be read: {said.err.strip()[:200]}")
        first, _, data = said.out.partition(b"\n") if said.code == 0 else (b"0", b"", b"")
        total = int(first) if first.strip().isdigit() else 0
        with self._lock:
            if len(self._seen) > STREAMS_CACHED_MAX:
                self._seen.clear()
            self._seen[key] = (now, total)
        return OutputPiece(data, total)

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        asked = list(wanted)
        found: dict[tuple[str, str], ScriptNote] = {}
        for first in range(0, len(asked), NOTES_MAX):
            found |= self._notes(asked[first : first + NOTES_MAX])
        return found

    def _notes(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        words = " ".join(quote(f"{name}/{file}") for name, file in asked)
        show = 'printf "%s %s %s\\n" "$f" "$(stat -c %Y "$f")" "$(head -n 1 "$f")"'
        text = f'cd {quote(self._root)} && for f in {words}; do [ -f "$f" ] && {show}; done; true'
        found = {}
        for line in self._caller.ask(["sh", "-c", text]).splitlines():
            path, _, rest = line.partition(" ")
            at, _, note = rest.partition(" ")
            name, _, file = path.partition("/")
            if at.isdigit() and (name, file) in asked:
                found[name, file] = ScriptNote(note.strip(), int(at))
        return found

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        asked = list(wanted)
        claimed: set[tuple[str, str]] = set()
        for first in range(0, len(asked), NOTES_MAX):
            some = {f"{name}/{file}": (name, file) for name, file in asked[first : first + NOTES_MAX]}
            write = f'{{ printf "%s\\n" {quote(text)} >"$f"; }} 2>/dev/null || [ ! -e "$f" ] && echo "$f"'
            each = f"set -C; for f in {' '.join(map(quote, some))}; do {write}; done; true"
            said = self._caller.ask(["sh", "-c", f"cd {quote(self._root)} && {{ {each}; }}"])
            claimed |= {some[path] for path in said.splitlines() if path in some}
        return claimed

    def remove(self, name: str) -> None:
        self._caller.call(["rm", "-rf", "--", self.folder(name)])
