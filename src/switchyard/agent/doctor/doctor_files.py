"""The doctor's checks of the site's section `files`: the cache of input files, and the folders of jobs with files.

Folders that the agent would make are not made: the nearest folder above them that is there is tried. All that is
written is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from switchyard.agent.doctor.doctor_finding import Finding
from switchyard.agent.files.folders import FilesFolders
from switchyard.agent.files.inputs.folder_writer import FICLONE, NO_CLONE_ERRNOS
from switchyard.agent.files.inputs.room import nearest_folder
from switchyard.agent.loop.loop import FREE_BYTES_MIN
from switchyard.agent.site.site import Site
from switchyard.model.jobspec.quantity import show_bytes

PREFIX = "yard-doctor-"
FILES_FOLDER_ADVICE = "Name a folder that the agent may write in: `files: {folder: DIR}` in the site's file."
SHARED_ADVICE = (
    "Name a folder that the nodes see under the same path: `files: {folder: DIR}` or `slurm: {folder: DIR}` in the "
    "site's file."
)
NOT_FROM_HERE = "its agent reaches the cluster over ssh, so it gives jobs no files"
CONTENT = b"doctor" * 1000


def check_files(site: Site, kind: str | None, folders: FilesFolders | None) -> Iterator[Finding]:
    section = site.cluster_section(kind)
    if section is not None and section.is_elsewhere:
        advice = "An agent on a machine that sees the cluster's shared file system can."
        yield Finding("files", None, NOT_FROM_HERE, advice)
        return
    if folders is None:
        yield Finding("files", None, "no agent's folder was given", "Name it: --data DIR or --cluster NAME.")
        return
    try:
        with _trial_folder(folders.cache) as cache, _trial_folder(folders.work) as work:
            way = _try_copy(cache, work)
    except OSError as exc:
        yield Finding("files", False, f"{exc.filename or folders.cache}: {exc.strerror or exc}", FILES_FOLDER_ADVICE)
        return
    yield Finding("files", True, f"jobs with files run below {folders.work}; {way}")
    yield _space(site, folders)


@contextlib.contextmanager
def seen_by_nodes(folders: FilesFolders | None) -> Iterator[Path | None]:
    """A file that a job on a node sees if the jobs' folder is shared; None: it cannot be made."""
    with contextlib.ExitStack() as stack:
        marker = None
        if folders is not None:
            with contextlib.suppress(OSError):
                folder = stack.enter_context(_trial_folder(folders.work))
                folder.chmod(0o755)
                (folder / "marker").write_bytes(CONTENT)
                marker = folder / "marker"
        yield marker


def check_shared(site: Site, folders: FilesFolders, *, is_seen: bool | None) -> Finding:
    """Whether the nodes see the folders of jobs with files. `is_seen`: what the small job said; None: nothing."""
    if is_seen:
        return Finding("shared", True, f"a node sees {folders.work.parent}")
    if is_seen is None or site.accounts is not None:  # the account of the small job may not pass through the folder
        return Finding("shared", None, f"it is not known whether the nodes see {folders.work.parent}", SHARED_ADVICE)
    return Finding("shared", False, f"the node of the small job does not see {folders.work.parent}", SHARED_ADVICE)


@contextlib.contextmanager
def _trial_folder(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=nearest_folder(place)) as folder:
        yield Path(folder)


def _try_copy(cache: Path, work: Path) -> str:
    """Give a job's folder a file of the cache in the agent's way, and say how it went."""
    (cache / "content").write_bytes(CONTENT)
    with (cache / "content").open("rb") as source, (work / "content").open("wb") as target:
        try:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        except OSError as exc:
            if exc.errno not in NO_CLONE_ERRNOS:
                raise
        else:
            return "files of the cache are cloned, without a copy of their bytes"
    if cache.stat().st_dev != work.stat().st_dev:
        return "files of the cache are copied: it is on another file system"
    return "files of the cache are copied: this file system cannot clone them"


def _space(site: Site, folders: FilesFolders) -> Finding:
    """Compare the bound of the cache with the disk. A small disk is no fault: when it is full, the agent removes cached
    files."""
    bound, place = site.files.cache_bytes, nearest_folder(folders.cache)
    free, used = shutil.disk_usage(place).free, _cached_bytes(folders.cache)
    detail = f"{show_bytes(free)} free in {place}, {show_bytes(used)} cached, at most {show_bytes(bound)}"
    if free < FREE_BYTES_MIN:
        return Finding("cache", False, detail, "Make room, or name another folder: `files: {folder: DIR}`.")
    if free + used < bound:
        advice = "The cache can fill this disk. Give it less: `files: {cache: …}` in the site's file."
        return Finding("cache", None, detail, advice)
    return Finding("cache", True, detail)


def _cached_bytes(cache: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(entry.stat().st_blocks * 512 for entry in cache.glob("??/*") if entry.is_file())
    return 0
