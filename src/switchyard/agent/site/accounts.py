"""Local accounts: the site's map from users to accounts, and which jobs the site allows. It knows no batch system.

A user who is not in the map is refused. The map is read again when it changes. While it cannot be read, no job is
submitted: the old map may name a user who has left.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from switchyard.agent.private_files import file_version, read_bounded
from switchyard.errors import Denied, Malformed, Unavailable
from switchyard.model.wire.decode import convert, load_yaml

ACCOUNTS_FILE_BYTES_MAX = 4 * 1024 * 1024  # about 100,000 users
ACCOUNTS_LISTED_MAX = 10_000
ListedName = Annotated[str, Meta(min_length=1, max_length=256)]
LocalName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*\$?(?!\n)$")]
SPOOL_FOLDER_ADVICE = "Give the agent a spool folder that nobody else can write to."
OTHER_USERS = "*"  # in the map: every user without a line
MAP_ADVICE = "A line `SWITCHYARD-USER: LOCAL-ACCOUNT` for each user; see docs/how-to/add-a-slurm-cluster.md."


class AccountSwitch(StrEnum):
    """How a job gets its account: by `--uid` of an agent that runs as root, or by sudo."""

    UID = "uid"
    SUDO = "sudo"


class AllowList(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may run here. A missing list allows all, an empty one nothing. Extra options must be listed."""

    users: Annotated[list[ListedName], Meta(max_length=ACCOUNTS_LISTED_MAX)] | None = None
    projects: Annotated[list[ListedName], Meta(max_length=ACCOUNTS_LISTED_MAX)] | None = None
    queues: Annotated[list[ListedName], Meta(max_length=ACCOUNTS_LISTED_MAX)] | None = None
    options: Annotated[list[ListedName], Meta(max_length=ACCOUNTS_LISTED_MAX)] = []

    def refusal(self, *, user: str, project: str, queue: str | None, options: Sequence[str] = ()) -> str:
        """Why the job may not run here; empty: it may. `options`: as written, e.g. `--nice=5`."""
        for noun, name, allowed in (
            ("user", user, self.users),
            ("project", project, self.projects),
            ("queue", queue, self.queues),
        ):
            if name is not None and allowed is not None and name not in allowed:
                return f"This site does not take jobs of the {noun} {name}."
        return self.options_refusal(options)

    def options_refusal(self, options: Sequence[str]) -> str:
        strange = [option for option in options if option.split("=", 1)[0] not in self.options]
        if strange:
            known = f"it allows {', '.join(self.options)}" if self.options else "it allows none"
            return f"This site does not allow the option {strange[0].split('=', 1)[0]}: {known}."
        return ""


@dataclass(frozen=True, slots=True)
class LocalAccount:
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def groups(self) -> list[int]:
        """All groups of the account."""
        return os.getgrouplist(self.name, self.gid)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


class AccountMap:
    """The map from users to local accounts. A line `*` is for every user without a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._users: dict[str, str] = {}
        self._read()

    def account_of(self, user: str) -> LocalAccount:
        """Raises Denied for a user who is not in the map, and Unavailable while the map cannot be read."""
        if file_version(self._path) != self._version:
            try:
                self._read()
            except Malformed as exc:
                raise Unavailable(f"Nobody's job is submitted: {exc.detail}", next_step=MAP_ADVICE) from exc
        name = self._users.get(user) or self._users.get(OTHER_USERS)
        if name is None:
            raise Denied(
                f"The user {user} has no account on this cluster.",
                next_step="Ask who runs the cluster to add you to the agent's map of accounts.",
            )
        return find_account(name)

    def shared(self) -> list[str]:
        """The accounts that several users share."""
        counts = Counter(self._users.values())
        several = {name for name, count in counts.items() if count > 1}
        return sorted(several | {name for user, name in self._users.items() if user == OTHER_USERS})

    def _read(self) -> None:
        version = file_version(self._path)
        self._users = read_account_map(self._path)
        self._version = version  # only now: a map that could not be read is tried again


def read_account_map(path: Path) -> dict[str, str]:
    """Read a map file. It must be writable only by root or the agent, since it decides who runs as whom."""
    body, status = read_bounded(path, ACCOUNTS_FILE_BYTES_MAX, advice=MAP_ADVICE)
    if status.st_mode & 0o022:
        raise Malformed(f"Others may write {path}.", next_step=f"chmod go-w {path}")
    if status.st_uid not in (0, os.geteuid()):
        raise Malformed(f"{path} belongs neither to root nor to the agent's account.", next_step=f"chown root {path}")
    accounts: dict[str, str] = convert(
        load_yaml(body, where=str(path)) or {}, dict[ListedName, LocalName], where=str(path)
    )
    if "root" in accounts.values():
        raise Malformed(f"{path}: nobody's jobs run as root.", next_step=MAP_ADVICE)
    return accounts


def find_account(name: str) -> LocalAccount:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        # The directory service may be down, so this may be temporary.
        raise Unavailable(f"This machine knows no account {name}.", next_step="Is the directory service up?") from None
    if entry.pw_uid == 0:
        raise Denied(f"The account {name} is root's: no job runs as root.", next_step=MAP_ADVICE)
    return LocalAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def sbatch_uid_options(account: LocalAccount) -> list[str]:
    """Options of sbatch. Without the group, a job submitted by root would run in root's group."""
    return [f"--uid={account.uid}", f"--gid={account.gid}"]


