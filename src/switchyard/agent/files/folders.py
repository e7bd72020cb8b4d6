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
    section = site.cluster_section(kind)
    work = section.work_folder(directory) if section is not None else directory
    return FilesFolders(directory / "files" / "cache", work / "work")
