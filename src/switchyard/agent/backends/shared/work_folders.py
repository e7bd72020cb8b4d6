"""Folders in which attempts with files run, one for each attempt, below one root."""

from __future__ import annotations

from pathlib import Path

from switchyard.agent.backends import WorkFolder, marker_of
from switchyard.agent.site.accounts import LocalAccount
from switchyard.errors import Unavailable
from switchyard.model.cluster.poll import Lease

JOB_FOLDER = "work"  # the job's, in the attempt's folder, which is the agent's
UNENTERED_TEXT = "its node could not enter its working directory: the command did not run"


class WorkFolders:
    """`is_for_others`: jobs of other accounts pass through the root."""

    def __init__(self, root: Path, *, is_for_others: bool) -> None:
        self.root = root
        self._is_for_others = is_for_others

    def of(self, lease: Lease, account: LocalAccount | None) -> WorkFolder:
        self._make_root()
        return WorkFolder(self.root / marker_of(lease) / JOB_FOLDER, account)

    def path_of(self, lease: Lease) -> Path:
        return self.root / marker_of(lease) / JOB_FOLDER

    def _make_root(self) -> None:
        try:
            make_root(self.root, is_for_others=self._is_for_others)
        except OSError as exc:
            raise Unavailable(
                f"The folder {self.root} for jobs with files cannot be made: {exc.strerror}.",
                next_step="Name another one in the site file: `files: {folder: DIR}`.",
            ) from exc


def make_root(root: Path, *, is_for_others: bool) -> None:
    """Make the folder above those of jobs. `is_for_others`: jobs of other accounts pass through what is made."""
    new = [folder for folder in (*reversed(root.parents), root) if not folder.exists()]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in new if is_for_others else ():
        folder.chmod(0o711)  # independent of the umask; others cannot list it
