"""The script that Slurm runs for an attempt: begins once, runs the command, writes down how it ended. Pure text.

`claim` is made before the command. A second start of the same attempt (Slurm requeued it, or a submit that was given up
arrived late) finds it and ends with RERUN_CODE: what ran once does not run again. `started` holds the native id; `exit`
the code, for clusters that keep no accounts and an agent that was away. All have the task's index after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from switchyard.agent.backends.slurm.states import RERUN_CODE
from switchyard.agent.environment import variables
from switchyard.agent.need import spec_of
from switchyard.model.poll import Lease

OWN = ("SWITCHYARD_FENCE", "SWITCHYARD_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
NICE = ("nice", "-n", "0", "--")
FRAME = """\
#!/bin/sh
# {name}
folder={folder}
task=${{SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}}
native=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
note() {{ printf '%s\\n' "$2" >"$folder/$1$task.new" && mv -f "$folder/$1$task.new" "$folder/$1$task"; }}
if ! mkdir "$folder/claim$task" 2>/dev/null && [ -d "$folder/claim$task" ]; then
    echo "yard: this was started before; it does not run twice" >&2
    exit {rerun}
fi
note started "$native $(hostname)"
{place}
env -- {environment} {command}
code=$?
note exit "$code"
exit "$code"
"""


def script_of(
    lease: Lease, name: str, folder: str, *, cluster: str, base: int, login: Mapping[str, str] | None = None
) -> bytes:
    """`lease` is a job's, or a whole range's; `base` is the index of the native task 0. `login`: of another account."""
    spec = spec_of(lease)
    words = [
        f"{key}={value}" for key, value in {**(login or {}), **variables(lease, cluster)}.items() if key not in OWN
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
    text = FRAME.format(
        name=name,
        folder=quote(folder),
        rerun=RERUN_CODE,
        place=place,
        environment=" ".join(environment),
        # A first word with a `=` would be one more variable to env; nice knows no such thing.
        command=" ".join(map(quote, [*(NICE if "=" in spec.command[0] else []), *spec.command])),
    )
    return text.encode("utf-8", "surrogateescape")


def _enter(place: str) -> str:
    make = f"mkdir -p {place} && " if place.startswith('"$folder') else ""
    return f"{make}cd {place} || {{ note exit 1; exit 1; }}"
