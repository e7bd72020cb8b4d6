"""References from jobs to trees: checked and stored with the job, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.file_storage import FileLimits, coarse_room, files_refusal
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_trees
from switchyard.store.files.file_trees import OwnedTree, TreeRow


def refuse_project_over_limit(
    tx: Tx, limits: FileLimits, project: str, tree: TreeRow, *, replaced_bytes: int = 0
) -> None:
    """Refuse a tree that a project has no room for. A tree that its jobs need already costs nothing more.

    `replaced_bytes`: of a tree that this one takes the place of.
    """
    if not limits.project_bytes or file_trees.project_has(tx, project, tree.root):
        return
    used = file_trees.project_usage(tx, project)[0] - replaced_bytes
    if used + tree.size > limits.project_bytes:
        why = f"the files of project {project} take {show_bytes(used)}, and this tree takes {show_bytes(tree.size)}"
        raise files_refusal("project_bytes", limits.project_bytes, why)


def refuse_outputs_over_limit(tx: Tx, limits: FileLimits, project: str, new_bytes: int, *, replaced_bytes: int) -> None:
    """The same for output files, which an agent names. It is not told whether the project has them, nor how much else.

    `new_bytes`: of what the attempt has not named before.
    """
    used = file_trees.project_usage(tx, project)[0] - replaced_bytes if limits.project_bytes else 0
    if limits.project_bytes and new_bytes > coarse_room(limits.project_bytes, used):
        why = f"project {project} has no room for these {show_bytes(new_bytes)}"
        raise files_refusal("project_bytes", limits.project_bytes, why)


def owned_trees(tx: Tx, pairs: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], OwnedTree]:
    """The sealed trees of these users; they stay until the commit."""
    wanted = set(pairs)
    return file_trees.trees_for_jobs(tx, wanted) if wanted else {}
