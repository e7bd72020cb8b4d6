"""Opens the store that the configuration names. It reads no environment: the caller gives the credentials."""

from __future__ import annotations

from pathlib import Path

from switchyard.storage.folder_store import FolderStore
from switchyard.storage.object_store import ObjectStore, StorageOptions


def open_store(options: StorageOptions, *, data: Path) -> ObjectStore:
    """The store, ready for use. `data`: the server's folder.

    A folder that cannot be written raises Unavailable. An object store is not asked: it may be away for a while.
    """
    if options.scheme:
        from switchyard.storage.bucket_store import open_bucket  # obstore is an extra, and takes 30 ms to import

        return open_bucket(options)
    store = FolderStore(data / Path(options.url).expanduser())
    store.prepare()
    return store
