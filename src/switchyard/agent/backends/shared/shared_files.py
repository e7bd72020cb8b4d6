"""Folders and files of jobs on a file system that the agent and the nodes of its cluster share."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from switchyard.agent.backends import OutputPiece
from switchyard.agent.backends.shared.work_folders import make_root
from switchyard.agent.files.folder_removal import remove_folder
from switchyard.agent.site.accounts import LocalAccount, open_untrusted, read_untrusted, share_folder
from switchyard.errors import Unavailable

NOTE_BYTES_MAX = 4096
LISTED_FILES_MIN = 20  # from so many wanted files on, a folder is listed first: most files of an array are not there
ABSENT_ERRORS = (FileNotFoundError, NotADirectoryError)
CLAIM_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ScriptNote:
    """A short note of a script, and when it was written."""

    text: str
    at_s: int


class ScriptFiles(Protocol):
    def folder(self, name: str) -> str: ...

    def make(self, name: str, account: LocalAccount | None, places: Sequence[str] = ()) -> None:
        """Make a job's folder for this account (None: the agent's). Scripts make `places` in it if they are missing."""

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece: ...

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        """Read the notes that exist of these (name, file); empty text: not readable. Raises if it is not known now."""

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        """Create each (name, file) with `text`. Returns all but those that existed, also where the write failed."""

    def remove(self, name: str) -> None: ...


class SharedFiles:
    """Files on a file system that agent and nodes share."""

    def __init__(self, root: Path, *, is_for_others: bool = False) -> None:
        self._root = root
        try:
            make_root(root, is_for_others=is_for_others)
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
            if account is None:  # in a folder of another account a name could be a link
                for place in places:
                    (path / place).mkdir(exist_ok=True)
        except OSError as exc:
            raise Unavailable(f"The folder {path} cannot be made: {exc.strerror}.") from exc
        if account is not None:
            share_folder(path, account)

    def read(self, name: str, file: str, *, offset: int, size: int) -> OutputPiece:
        path = f"{self._root}/{name}/{file}"
        try:
            # Do not open files without new output: most of a thousand running tasks write nothing.
            if (status := os.lstat(path)).st_size <= offset or not size:
                return OutputPiece(b"", status.st_size if stat.S_ISREG(status.st_mode) else 0)
            with open_untrusted(Path(path)) as stream:
                stream.seek(offset)
                return OutputPiece(stream.read(size), os.fstat(stream.fileno()).st_size)
        except OSError:  # not there yet, or replaced by the job
            return OutputPiece(b"", 0)

    def notes(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
        files_by_name: dict[str, list[str]] = {}
        for name, file in wanted:
            files_by_name.setdefault(name, []).append(file)
        present = ((name, file) for name, files in files_by_name.items() for file in self._present(name, files))
        notes = {}
        for name, file in present:
            path = f"{self._root}/{name}/{file}"
            try:
                data, status = read_untrusted(path, NOTE_BYTES_MAX)
                notes[name, file] = ScriptNote(data.decode(errors="replace").strip(), int(status.st_mtime))
            except ABSENT_ERRORS:
                continue
            except PermissionError:  # the folder was readable: the job changed it
                notes[name, file] = ScriptNote("", int(time.time()))
            except OSError as exc:
                if exc.errno != errno.ELOOP:  # a link that the job put there
                    raise Unavailable(f"{path} cannot be read: {exc.strerror}.") from exc
                notes[name, file] = ScriptNote("", int(time.time()))
        return notes

    def _present(self, name: str, files: Sequence[str]) -> Sequence[str]:
        """Leave out files that do not exist, if listing the folder is cheaper than opening each."""
        if len(files) < LISTED_FILES_MIN:
            return files
        try:
            listed = set(os.listdir(self._root / name))  # noqa: PTH208 - thousands of names, and no paths
        except OSError:  # opening the files tells whether they are absent or not readable
            return files
        return [file for file in files if file in listed]

    def claim(self, wanted: Iterable[tuple[str, str]], text: str) -> set[tuple[str, str]]:
        claimed = set()
        data = f"{text}\n".encode()
        for name, file in wanted:
            try:
                number = os.open(f"{self._root}/{name}/{file}", CLAIM_FLAGS, 0o666)
                try:
                    os.write(number, data)
                finally:
                    os.close(number)
            except FileExistsError:
                continue
            except OSError:
                pass  # no folder, or a full disk: nothing can be done
            claimed.add((name, file))
        return claimed

    def remove(self, name: str) -> None:
        remove_folder(self._root / name)
