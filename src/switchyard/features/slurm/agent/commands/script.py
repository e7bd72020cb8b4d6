"""The script that Slurm runs for an attempt: starts once, runs the command, notes how it ended. Pure text.

The script leaves notes in the attempt's folder. The notes of a task have its index at the end of their names.

- `started` is created before the command, only if it does not exist. It holds the native id, the number of earlier
  starts by Slurm, the node, and whether an `exit` will follow. On a full disk it is empty, and the command still runs.
  If it cannot be created at all, the command does not run: without `started`, nobody could tell that it began.
- `again` holds the native id of a second start of the same attempt: Slurm requeued the job, or a submit that was given
  up arrived late. The second start finds `started` and ends with RERUN_CODE, so a command runs only once.
- `exit` holds `code 5` or `signal 9`. So the end is known when the controller has forgotten the job and sacct does not
  know it yet. If the job's working directory or the agent's folder cannot be entered, `exit` says so.
- `ending` gets the shell's stderr. A shell returns a code above 128 after a signal, but a command may use such a code,
  too; the shell's message tells them apart. There is none for SIGINT and SIGPIPE: 130 and 141 always count as signals.

The shell waits for the command and then ends in the same way, so that Slurm sees the same end. Signals that Slurm sends
to all processes of the job do not end the shell: the command ends as it wants. The shell starts no other program and
opens each file once: with a thousand tasks every program counts, and ext4 flushes a file that is reopened to be
overwritten.

A job with `--signal=B:…` is the exception: Slurm sends that signal only to the script, and a waiting shell cannot pass
it on. There the shell becomes the command (exec), and there is no `exit`.

A job with an image runs as script_images.py says. podman and docker exit with 128 and the number after a signal, so
for them such a code counts as a signal. Afterwards the container is removed, and `removed` says how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

from switchyard.agent.backends.shared.script_images import ScriptCommand, ScriptVariable, run_command
from switchyard.agent.backends.shared.work_folders import JOB_FOLDER
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.environment import FILES_VARIABLE, job_variables
from switchyard.agent.site.site import Site
from switchyard.features.slurm.agent.commands.states import NO_CWD_CODE, NO_CWD_REASON, NO_FOLDER_REASON, RERUN_CODE
from switchyard.features.slurm.agent.jobs.evidence import EXIT_FOLLOWS_NOTE
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec

SET_BY_SCRIPT = ("SWITCHYARD_FENCE", "SWITCHYARD_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
CONTAINER_GRACE_S = 20  # two thirds of Slurm's default of KillWait
SIGNAL_TO_SCRIPT_OPTION = re.compile(r"--signal[= ]R?B")  # `B:USR1@60`, `RB:USR1@60`
SCRIPT_TEMPLATE = """\
#!/bin/sh
# {name}
folder={folder}
task=${{SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}}
native=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
note() {{ printf '%s\\n' "$2" >"$folder/$1$task"; }}
noted=
set -C
{reserve}start="$native ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME$noted"
if ! {{ {{ printf '%s\\n' "$start" || true; }} >"$folder/started$task"; }} 2>/dev/null
then
    set +C
    if [ -e "$folder/started$task" ]
    then
        note again "$native"
        echo "yard: this was started before; it does not run twice" >&2
    else
        echo "yard: the start cannot be noted in $folder; the command does not run" >&2
    fi
    exit {rerun}
fi
set +C
{place}
{run}
"""
RUN_TEMPLATE = """\
({program_text} 2>&9 9>&-)
code=$?"""
# Created before the command runs: a disk that is full at the end has no room for a new file.
RESERVE_EXIT_TEMPLATE = """\
{{ true >"$folder/ending$task"; }} 2>/dev/null && noted=' {word}'
"""
NOTE_EXIT_TEMPLATE = """\
trap : HUP INT QUIT USR1 USR2 ALRM TERM XCPU
exec 9>&2
if [ "$noted" ]; then exec 2>>"$folder/ending$task"; fi
{run}
exec 2>&9 9>&-
trap - HUP INT QUIT USR1 USR2 ALRM TERM XCPU
end="code $code"
if [ "$code" -gt 128 ] && {{ [ "$code" = 130 ] || [ "$code" = 141 ] || [ -s "$folder/ending$task" ]{or_signal}; }}
then
    end="signal $((code - 128))"
