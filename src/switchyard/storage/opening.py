"""Opens the store that the configuration names. Kinds beside folders are entry points of `switchyard.object_stores`."""

from __future__ import annotations

from pathlib import Path

from switchyard.plugins import PluginGroup
from switchyard.storage.folder_store import FolderStore
from switchyard.storage.object_store import ObjectStore, StorageOptions, StoreKind

STORE_KINDS = PluginGroup("switchyard.object_stores", "object store")


def open_store(options: StorageOptions, *, data: Path) -> ObjectStore:
    """The store, ready for use. `data`: the server's folder.

    A folder that cannot be written raises Unavailable. An object store is not asked: it may be away for a while.
    """
    if options.scheme:
        return store_kind(options.scheme).open(options)
    store = FolderStore(data / Path(options.url).expanduser())
    store.prepare()
    return store


def store_kind(scheme: str) -> StoreKind:
    """The kind of the stores with such addresses. Raises UnknownName."""
    kind: StoreKind = STORE_KINDS.make(scheme)
    return kind
