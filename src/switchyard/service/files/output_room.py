"""How much of an attempt's output files the server takes, so that an agent sends what fits and names the rest.

What an agent is told says little of the other files of the job's owner and project (`coarse_room`).
"""

from __future__ import annotations

from switchyard.model.files.files import OutputRoom, RoomLimit
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import CONFIG_SECTION, ROOM_STEPS, coarse_room
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_objects, file_outputs, file_trees
from switchyard.store.files.file_outputs import OutputRow


def output_room(context: Context, attempt: AgentAttempt) -> OutputRoom:
    limits = context.files.limits
    with context.database.read() as tx:
        user_used = file_objects.usage_get(tx, attempt.owner)
        project_used = 0
        if limits.project_bytes:
            replaced = replaced_tree(tx, attempt, file_outputs.output_get(tx, attempt.row.id, attempt.fence))
            project_used = file_trees.project_usage(tx, attempt.row.project)[0] - (replaced.size if replaced else 0)
    return OutputRoom(
        tree=_limit("tree_bytes", limits.tree_bytes, 0, "the limit for one tree of files"),
        project=_limit(
            "project_bytes", limits.project_bytes, project_used, f"the limit of project {attempt.row.project}"
        ),
        # An agent sends its files in many requests, and each is checked by steps.
        user=_limit(
            "user_bytes",
            limits.user_bytes,
            user_used,
            "the limit of the job's owner",
            spare=limits.user_bytes // ROOM_STEPS,
        ),
    )


def replaced_tree(tx: Tx, attempt: AgentAttempt, earlier: OutputRow | None) -> OutputRow | None:
    """The outputs that an attempt has named before, if its project needs their tree for nothing else."""
    if earlier is None or earlier.root is None:
        return None
    is_shared = file_outputs.is_root_shared(tx, attempt.row.project, attempt.row.id, attempt.fence, bytes(earlier.root))
    return None if is_shared else earlier


def _limit(name: str, bytes_max: int, used: int, whose: str, *, spare: int = 0) -> RoomLimit | None:
    """The room under a limit. `spare`: bytes that are left unused, if anything is used."""
    if not bytes_max:
        return None
    text = f"over {whose} of {show_bytes(bytes_max)}, set at `{CONFIG_SECTION}.{name}` in the server's config file"
    left = coarse_room(bytes_max, used) - spare if used else bytes_max
    return RoomLimit(max(0, left), text)
