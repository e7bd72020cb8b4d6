"""Which nodes left a deck: the page that flytekit writes about a task."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from switchyard.errors import YardError
from switchyard.features.flyte.service.executions.nodes.attempt_files import read_output_folders
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.workflow.tasks.task_command import OUTPUTS
from switchyard.model.files.file_tree import FileEntry
from switchyard.service.core.context import Context

DECK_NAME = "deck.html"
DECK = f"{OUTPUTS}/{DECK_NAME}"
ANSWERS_MAX = 10_000  # about 1 MiB. A root names its files by their hashes, so an answer never changes
_answers: dict[bytes, bool] = {}
_lock = Lock()


def nodes_with_deck(context: Context, execution_id: str, node_ids: Sequence[str]) -> set[str]:
    """The nodes whose last attempt left a deck. A store of files that is away is as if there were none."""
    with context.database.read() as tx:
        roots = execution_nodes.output_roots(tx, execution_id, node_ids)
    unknown = sorted({root for root in roots.values() if root not in _answers})
    try:
        found = _look(context, unknown) if unknown else {}
    except YardError:
        found = {}
    with _lock:
        if len(_answers) + len(found) > ANSWERS_MAX:
            _answers.clear()
        _answers.update(found)
    return {node_id for node_id, root in roots.items() if found.get(root) or _answers.get(root)}


def _look(context: Context, roots: Sequence[bytes]) -> dict[bytes, bool]:
    """Whether each root has a deck. Roots that cannot be read now are left out."""
    return {
        root: any(isinstance(entry, FileEntry) and entry.name == DECK_NAME.encode() for entry in entries)
        for root, entries in read_output_folders(context, roots).items()
    }
