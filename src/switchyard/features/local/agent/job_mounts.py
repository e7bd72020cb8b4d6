"""Mounts folders of a job's folder where the job's account cannot change them. Part of the supervisor's program.

A container sees folders of the job's folder under other paths, too (`mounts` of the job's files). A runtime that runs
as root follows links in the path of such a folder, and any process of the job's account can put a link there at any
time. So a supervisor of root opens the folder step by step without following links, and mounts it (bind) in a folder
of the agent's. The runtime gets the path of that mount.

The mounts of a job are in one folder, and nothing else is in it: it is emptied by unmounting alone. To remove it with
all in it would remove the job's files.
"""

# pathlib and contextlib would double the imports of a process that starts once per job.
# ruff: noqa: PTH102, PTH103, PTH106, PTH120, PTH121, PTH208

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    import ctypes

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MS_BIND = 0x1000
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
NO_MOUNT_ERRNOS = (errno.EINVAL, errno.ENOENT)  # of an unmount: nothing is mounted there


class MountRefused(Exception):
    """A folder cannot be mounted; the text says why."""


def volume_options(start: dict[bytes, list[bytes]]) -> list[bytes]:
    """Options of podman and docker for the folders that the start file names. Raises MountRefused and OSError."""
    top, place = start[b"mount_from"][0], start[b"mount_at"][0]
    is_root = os.geteuid() == 0
    if is_root:
        _check_namespace(start[b"arg"][0])
        release_mounts(place)
        for folder in (os.path.dirname(place), place):
            os.makedirs(folder, 0o700, exist_ok=True)
    options = []
    for number, word in enumerate(start[b"mount"]):
        inner, _, path = word.partition(b":")
        source = top + b"/" + inner
        folder_number = open_folder(top, inner)
        try:
            if is_root:
                source = b"%s/%d" % (place, number)
                os.mkdir(source, 0o700)
                _bind(folder_number, source)
        finally:
            os.close(folder_number)
        options += [b"--volume", source + b":" + path + b":rw"]
    return options


def open_folder(top: bytes, inner: bytes) -> int:
    """Open a folder below `top`. Raises MountRefused if a step of the path is a link, no folder, or missing."""
    number = os.open(top, FOLDER_FLAGS)
    for name in inner.split(b"/"):
        try:
            below = os.open(name, FOLDER_FLAGS, dir_fd=number)
        except OSError as exc:
            shown = inner.decode(errors="replace")
            raise MountRefused(
                f"the folder {shown} of `mounts` cannot be mounted: in the job's folder it must be a folder, "
                f"and no link may be on the way to it ({exc.strerror})"
            ) from exc
        finally:
            os.close(number)
        number = below
    return number


def release_mounts(place: bytes) -> bool:
    """Unmount the folders of a job, if there are any. False: one of them stays."""
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return True
    libc = _libc()
    is_released = True
    for name in names:
        path = place + b"/" + name
        while libc.umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0:
            pass
        is_released = is_released and _errno() in NO_MOUNT_ERRNOS and _is_removed(path)
    return is_released and _is_removed(place)


def _is_removed(folder: bytes) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _bind(number: int, target: bytes) -> None:
    if _libc().mount(b"/proc/self/fd/%d" % number, target, None, MS_BIND, None) != 0:
        raise MountRefused(f"the agent cannot mount a folder of the job: {os.strerror(_errno())}")


def _check_namespace(program: bytes) -> None:
    """docker's daemon mounts by itself: it must see what is mounted here."""
    if program == b"docker" and not os.path.samefile("/proc/self/ns/mnt", "/proc/1/ns/mnt"):
        raise MountRefused(
            "docker does not see folders that this agent mounts, since the agent's service has a mount namespace of "
            "its own; run images with `mounts` by podman, or the agent without `ProtectSystem` and its like"
        )


def _libc() -> ctypes.CDLL:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p]
    libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return libc


def _errno() -> int:
    import ctypes

    return ctypes.get_errno()
