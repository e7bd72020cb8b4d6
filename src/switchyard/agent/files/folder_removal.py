"""Removes the folder of a job, which may have taken away its own permissions. Links are not followed."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchyard.agent.log import line

TRIES_MAX = 5  # while other jobs of the account change the folder
TRY_PAUSE_S = 0.02

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
    except OSError as exc:
        errors.append(f"{exc.filename or folder}: {exc.strerror or exc}")
        # Root needs no permissions, and must not change those of a place that a link leads to.
        if os.geteuid() != 0 and os.path.lexists(folder):
            errors.clear()
            shutil.rmtree(folder, onerror=open_and_retry)
    return errors[-1] if errors else ""
