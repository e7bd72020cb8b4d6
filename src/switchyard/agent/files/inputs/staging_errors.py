"""Why the input files of an attempt cannot be staged: for good, or for now."""

from __future__ import annotations

from switchyard.errors import Conflict, Unavailable


class FilesUnusable(Conflict):
    """The files of the job cannot be staged; trying again does not help."""


class FilesTooLarge(FilesUnusable):
    """The files of the job never fit the agent's disk."""


class NoRoomNow(Unavailable):
    """The files of the job do not fit the agent's disk now; they may fit when other jobs have ended."""


class ObjectLost(Unavailable):
    """The store has lost an object of the job's files. The next upload of the same files brings it back.

    `root`: of the tree that the object was asked for.
    """

    def __init__(self, digest: bytes, *, root: bytes, name: str = "") -> None:
        of_file = f" of {name!r}" if name else ""
        super().__init__(
            f"the object {digest.hex()[:12]}{of_file} is missing from the store; send the files again, with the same "
            "`yard submit`"
        )
        self.digest, self.root, self.name = digest, root, name

    def of_file(self, name: str) -> ObjectLost:
        return ObjectLost(self.digest, root=self.root, name=name)


class StagingOver(Unavailable):
    """The attempt is not wanted any more, or the agent ends."""
