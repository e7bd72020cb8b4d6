"""The folder of an execution below `data.folder`, on a cluster whose jobs run under accounts of their own.

An agent of root makes PLACE/PROJECT/DOMAIN/EXECUTION before a job starts. The folder of the execution belongs to the
job's account alone; those above it are root's, and accounts can only pass through them. Jobs that made these folders
themselves would own them: the first user of a project would then shut out all others. No link is followed.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import threading

from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.accounts import LocalAccount
from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import EXECUTION_LABEL
from switchyard.model.job.site_needs import is_below

PASSABLE, PRIVATE = 0o711, 0o700
_TOP_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLAGS = _TOP_FLAGS | os.O_NOFOLLOW
_LASTING_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_lock = threading.Lock()  # a folder that another thread has just made is not given to its account yet


def make_data_folder(lease: Lease, site: Site, account: LocalAccount | None) -> None:
    """Make the folder for data of the job's execution, unless it is there.

    Without accounts, and for data elsewhere, nothing is made. Raises PolicyRefused if another account has the place.
    """
    needs, top = spec_of(lease).site, site.data.folder
    execution = lease.labels.get(EXECUTION_LABEL)
    if account is None or os.geteuid() != 0 or needs is None or top is None or execution is None:
        return
    if not needs.data or not is_below(needs.data, top):
        return
    above = [name for name in needs.data.removeprefix(top.rstrip("/")).split("/") if name]
    names = [*above, lease.project, lease.domain, execution]
    odd = [name for name in names if name in ("", ".", "..") or "/" in name or "\0" in name]
    if odd:
        raise PolicyRefused(f"{odd[0]!r} cannot be the name of a folder for data.")
    path = top.rstrip("/")
    with _lock:
        number = -1
        try:
            number = os.open(top, _TOP_FLAGS)
            for at, name in enumerate(names):
                path = f"{path}/{name}"
                above_number, (number, is_new) = number, _enter(number, name)
                os.close(above_number)
                if os.fstat(number).st_uid == account.uid:
                    return  # the job itself can make what is below
                _settle(number, path, account, is_new=is_new, is_last=at == len(names) - 1)
        except OSError as exc:
            if exc.errno not in _LASTING_ERRNOS:
                raise
            raise PolicyRefused(f"The agent cannot make the folder for data {path}: {exc.strerror}.") from exc
        finally:
            if number >= 0:
                os.close(number)


def _enter(above: int, name: str) -> tuple[int, bool]:
    """Open a folder, and make it if it is missing. True: it was made."""
    is_new = True
    try:
        os.mkdir(name, PRIVATE, dir_fd=above)
    except FileExistsError:
        is_new = False
    return os.open(name, _FLAGS, dir_fd=above), is_new


def _settle(number: int, path: str, account: LocalAccount, *, is_new: bool, is_last: bool) -> None:
    """Give a folder of root's its owner and mode. Raises PolicyRefused for one that is not to be used."""
    status = os.fstat(number)
    mode = stat.S_IMODE(status.st_mode)
    # An agent that was killed right after it made a folder leaves it so.
    is_new = is_new or (mode == PRIVATE and not os.listdir(number))
    if status.st_uid != 0:
        advice = f"`chown root {path}` and `chmod 711 {path}` open it to all accounts"
        raise PolicyRefused(
            f"{path} belongs to the account {_account_name(status.st_uid)}, so the job cannot keep data there. "
            f"Who runs the cluster can change that: {'remove it' if is_last else advice}."
        )
    if is_last:
        if not is_new:
            raise PolicyRefused(f"{path} has data of other executions. Give this one another name.")
        os.fchown(number, account.uid, account.gid)
        os.fchmod(number, PRIVATE)
    elif is_new:
        os.fchmod(number, PASSABLE)
    elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise PolicyRefused(f"Every account can change {path}. Who runs the cluster can close it: `chmod 711 {path}`.")


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
