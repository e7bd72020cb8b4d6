"""The contract of every store of objects. An object is a chunk or a tree of `model/files/file_tree.py`, at most 16 MiB.

All calls are sync and safe on many threads. A store that cannot serve now raises `Unavailable` with the reason; the
address of the store and the reason of the operating system are in its notes, which only an operator reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from switchyard.model.files.file_tree import HASH_BYTES, TREE_BYTES_MAX, hash_of
from switchyard.model.files.files import SignedUpload

OBJECT_BYTES_MAX = TREE_BYTES_MAX  # a tree is the largest object


class ObjectMissing(Exception):
    """The store does not have this object."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(f"the store has no object {digest.hex()}")
        self.digest = digest


class ObjectDamaged(Exception):
    """The bytes do not have the hash that they are stored under, or that they came with."""

    def __init__(self, digest: bytes, why: str) -> None:
        super().__init__(f"the object {digest.hex()} is damaged: {why}")
        self.digest = digest


class StoredObject(NamedTuple):
    """One object in the listing of a store."""

    digest: bytes
    size: int
    modified_us: int  # in the clock of the store, which is not the clock of the database


class ObjectStore(Protocol):
    """Objects by their SHA-256. Equal bytes are stored once, so two writers of one object cannot disagree."""

    def put(self, digest: bytes, data: bytes) -> None:
        """Store an object. Afterwards it survives a power cut; after a failure there is all of it or nothing.

        An object that is stored already stays; a damaged one is replaced. Raises ObjectDamaged if the bytes have
        another hash.
        """
        ...

    def put_many(self, objects: Iterable[tuple[bytes, bytes]], *, are_checked: bool = False) -> None:
        """The same for many objects, several at a time. After a failure any part of them may be stored.

        `are_checked`: the caller has compared each hash with the bytes, so the store does not hash them again.
        """
        ...

    def free_bytes(self) -> int | None:
        """How many bytes more it takes. None: not known, or without a bound."""
        ...

    def get(self, digest: bytes) -> bytes:
        """The bytes of an object, checked. Raises ObjectMissing or ObjectDamaged."""
        ...

    def get_many(self, digests: Iterable[bytes]) -> Iterator[bytes | ObjectMissing | ObjectDamaged]:
        """The bytes of each object or what is wrong with it, in order. A few objects are in memory at a time."""
        ...

    def has(self, digests: Iterable[bytes]) -> set[bytes]:
        """Which of these objects are stored. Their bytes are not checked."""
        ...

    def delete(self, digests: Iterable[bytes]) -> None:
        """Remove objects. An object that is not there is no mistake."""
        ...

    def list(self, after: bytes = b"") -> Iterator[StoredObject]:
        """All objects behind this hash, by hash. Objects that come or go meanwhile may be missing from it."""
        ...

    def signed_get(self, digest: bytes, *, valid_s: int) -> str | None:
        """An address that reads this object alone, for so long. None: the store has no such addresses."""
        ...

    def signed_put(self, sender: str, digest: bytes, size: int, *, valid_s: int) -> SignedUpload | None:
        """An address that takes this object alone, for so long. `accept` then makes it an object of the store.

        None: the store has no such addresses, or does not bind them to the content.
        """
        ...

    def accept(self, sender: str, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Store objects that this sender has uploaded to its signed addresses. Returns their sizes.

        Objects that are not in the answer were not uploaded by this sender. What was uploaded stays beside the new
        objects until `drop_incoming`, so a caller that failed in between may ask again.
        """
        ...

    def drop_incoming(self, sender: str, digests: Iterable[bytes]) -> None:
        """Remove what this sender has uploaded, after it was accepted."""
        ...

    def drop_abandoned(self, *, before_us: int, limit: int) -> int:
        """Remove uploads that are older than this, in the clock of the store, at most so many. Returns how many."""
        ...

    def check(self) -> None:
        """Write, read and remove something. Raises Unavailable with the reason if the store cannot be used."""
        ...


def check_content(digest: bytes, data: bytes) -> None:
    """Raise ObjectDamaged if the bytes have another hash."""
    actual = hash_of(data)
    if actual != digest:
        raise ObjectDamaged(digest, f"its {len(data)} bytes have the SHA-256 {actual.hex()}")


def read_one(store: ObjectStore, digest: bytes) -> bytes | ObjectMissing | ObjectDamaged:
    """An object, or what is wrong with it, as a value."""
    try:
        return store.get(digest)
    except (ObjectMissing, ObjectDamaged) as problem:
        return problem


def digest_of_name(name: str) -> bytes | None:
    """The hash that a name of 64 hex digits stands for. None: the name is no object's."""
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        return None
    return digest if len(digest) == HASH_BYTES and digest.hex() == name else None


@dataclass(frozen=True)
class StorageOptions:
    """Where objects are kept, and how to get there."""

    url: str = "files"  # a folder, relative to the server's data; or s3://bucket/prefix, gs://…, az://…
    endpoint: str = ""  # of a service that is not the provider's own
    region: str = ""
    allow_http: bool = False
    is_direct: bool = True  # clients and agents get signed addresses
    timeout_s: float = 30.0  # of one request
    retries: int = 3  # of one request; with the waits between them
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)  # by the provider's variable; never shown

    @property
    def scheme(self) -> str:
        """`s3`, `gs`, `az`; empty for a folder."""
        return self.url.partition("://")[0] if "://" in self.url else ""

    @property
    def bucket(self) -> str:
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def prefix(self) -> str:
        """Without slashes around it."""
        return self.url.partition("://")[2].partition("/")[2].strip("/")


class StoreKind(Protocol):
    """Stores beside folders: a class without arguments, by the scheme of their addresses (`storage_section.py`)."""

    def read_options(
        self, options: StorageOptions, *, credentials_file: Path | None, environment: Mapping[str, str]
    ) -> tuple[StorageOptions, list[str]]:
        """The options with their credentials, and the mistakes, each with the config's key before it."""
        ...

    def open(self, options: StorageOptions) -> ObjectStore:
        """The store of options without mistakes. It is not asked yet: it may be away for a while."""
        ...
