"""The script that Slurm runs for an attempt: begins once, runs the command, writes down how it ended. Pure text.

`started` is made before the command, and only where there is none; if there is no room to write into it, the command
runs all the same. A second start of the same attempt (Slurm requeued it, or a submit that was given up arrived late)
finds it, leaves its native id in `again` and ends with RERUN_CODE: what ran once does not run again. `started` holds
the native id, how often Slurm had started it before, the node, and whether an `exit` is to follow. All have the task's
index after them. The shell does all but the command itself, and opens each file once: a thousand tasks feel each
program more, and ext4 takes a file that is opened anew, to be written over, to the disk at once.

The shell waits for the command, writes `code 5` or `signal 9` into `exit`, and then ends in the same way itself. So the
end is known when the controller has forgotten the job and the accounts do not know it yet, and Slurm sees the same
end. A shell tells of a signal by a code above 128, which a command may use, too; but it also says so on its own stderr,
which therefore goes into `ending`. Of SIGINT and SIGPIPE no shell speaks: 130 and 141 always count as these signals.
Signals that Slurm sends to all processes of the job do not end the shell, so that the command can end in its own way.

A job with `--signal=B:…` is the exception: Slurm sends that signal to the script alone, and a shell that waits cannot
pass it on. There the shell becomes the command, and leaves no `exit`. Every script writes into `exit` that it could not
enter the command's working directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

from switchyard.agent.backends.slurm.evidence import EXIT_FOLLOWS_NOTE
from switchyard.agent.backends.slurm.states import NO_CWD_CODE, NO_CWD_REASON, RERUN_CODE
from switchyard.agent.environment import job_variables
from switchyard.agent.need import spec_of
from switchyard.model.job import JobSpec
from switchyard.model.poll import Lease

SET_BY_SCRIPT = ("SWITCHYARD_FENCE", "SWITCHYARD_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
SIGNAL_TO_SCRIPT_OPTION = re.compile(r"--signal[= ]R?B")  # `B:USR1@60`, `RB:USR1@60`
ENV_SAFE_PREFIX = ("nice", "-n", "0", "--")
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
if ! {{ {{ printf '%s\\n' "$start" || true; }} >"$folder/started$task"; }} 2>/dev/null && [ -e "$folder/started$task" ]
then
    set +C
    note again "$native"
    echo "yard: this was started before; it does not run twice" >&2
    exit {rerun}
fi
set +C
{place}
{run}
"""
EXEC_TEMPLATE = "exec env -- {environment} {command}"
# Made before the command runs: a disk that is full at its end has no place for a new file, and an empty one says that.
RESERVE_EXIT_TEMPLATE = """\
{{ true >"$folder/ending$task"; }} 2>/dev/null && noted=' {word}'
"""
NOTE_EXIT_TEMPLATE = """\
trap : HUP INT QUIT USR1 USR2 ALRM TERM XCPU
exec 9>&2
if [ "$noted" ]; then exec 2>>"$folder/ending$task"; fi
(exec env -- {environment} {command} 2>&9 9>&-)
code=$?
exec 2>&9 9>&-
trap - HUP INT QUIT USR1 USR2 ALRM TERM XCPU
end="code $code"
if [ "$code" -gt 128 ] && {{ [ "$code" = 130 ] || [ "$code" = 141 ] || [ -s "$folder/ending$task" ]; }}
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
) -> bytes:
    """`lease` is a job's, or a whole range's; `base` is the index of the native task 0. `login`: of another account."""
    spec = spec_of(lease)
    is_noted = not _is_script_signalled(spec)
    words = [
        f"{key}={value}"
        for key, value in {**(login or {}), **job_variables(lease, cluster)}.items()
        if key not in SET_BY_SCRIPT
    ]
    environment = [quote(word) for word in words]
    if lease.lo is None:
        environment.append(f"SWITCHYARD_FENCE={lease.fence}")
        place = _enter(quote(spec.cwd) if spec.cwd else '"$folder/work"')
    else:
        index = f"$((SLURM_ARRAY_TASK_ID + {base}))"
        environment.append(f'"SWITCHYARD_FENCE=$((SLURM_ARRAY_TASK_ID + {base} - {lease.lo} + {lease.fence}))"')
        environment += [f'"SWITCHYARD_ARRAY_INDEX={index}"', f'"SLURM_ARRAY_TASK_ID={index}"']
        place = _enter(quote(spec.cwd) if spec.cwd else '"$folder/work$task"')
    text = SCRIPT_TEMPLATE.format(
        name=name,
        folder=quote(folder),
        rerun=RERUN_CODE,
        reserve=RESERVE_EXIT_TEMPLATE.format(word=EXIT_FOLLOWS_NOTE) if is_noted else "",
        place=place,
        run=(NOTE_EXIT_TEMPLATE if is_noted else EXEC_TEMPLATE).format(
            environment=" ".join(environment),
            # A first word with a `=` would be one more variable to env; nice knows no such thing.
            command=" ".join(map(quote, [*(ENV_SAFE_PREFIX if "=" in spec.command[0] else []), *spec.command])),
        ),
    )
    return text.encode("utf-8", "surrogateescape")


def work_folders_of(lease: Lease, *, base: int) -> list[str]:
    """The folders, within its own, that the tasks work in unless the job names another."""
    if spec_of(lease).cwd:
        return []
    if lease.lo is None or lease.hi is None:
        return ["work"]
    return [f"work.{index - base}" for index in range(lease.lo, lease.hi + 1)]


def _enter(place: str) -> str:
    """Our own places are there, made by the agent; if not, they are made now."""
    make = f" 2>/dev/null || {{ mkdir -p {place} && cd {place}; }}" if place.startswith('"$folder') else ""
    return f"cd {place}{make} || {{ note exit {NO_CWD_REASON}; exit {NO_CWD_CODE}; }}"


def _is_script_signalled(spec: JobSpec) -> bool:
    """Does the job ask sbatch for a signal that goes to its script alone?"""
    words = " ".join(spec.native.options if spec.native else [])
    return bool(SIGNAL_TO_SCRIPT_OPTION.search(words))
