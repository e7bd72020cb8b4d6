"""Runs Slurm's commands with their environment, prefix and time limit. It parses no answers.

It notes whether the controller answers: commands that ask it say so by their exit codes and errors.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchyard.agent.backends.shared.contact import Contact
from switchyard.agent.private_files import job_umask
from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.slurm_site import SlurmSite, runs_over_ssh

COMMAND_OUTPUT_BYTES_MAX = 256 * 2**20  # a queue of a million rows
ERROR_BYTES_MAX = 4096
KILL_S = 2.0
PROGRAMS = frozenset({"sbatch", "squeue", "sacct", "scancel", "scontrol", "sdiag", "sinfo", "srun"})
CONTROLLER_PROGRAMS = frozenset({"sbatch", "squeue", "scontrol", "sinfo", "scancel"})  # they ask the controller
SSH_FAILED_CODE = 255
# A command of Slurm's got no answer of the controller.
NO_ANSWER_ERROR = re.compile(
    r"timed out|Zero Bytes|Transport endpoint|Connection reset|Connection refused|Broken pipe|STANDBY|communication"
    r"|Unable to contact|Unable to establish|Unable to resolve|munge"
    r"|Protocol authentication error|Invalid authentication credential",
    re.I,
)
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
# Times in seconds since 1970 in every zone, and all indexes of queued tasks.
OUTPUT_FORMAT_VARIABLES = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode(errors="replace")


class CommandTimeout(Unavailable):
    """A command of the cluster took too long."""

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
        self.contact = Contact("Slurm")

    @property
    def is_remote(self) -> bool:
        return self._is_remote

    def words(self, argv: Sequence[str]) -> list[str]:
        """The complete command line, with the site's prefix."""
        program = f"{self._site.bin}/{argv[0]}" if self._site.bin and argv[0] in PROGRAMS else argv[0]
        if not self._prefix:
            return [program, *argv[1:]]
        forms = [f"{key}={value}" for key, value in self._forms_of(argv).items()]
        if not self._is_remote:
            return [*self._prefix, "env", *forms, program, *argv[1:]]
        # End also what ssh started: a submit that goes on there could arrive after our look-up.
        bound = ["timeout", "-k", "2", str(math.ceil(self._site.timeout_s))]
        return [*self._prefix, shlex.join(["env", *forms, *bound, program, *argv[1:]])]

    def _forms_of(self, argv: Sequence[str]) -> dict[str, str]:
        """Variables for the form of answers. Not for sbatch: its environment is the job's."""
        return self._conf if "--parsable" in argv else {**OUTPUT_FORMAT_VARIABLES, **self._conf}

    def call(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        """Run a command to its end. If it takes too long, end it with its children and raise CommandTimeout."""
        if argv[0] not in CONTROLLER_PROGRAMS:
            return self._run(argv, stdin=stdin, timeout_s=timeout_s)
        self.contact.note_asked()
        try:
            result = self._run(argv, stdin=stdin, timeout_s=timeout_s)
        except Unavailable as exc:
            self.contact.note_failure(exc.detail)
            raise
        if self._is_unanswered(result):
            self.contact.note_failure(f"{argv[0]} failed ({result.code}): {result.err.strip()}")
        else:
            self.contact.note_answer()
        return result

    def _is_unanswered(self, result: CommandResult) -> bool:
        """Whether a command failed without an answer of the controller."""
        if result.code == 0:
            return False
        is_ssh_lost = self._is_remote and result.code == SSH_FAILED_CODE
        return result.code < 0 or is_ssh_lost or bool(NO_ANSWER_ERROR.search(result.err))

    def _run(self, argv: Sequence[str], *, stdin: bytes, timeout_s: float | None) -> CommandResult:
        bound_s = timeout_s or self._site.timeout_s
        # Not Path.exists, which raises without the permission to look.
        if self._site.conf and not self._prefix and not os.path.exists(self._site.conf):  # noqa: PTH110
            # Without this check Slurm's commands would wait for the file until the time limit.
            raise Unavailable(f"{self._site.conf} is not there.", next_step="Name this cluster's slurm.conf as `conf`.")
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
        if len(out) > COMMAND_OUTPUT_BYTES_MAX:  # a cut answer would make jobs look lost
            raise Unavailable(f"{argv[0]} printed over {COMMAND_OUTPUT_BYTES_MAX} bytes.")
        return CommandResult(process.returncode, out, err[:ERROR_BYTES_MAX].decode(errors="replace"))

    def ask(self, argv: Sequence[str]) -> str:
        """Return what a command prints. Raises Unavailable if it fails."""
        result = self.call(argv)
        if result.code != 0 and not (problem := result.err.strip() or result.text.strip()[:400]):
            tried = shlex.join(self.words(argv))
            raise Unavailable(
                f"{argv[0]} failed ({result.code}) without a word.", next_step=f"Try `{tried[:200]}` by hand."
            )
        if result.code != 0:
            raise Unavailable(f"{argv[0]} failed ({result.code}): {problem}")
        return result.text


def _kill(process: subprocess.Popen[bytes]) -> None:
    # A sudo runs as root and cannot be ended: sbatch gives up by itself, and the job is looked up by name.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