def sudo_prefix(account: LocalAccount, program: str) -> list[str]:
    """Words before a command. The program's path is absolute, as sudoers requires."""
    return ["sudo", "-n", "-u", account.name, "--", shutil.which(program) or program]


def share_folder(folder: Path, account: LocalAccount) -> None:
    """Let an account write into a folder of the agent. Only the account and the agent can read what it writes.

    An agent of root gives the folder to the account. Other agents add an access list for both.
    """
    if os.geteuid() == 0:
        _change_folder_owner(folder, account)
        return
    if account.uid == os.geteuid():
        return
    try:
        for name in ("system.posix_acl_access", "system.posix_acl_default"):
            os.setxattr(folder, name, _access_list(account.uid, os.geteuid()))
    except OSError as exc:
        raise Unavailable(
            f"{folder}: access lists cannot be set here ({exc.strerror}).",
            next_step="Give the agent a spool folder on a file system with POSIX access lists, or run it as root.",
        ) from exc


def _change_folder_owner(folder: Path, account: LocalAccount) -> None:
    """Give the folder to the account. A link in its place is not followed: another user may have put it there."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise Unavailable(
            f"{folder} is not a folder of the agent's: {exc.strerror}.", next_step=SPOOL_FOLDER_ADVICE
        ) from exc
    try:
        if os.fstat(number).st_uid not in (0, account.uid):
            raise Unavailable(f"{folder} is somebody else's.", next_step=SPOOL_FOLDER_ADVICE)
        os.fchown(number, account.uid, account.gid)
        os.fchmod(number, 0o700)
    finally:
        os.close(number)


def open_untrusted(path: Path, *, is_linked_ok: bool = False) -> BinaryIO:
    """Open a file in a folder where a job can write. The job may have put a link or a pipe there.

    Raises OSError for everything but a plain file; unless `is_linked_ok`, also for a file with a second name.
    """
    return os.fdopen(_open_plain(path, is_linked_ok=is_linked_ok)[0], "rb")


def read_untrusted(path: str, bytes_max: int) -> tuple[bytes, os.stat_result]:
    """Read the beginning of a file as `open_untrusted` opens it, and its status. For thousands of small files."""
    number, status = _open_plain(path, is_linked_ok=False)
    try:
        return os.read(number, bytes_max), status
    finally:
        os.close(number)


def _open_plain(path: Path | str, *, is_linked_ok: bool) -> tuple[int, os.stat_result]:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode) or (status.st_nlink != 1 and not is_linked_ok):
        os.close(number)
        raise PermissionError(errno.EPERM, "not a plain file of its own", str(path))
    return number, status


def _access_list(*uids: int) -> bytes:
    """An acl(5) in the kernel's form: version 2, then (tag, permissions, id) of owner, users, group, mask, others."""
    nobody, everything, nothing = 0xFFFFFFFF, 7, 0
    owner, user, group, mask, others = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = [(owner, everything, nobody)]
    entries += [(user, everything, uid) for uid in sorted(uids)]
    entries += [(group, nothing, nobody), (mask, everything, nobody), (others, nothing, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
