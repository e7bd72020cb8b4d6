"""Runs Slurm's commands: their environment, their prefix, and an end to each, however it hangs. It reads no answers."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchyard.agent.site import SlurmSite, runs_over_ssh
from switchyard.agent.umask import job_umask
from switchyard.errors import Unavailable

OUTPUT_BYTES_MAX = 256 * 2**20  # a queue of a million rows
ERROR_BYTES_MAX = 4096
KILL_S = 2.0
PROGRAMS = frozenset({"sbatch", "squeue", "sacct", "scancel", "scontrol", "sdiag", "sinfo", "srun"})
INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "SLURM_CONF",
    "LD_LIBRARY_PATH",
    "SSH_AUTH_SOCK",
)
# Times in seconds since 1970, whatever the zone; and the indexes of waiting tasks in full, however many they are.
OUTPUT_FORMAT_VARIABLES = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    code: int
    out: bytes
    err: str
    took_s: float

    @property
    def text(self) -> str:
        return self.out.decode(errors="replace")


class CommandTimeout(Unavailable):
    """The cluster's command gave no answer in time."""

    default_next = "See whether slurmctld runs; the agent asks again by itself."


class CommandRunner:
    """Used by several threads."""

    def __init__(self, site: SlurmSite, environment: Mapping[str, str]) -> None:
        self._site = site
        self._prefix = shlex.split(site.prefix)
        self._is_remote = runs_over_ssh(self._prefix)
        self._conf = {"SLURM_CONF": site.conf} if site.conf else {}
        inherited = {key: environment[key] for key in INHERITED if key in environment}
        self._environment = {"PATH": os.defpath, **inherited}

    @property
    def is_remote(self) -> bool:
        return self._is_remote

    def words(self, argv: Sequence[str]) -> list[str]:
        """The whole command line, with what has to stand before it."""
        program = f"{self._site.bin}/{argv[0]}" if self._site.bin and argv[0] in PROGRAMS else argv[0]
        if not self._prefix:
            return [program, *argv[1:]]
        forms = [f"{key}={value}" for key, value in self._forms_of(argv).items()]
        if not self._is_remote:
            return [*self._prefix, "env", *forms, program, *argv[1:]]
        # What ssh leaves behind when it is ended must end too: a submit that went on there could come after our look.
        bound = ["timeout", "-k", "2", str(math.ceil(self._site.timeout_s))]
        return [*self._prefix, shlex.join(["env", *forms, *bound, program, *argv[1:]])]

    def _forms_of(self, argv: Sequence[str]) -> dict[str, str]:
        """A submit's environment is its job's, whose own questions to Slurm are not to be answered in our forms."""
        return self._conf if "--parsable" in argv else {**OUTPUT_FORMAT_VARIABLES, **self._conf}

    def call(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        """Run it to its end. Raises NoAnswer when it takes too long; what it started is ended too."""
        bound_s = timeout_s or self._site.timeout_s
        # Not a Path's `exists`, which raises where it may not look.
        if self._site.conf and not self._prefix and not os.path.exists(self._site.conf):  # noqa: PTH110
            # Slurm's own commands would look for it until they are ended.
            raise Unavailable(f"{self._site.conf} is not there.", next_step="Name this cluster's slurm.conf as `conf`.")
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                self.words(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, **self._forms_of(argv)},
                cwd="/",
                start_new_session=True,  # so that a wrapper and its children can be ended together
                umask=job_umask(),  # Slurm gives a job the umask of its submit
            )
        except OSError as exc:
            raise Unavailable(
                f"{argv[0]} cannot be run: {exc.strerror}.", next_step="Is Slurm installed here?"
            ) from exc
        try:
            out, err = process.communicate(stdin, timeout=bound_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise CommandTimeout(f"{argv[0]} gave no answer within {bound_s:g} s.") from None
        except BaseException:
            _kill(process)
            raise
        if len(out) > OUTPUT_BYTES_MAX:  # half an answer would make jobs look lost
            raise Unavailable(f"{argv[0]} printed over {OUTPUT_BYTES_MAX} bytes.")
        took_s = time.monotonic() - begun
        return CommandResult(process.returncode, out, err[:ERROR_BYTES_MAX].decode(errors="replace"), took_s)

    def ask(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        """What a question's command prints. Raises Unavailable when it fails."""
        said = self.call(argv, timeout_s=timeout_s)
        if said.code != 0 and not (problem := said.err.strip() or said.text.strip()[:400]):
            tried = shlex.join(self.words(argv))
            raise Unavailable(
                f"{argv[0]} failed ({said.code}) without a word.", next_step=f"Try `{tried[:200]}` by hand."
            )
        if said.code != 0:
            raise Unavailable(f"{argv[0]} failed ({said.code}): {problem}")
        return said.text


def _kill(process: subprocess.Popen[bytes]) -> None:
    # A sudo is root's and not ours to end: sbatch itself gives up in time, and is looked for by its name.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
