"""The config section `storage`: where the bytes of files are kept, its mistakes, and the store that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.plugins import PluginGroup
from switchyard.storage.folder_store import FolderStore
from switchyard.storage.object_store import ObjectStore, StorageOptions, StoreKind

STORE_KINDS = PluginGroup("switchyard.object_stores", "object store")  # beside folders
Text = Annotated[str, Meta(max_length=2048)]


class StorageSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bytes of files are kept: a folder, relative to the server's data, or a bucket of an object store.

    With `direct`, users and agents read large objects of a bucket by signed addresses, each valid for `signed_s`
    seconds, and upload them to S3 in the same way. All other uploads pass through the server.
    """

    url: Annotated[str, Meta(min_length=1, max_length=1024)] = "files"  # or s3://bucket/prefix, gs://…, az://…
    endpoint: Text = ""  # of a service that is not the provider's own: https://host:port
    region: Annotated[str, Meta(max_length=64, pattern="^[a-z0-9-]*(?!\n)$")] = ""
    credentials_file: Text = ""  # else the environment
    allow_http: bool = False
    direct: bool = True  # large objects go straight between the object store and users and agents
    signed_s: Annotated[int, Meta(ge=10, le=7 * 24 * 3600)] = 900  # how long a signed address holds
    timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0  # of one request
    retries: Annotated[int, Meta(ge=0, le=10)] = 3  # of one request

    @property
    def is_folder(self) -> bool:
        return "://" not in self.url


def read_storage(
    section: StorageSection, *, environment: Mapping[str, str], folder: Path
) -> tuple[StorageOptions, list[str]]:
    """The options of the store, and the mistakes. `folder`: of the config file, for a relative credentials_file."""
    options = StorageOptions(
        url=section.url,
        endpoint=section.endpoint,
        region=section.region,
        allow_http=section.allow_http,
        is_direct=section.direct,
        timeout_s=section.timeout_s,
        retries=section.retries,
    )
    if section.is_folder:
        mistakes = _folder_mistakes(section)
    elif options.scheme in STORE_KINDS.names():
        file = folder / Path(section.credentials_file).expanduser() if section.credentials_file else None
        kind = store_kind(options.scheme)
        options, mistakes = kind.read_options(options, credentials_file=file, environment=environment)
    else:
        known = ", ".join(f"{name}://" for name in STORE_KINDS.names())
        mistakes = [f"url: {options.scheme}:// is not known; there are {known}, or a folder"]
    return options, [f"storage.{mistake}" for mistake in mistakes]


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


def _folder_mistakes(section: StorageSection) -> list[str]:
    bucket_keys = ("endpoint", "region", "credentials_file", "allow_http")
    return [f"{key}: is for an object store, and the url is a folder" for key in bucket_keys if getattr(section, key)]
