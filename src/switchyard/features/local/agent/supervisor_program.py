"""The compiled supervisor of local jobs: written completely or not at all, checked before each start, and written anew.

An agent that starts a damaged supervisor can start no job. So nothing here is assumed of the files on the disk: the
compiled bytes stay in memory, and the sources of the package are used while the files cannot be written.
"""

from __future__ import annotations

import importlib.util
import logging
import marshal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from switchyard.agent.log import line
from switchyard.agent.private_files import file_version, replace_file
from switchyard.features.local.agent import agent_pipe, confine, job_mounts, proctable, supervisor

PROGRAM_FOLDER = "supervisor"  # in the folder of the backend
REWRITE_S = 60.0  # between two tries to write the files, e.g. while the disk is full
PAUSE_S = 60.0  # no new work for so long after the supervisor of a job could not begin
SUPERVISOR_PROBE_S_MAX = 30.0
LOG_BYTES_MAX = 4096  # read from the end of supervisor.log
LINE_CHARS_MAX = 200

log = logging.getLogger(__name__)


class SupervisorProgram:
    """Compiled once per agent: at each start of a job that would be a quarter of the time from spawn to exec."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / PROGRAM_FOLDER
        modules = (supervisor, agent_pipe, confine, job_mounts, proctable)
        self._sources = [Path(str(module.__file__)) for module in modules]
        self._contents = {self._folder / f"{source.stem}.pyc": _compiled(source) for source in self._sources}
        self._versions: dict[Path, tuple[int, ...]] = {}  # of the files as they were written
        self._write_at = 0.0  # earliest next try to write
        self._pause_until, self._failure = 0.0, ""
        self._write()

    def path(self, *, is_suspect: bool = False) -> Path:
        """The file to run. Writes the files anew if they changed. `is_suspect`: a start failed, so read them, too."""
        if self._versions and not self._is_whole(is_suspect=is_suspect):
            log.error(line("supervisor-damaged", folder=self._folder, next="It is written anew."))
            self._versions, self._write_at = {}, 0.0
        if not self._versions and time.monotonic() >= self._write_at:
            self._write()
        return self._folder / "supervisor.pyc" if self._versions else self._sources[0]

    def trouble(self) -> str:
        """Why no job can be started now; empty: jobs can be started, or it is time to try again."""
        return self._failure if time.monotonic() < self._pause_until else ""

    def note_failure(self, why: str) -> None:
        """The supervisor of a job could not begin: take no new jobs for a while."""
        self._failure, self._pause_until = f"no job can be started: {why}", time.monotonic() + PAUSE_S
        log.error(line("supervisor-failed", why=why))

    def note_start(self) -> None:
        """A supervisor has begun: jobs can be started."""
        self._pause_until = 0.0

    def _is_whole(self, *, is_suspect: bool) -> bool:
        if any(file_version(path) != version for path, version in self._versions.items()):
            return False
        try:
            return not is_suspect or all(path.read_bytes() == self._contents[path] for path in self._versions)
        except OSError:
            return False

    def _write(self) -> None:
        self._write_at = time.monotonic() + REWRITE_S
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path, content in self._contents.items():
                replace_file(path, content)
                if path.read_bytes() != content:
                    raise OSError(f"{path.name} was written, and its bytes are others")
        except OSError as exc:
            advice = "Make room on the disk. Until then the agent starts jobs with the supervisor of its package."
            log.error(line("supervisor-not-written", folder=self._folder, error=exc, next=advice))
            return
        self._versions = {path: file_version(path) for path in self._contents}


def _compiled(source: Path) -> bytes:
    """The bytes of a .pyc file: a magic number, twelve bytes that nobody checks here, and the code."""
    code = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def probe_supervisor(directory: Path) -> str:
    """Why the compiled supervisor in this folder cannot run; empty: it can, or there is none."""
    program = directory / PROGRAM_FOLDER / "supervisor.pyc"
    if not program.exists():
        return ""
    with tempfile.TemporaryDirectory(prefix="yard-doctor-") as folder:
        (Path(folder) / "start").touch()  # incomplete: the supervisor reads it and asks for another try
        words = [sys.executable, "-I", "-S", str(program), folder]
        try:
            done = subprocess.run(words, capture_output=True, timeout=SUPERVISOR_PROBE_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            return str(exc)
    return "" if done.returncode == supervisor.EXIT_TRY_AGAIN else last_line(done.stderr) or f"exit {done.returncode}"


def start_failure(job: Path, code: int, tries: int) -> str:
    """Why the supervisor of this job never began. `job`: its directory."""
    try:
        with (job / "supervisor.log").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_BYTES_MAX))
            said = last_line(file.read(LOG_BYTES_MAX))
    except OSError:
        said = ""
    return f"its supervisor ended with {code} before it began, {tries} times: {said or 'it wrote no reason'}"


def last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:LINE_CHARS_MAX] if lines else ""
