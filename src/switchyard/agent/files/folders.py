"""Where an agent keeps the cache of input files and the folders of jobs with files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.site.site import Site


@dataclass(frozen=True, slots=True)
class FilesFolders:
    """Where the agent keeps the cache, and below which folder jobs with files run."""

    cache: Path
    work: Path


def files_folders(site: Site, kind: str | None, directory: Path | None, cluster: str) -> FilesFolders | None:
    """Return the folders that the agent would use; None: it is not known where, as no agent's folder was given."""
    if site.files.folder:
        root = Path(site.files.folder) / cluster
        return FilesFolders(root / "cache", root / "work")
    if directory is None:
        return None
    work = directory
    if kind in ("slurm", "flux"):
        folder = site.slurm.folder if kind == "slurm" else site.flux.folder
        work = Path(folder) if folder else directory / "output"
    return FilesFolders(directory / "files" / "cache", work / "work")
