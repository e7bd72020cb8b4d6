"""The command and the variables of a pod's container, as Kubernetes must be told them. Pure.

Kubernetes replaces `$(NAME)` in commands and variables and reads `$$` as `$`, so each `$` is written twice. A range of
tasks is one Job, and a pod learns only its completion index. A shell in the container adds the first task's index and
fence to it, then becomes the command (exec).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.environment import FILES_VARIABLE, job_variables
from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.jobs.gang import Gang, gang_variables
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.variable_names import copied_variables

# The kernel's bound of one word of a command or one variable, with the NUL at its end.
WORD_BYTES_MAX = 128 * 1024
RANGE_SCRIPT = (
    'export SWITCHYARD_ARRAY_INDEX="$((JOB_COMPLETION_INDEX + {lo}))" '
    'SWITCHYARD_FENCE="$((JOB_COMPLETION_INDEX + {fence}))"; exec {before}"$@"'
)
LEAVE_OUT_SCRIPT = 'case " {indexes} " in *" $JOB_COMPLETION_INDEX "*) exit 1;; esac; '
COPY_PREFIX = "SWITCHYARD_RANGE_VARIABLE_"
SCRIPT_WORD = 2  # of a range's command
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
SET_BY_RANGE_SCRIPT = ("SWITCHYARD_FENCE", "SWITCHYARD_ARRAY_INDEX")
Manifest = dict[str, Any]


def main_command(lease: Lease) -> list[str]:
    """The container's command. It replaces the entry point of the image, as in all other backends."""
    words = spec_of(lease).command
    for number, word in enumerate(words):
        size = _byte_count(word, where=f"Word {number} of its command")
        if size >= WORD_BYTES_MAX:
            raise PolicyRefused(
                f"Word {number} of its command has {size} bytes, and Linux takes {WORD_BYTES_MAX - 1} in one word.",
                next_step="Send a long script as a file, or let the command fetch it.",
            )
    if _is_range(lease):
        _, before = copied_variables(job_variables(lease, ""), prefix=COPY_PREFIX)
        script = RANGE_SCRIPT.format(lo=lease.lo, fence=lease.fence, before=before)
        words = ["/bin/sh", "-c", script, "sh", *words]
    return [escape(word) for word in words]


def leave_out(command: list[str], indexes: Collection[int]) -> list[str]:
    """The command of a range that ends at once in the pods of these indexes, which have ended without it."""
    if not indexes:
        return command
    script = escape(LEAVE_OUT_SCRIPT.format(indexes=" ".join(map(str, indexes))))
    return [*command[:SCRIPT_WORD], script + command[SCRIPT_WORD], *command[SCRIPT_WORD + 1 :]]


def variables_of(lease: Lease, site: Site, *, cluster: str, name: str, gang: Gang, files: str | None) -> list[Manifest]:
    variables = job_variables(lease, cluster)
    if _is_range(lease) or gang.size > 1:
        variables.pop(INDEX_VARIABLE, None)  # Kubernetes sets it only where nobody else does
    if _is_range(lease):
        for key in SET_BY_RANGE_SCRIPT:
            variables.pop(key, None)
        variables |= copied_variables(variables, prefix=COPY_PREFIX)[0]
    if files is not None:
        variables[FILES_VARIABLE] = files
    for key, value in variables.items():
        _check_variable(key, value)
    rows: list[Manifest] = []
    if gang.size > 1:
        namespace = kubernetes_of(site).namespace_of(project=lease.project, domain=lease.domain)
        rows = gang_variables(name, namespace, gang, kubernetes_of(site))
    taken = {row["name"] for row in rows}
    return [*({"name": key, "value": escape(value)} for key, value in variables.items() if key not in taken), *rows]


def escape(text: str) -> str:
    """A text that Kubernetes passes on unchanged."""
    return text.replace("$", "$$")


def _is_range(lease: Lease) -> bool:
    return lease.lo is not None and lease.hi is not None and lease.hi > lease.lo


def _check_variable(name: str, value: str) -> None:
    if not name.isascii() or not name.isprintable():
        raise PolicyRefused(f"Kubernetes takes no variable called {name[:80]!r}: only printable ASCII characters.")
    size = _byte_count(value, where=f"Its variable {name}") + len(name) + 1
    if size >= WORD_BYTES_MAX:
        raise PolicyRefused(f"Its variable {name} has {size} bytes, and Linux takes {WORD_BYTES_MAX - 1} in one.")


def _byte_count(text: str, *, where: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise PolicyRefused(f"{where} is not UTF-8, and Kubernetes takes nothing else.") from None