fi
note exit "$end" || mv "$folder/ending$task" "$folder/exit$task"
if [ "$end" != "code $code" ]
then
    ulimit -c 0
    kill -"$((code - 128))" $$
fi
exit "$code\""""


def script_of(
    lease: Lease,
    name: str,
    folder: str,
    *,
    cluster: str,
    base: int,
    login: Mapping[str, str] | None = None,
    work_root: str = "",
    site: Site | None = None,
    grace_s: int = CONTAINER_GRACE_S,
) -> bytes:
    """`lease`: of a job or a range; `base`: the index of native task 0; `login`: variables of another account.

    `work_root`: where the folders of attempts with files are; `grace_s`: how long a container has after SIGTERM.
    Raises PolicyRefused for an image the site does not run.
    """
    spec = spec_of(lease)
    is_noted = not _is_script_signalled(spec)
    variables = [
        ScriptVariable(key, quote(value))
        for key, value in {**(login or {}), **job_variables(lease, cluster)}.items()
        if key not in SET_BY_SCRIPT
    ]
    if lease.lo is None:
        fence, work = str(lease.fence), '"$folder/work"'
    else:
        index = f'"$((SLURM_ARRAY_TASK_ID + {base}))"'
        fence = f'"$((SLURM_ARRAY_TASK_ID + {base} - {lease.lo} + {lease.fence}))"'
        work = '"$folder/work$task"'
        variables += [
            ScriptVariable(key, index, is_computed=True) for key in ("SWITCHYARD_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
        ]
    variables.append(ScriptVariable("SWITCHYARD_FENCE", fence, is_computed=True))
    marker = f"yard-{lease.job}-{lease.attempt}-{fence}"
    if spec.files is not None:
        # The folder of the attempt, by its marker: each task of a range has its own (shared/work_folders.py).
        work = f"{quote(work_root)}/{marker}/{JOB_FOLDER}"
        variables.append(ScriptVariable(FILES_VARIABLE, work, is_computed=True))
    command = run_command(spec, variables, site or Site(), name=marker, is_exec=not is_noted)
    # In a container, the working directory may be a folder of the image.
    is_own_cwd = bool(spec.cwd) and not command.is_contained
    place = _enter(quote(spec.cwd or ""), NO_CWD_REASON) if is_own_cwd else _enter(work, NO_FOLDER_REASON)
    text = SCRIPT_TEMPLATE.format(
        name=name,
        folder=quote(folder),
        rerun=RERUN_CODE,
        reserve=RESERVE_EXIT_TEMPLATE.format(word=EXIT_FOLLOWS_NOTE) if is_noted else "",
        place=place,
        run=_run_text(command, grace_s=grace_s) if is_noted else command.exec_text,
    )
    return text.encode("utf-8", "surrogateescape")


def work_folders_of(lease: Lease, *, base: int) -> list[str]:
    """The working folders of the tasks, inside the attempt's folder; empty if the job has another one."""
    if spec_of(lease).cwd or spec_of(lease).files is not None:
        return []
    if lease.lo is None or lease.hi is None:
        return ["work"]
    return [f"work.{index - base}" for index in range(lease.lo, lease.hi + 1)]


def _run_text(command: ScriptCommand, *, grace_s: int) -> str:
    """Shell text that runs the command, notes its end, and ends as the command did."""
    if not command.program:
        return NOTE_EXIT_TEMPLATE.format(run=RUN_TEMPLATE.format(program_text=command.exec_text), or_signal="")
    return NOTE_EXIT_TEMPLATE.format(run=command.run_text(grace_s), or_signal=' || [ "$code" -lt 193 ]')


def _enter(place: str, note: str) -> str:
    """Enter the working folder, or leave this note. A folder of the agent is made if it is missing."""
    make = f" 2>/dev/null || {{ mkdir -p {place} && cd {place}; }}" if place.startswith('"$folder') else ""
    return f"cd {place}{make} || {{ note exit {note}; exit {NO_CWD_CODE}; }}"


def _is_script_signalled(spec: JobSpec) -> bool:
    """Whether the job asks sbatch for a signal to its script alone."""
    words = " ".join(spec.native.options if spec.native else [])
    return bool(SIGNAL_TO_SCRIPT_OPTION.search(words))
