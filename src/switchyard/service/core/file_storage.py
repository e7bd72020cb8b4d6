"""Where the files of jobs are kept, and how much of them: the object store, opened at its first use, and the limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from switchyard.errors import Busy, LimitReached, Unavailable
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.storage.object_store import ObjectStore
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_trees
from switchyard.store.files.file_trees import OwnedTree, TreeRow

GIB = 2**30
ROOM_STEPS = 256  # of a limit: an agent is told less than 1/128 of it too little
DAY_US = 86_400_000_000
ABANDONED_US = 3_600_000_000  # after the end of the address: clocks may differ, and an upload may be slow
SIGNED_FROM_BYTES = 256 * 2**10  # smaller objects cost less in one body with others than by an address each
CONFIG_SECTION = "files"  # of the server's config file


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much may be kept, and for how long. 0 bytes: no limit."""

    user_bytes: int = 100 * GIB  # of the objects that one user holds, each counted once
    project_bytes: int = 1024 * GIB  # of the trees that the jobs of a project need, each counted once
    tree_bytes: int = 100 * GIB  # of the files of one tree
    keep_us: int | None = 14 * DAY_US  # the files of a job, from its end on; None: as long as the job
    grace_us: int = DAY_US  # what no job needs, from its last use on

    @property
    def stale_us(self) -> int:
        """A use is stored again after this time. Half of the grace, so that a use always holds for the other half."""
        return self.grace_us // 2


class FileStorage:
    """The object store and its limits. A store that cannot be opened is tried again at the next use."""

    def __init__(
        self,
        open_store: Callable[[], ObjectStore] | None = None,
        limits: FileLimits | None = None,
        *,
        signed_s: int = 900,
    ) -> None:
        self._open_store = open_store
        self._store: ObjectStore | None = None
        self._lock = threading.Lock()
        self.limits = limits or FileLimits()
        self.signed_s = signed_s  # how long an address of an object holds
        self.grants = UploadGrants()
        self.releases = ReleasePace()

    @property
    def abandoned_us(self) -> int:
        """The age at which an upload by a signed address is removed if nobody said that it is done."""
        return self.signed_s * 1_000_000 + ABANDONED_US

    @property
    def store(self) -> ObjectStore:
        """Raises Unavailable with the reason."""
        with self._lock:
            if self._store is None:
                if self._open_store is None:
                    raise Unavailable("This server has no store for files.")
                self._store = self._open_store()
            return self._store


def coarse_room(limit: int, used: int) -> int:
    """How many bytes are left, as far as an agent may know: in steps, rounded down.

    An agent sees no other files of a job's owner. By the exact number it could tell whether the owner holds what it
    sends, for each content that it guesses. By steps it must first send a step of other bytes for each wrong guess.
    """
    step = -(-limit // ROOM_STEPS)
    return max(0, (limit - used) // step * step)


def show_period(period_us: int) -> str:
    """How long files are kept, in words."""
    hours = period_us // 3_600_000_000
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} hours" if hours else f"{period_us // 1_000_000} seconds"


def files_refusal(name: str, limit: int, why: str) -> LimitReached:
    """The error for files over a limit. It names the limit and where it is set."""
    error = LimitReached(
        f"The limit `{CONFIG_SECTION}.{name}` of {show_bytes(limit)} is reached: {why}. The section "
        f"`{CONFIG_SECTION}` of the server's config file sets it.",
        next_step="Wait until files of ended jobs are removed, send less, or ask an administrator to raise the limit.",
    )
    error.limit = f"{CONFIG_SECTION}.{name}"
    return error


PAUSE_FACTOR = 20  # a pause is so many times as long as the look before it
PAUSE_US_MAX = 60_000_000


class ReleasePace:
    """One look of a user at a time, and a pause after it. In memory: each server counts its own. Safe on threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking: set[str] = set()
        self._pause_end_us: dict[str, int] = {}

    @contextmanager
    def look(self, owner: str, steady_us: Callable[[], int]) -> Iterator[None]:
        """Raises Busy while another look of this user goes on, and in the pause after it."""
        began_us = steady_us()
        with self._lock:
            self._pause_end_us = {user: end_us for user, end_us in self._pause_end_us.items() if end_us > began_us}
            if owner in self._looking or owner in self._pause_end_us:
                raise Busy(
                    "The server has just looked for unused uploads of this user.",
                    next_step=f"Ask again in a few seconds, at most {PAUSE_US_MAX // 1_000_000}.",
                )
            self._looking.add(owner)
        try:
            yield
        finally:
            ended_us = steady_us()
            with self._lock:
                self._looking.discard(owner)
                self._pause_end_us[owner] = ended_us + min(PAUSE_US_MAX, PAUSE_FACTOR * (ended_us - began_us))


# Bytes that users may upload by signed addresses and that are not recorded yet. They count for the user's limit.
#
# It is in memory: each server counts the addresses that it gave out itself.


@dataclass
class _OpenUploads:
    """Of one user: size and end of each address, in the order of the ends."""

    uploads: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    size: int = 0

    def remove(self, digest: bytes) -> None:
        self.size -= self.uploads.pop(digest, (0, 0))[0]

    def expire(self, now_us: int) -> None:
        while self.uploads:
            digest, (_, end_us) = next(iter(self.uploads.items()))
            if end_us > now_us:
                return
            self.remove(digest)


class UploadGrants:
    """Safe on many threads. Times are of the steady clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, _OpenUploads] = {}

    def reserve(self, owner: str, sizes: Mapping[bytes, int], *, room: int, now_us: int, valid_us: int) -> int:
        """Count these uploads as open, if they fit into the room. Returns 0, or how many bytes are too many."""
        with self._lock:
            self._expire(now_us)
            mine = self._owners.get(owner, _OpenUploads())
            again = sum(mine.uploads[digest][0] for digest in sizes if digest in mine.uploads)
            excess = mine.size - again + sum(sizes.values()) - room
            if excess > 0:
                return excess
            self._owners[owner] = mine
            for digest, size in sizes.items():
                mine.remove(digest)
                mine.uploads[digest] = (size, now_us + valid_us)
                mine.size += size
            return 0

    def settle(self, owner: str, digests: Iterable[bytes]) -> None:
        """These uploads are recorded."""
        with self._lock:
            if mine := self._owners.get(owner):
                for digest in digests:
                    mine.remove(digest)

    def _expire(self, now_us: int) -> None:
        for owner, uploads in list(self._owners.items()):
            uploads.expire(now_us)
            if not uploads.uploads:
                del self._owners[owner]


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
