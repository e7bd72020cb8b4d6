"""Removes the containers of attempts whose supervisor was killed before it could."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterable, Mapping

from switchyard.agent.backends.shared.containers import removal_command
from switchyard.agent.log import line

REMOVAL_S_MAX = 30.0  # of one runtime; a removal takes about a second
ERROR_CHARS_MAX = 300

log = logging.getLogger(__name__)


def remove_containers(name: str, programs: Iterable[str], environment: Mapping[str, str]) -> int:
    """Remove the container of this name from each runtime. Returns how many runtimes still have it, or do not say."""
    return sum(not _remove(name, program, environment) for program in programs)


def _remove(name: str, program: str, environment: Mapping[str, str]) -> bool:
    try:
        result = subprocess.run(
            removal_command(program, name),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=REMOVAL_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        log.warning(line("container-not-removed", container=name, program=program, error=exc))
        return False
    if result.returncode != 0:
        error = result.stderr.decode(errors="replace").strip()[-ERROR_CHARS_MAX:]
        log.warning(line("container-not-removed", container=name, program=program, error=error))
    return result.returncode == 0
