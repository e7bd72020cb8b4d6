"""Removes the folder of a job. It may lack permissions and be very deep. Links are not followed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchyard.agent.log import line

TRIES_MAX = 5  # while other jobs of the account change the folder
TRY_PAUSE_S = 0.02
TOO_DEEP = frozenset({errno.EMFILE, errno.ENAMETOOLONG})  # a walk has each folder above open
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger(__name__)


def remove_folder(folder: Path) -> bool:
    """Remove a folder with all in it. False: something of it is left, and the log says why."""
    error = ""
    for number in range(TRIES_MAX):
        if number:
            time.sleep(TRY_PAUSE_S)
        error = _try_removal(folder)
        # Look again: an entry that another job moved away ends the walk in the same way as a folder that is gone.
        if not os.path.lexists(folder):
            return True
    log.warning(line("folder-not-removed", path=folder, error=error or "it is being changed"))
    return False


def _try_removal(folder: Path) -> str:
    """Try once. Returns the last error; empty: there was none."""
    errors: list[str] = []

    def open_and_retry(call: Callable[..., Any], path: str, _: object) -> None:
        """A folder without permissions, such as a module cache: give them back to its owner and try again."""
        place = Path(path)
        try:
            for closed in (place.parent, place):
                if not closed.is_symlink() and closed.is_dir():
                    closed.chmod(0o700)
            if call in (os.open, os.scandir, os.lstat):
                shutil.rmtree(place)
            else:
                call(path)
        except OSError as exc:
            errors.append(f"{path}: {exc.strerror or exc}")

    try:
        shutil.rmtree(folder)
    except RecursionError:
        return _flatten(folder)
    except OSError as exc:
        if exc.errno in TOO_DEEP:
            return _flatten(folder)
        errors.append(f"{exc.filename or folder}: {exc.strerror or exc}")
        # Root needs no permissions, and must not change those of a place that a link leads to.
        if os.geteuid() != 0 and os.path.lexists(folder):
            errors.clear()
            try:
                shutil.rmtree(folder, onerror=open_and_retry)
            except RecursionError:
                return _flatten(folder)
    return errors[-1] if errors else ""


def _flatten(folder: Path) -> str:
    """Move every folder below `folder` up into it. The next try removes them: none is too deep for it any more.

    Returns the last error. Two folders are open at a time, however deep the tree is.
    """
    error = "it is too deep"
    try:
        top = os.open(folder, FOLDER_FLAGS)
    except OSError as exc:
        return f"{folder}: {exc.strerror}"
    try:
        waiting = deque(_subfolders(top))
        fresh = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        while waiting:
            name = waiting.popleft()
            try:
                number = _open_subfolder(name, top)
            except OSError as exc:
                error = f"{folder / name}: {exc.strerror}"
                continue
            try:
                for inner in _subfolders(number):
                    with contextlib.suppress(FileNotFoundError):  # another job moved it
                        os.rename(inner, new := next(fresh), src_dir_fd=number, dst_dir_fd=top)
                        waiting.append(new)
            except OSError as exc:
                error = f"{folder / name}: {exc.strerror}"
            finally:
                os.close(number)
    finally:
        os.close(top)
    return error


def _subfolders(number: int) -> list[str]:
    with os.scandir(number) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _open_subfolder(name: str, top: int) -> int:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=top)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        os.chmod(name, 0o700, dir_fd=top)
        return os.open(name, FOLDER_FLAGS, dir_fd=top)
