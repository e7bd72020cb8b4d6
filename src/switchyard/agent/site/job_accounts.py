"""Under which local account a job runs, and whether the agent starts it at all. One rule for every backend.

With an account map, a job runs under its owner's account, and users without an account are refused. Without a map it
runs under the agent's account. An agent that runs as root then starts only jobs of platform administrators, unless it
has `--allow-root`: every job would run as root.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.site.accounts import AccountMap, AccountSwitch, LocalAccount
from switchyard.agent.site.site import Site
from switchyard.errors import Denied, Malformed, Unavailable
from switchyard.model.cluster.poll import Lease

ACCOUNT_MAP_ADVICE = (
    "Give users accounts of their own: `accounts: {map: FILE}` in the site file. The agent is then root, or submits to "
    "Slurm by sudo."
)
SHARED_REACH = (
    "read and change the agent's credential, journal and keys, and the folders, output and environments of other jobs"
)


@dataclass(frozen=True, slots=True)
class AccountSharing:
    """What jobs share with the agent or with each other: `event` is for the log, `detail` for people."""

    event: str
    detail: str
    advice: str


class JobAccounts:
    """The decision for one agent. `is_elsewhere`: jobs run under the account that ssh logs in to."""

    def __init__(self, site: Site, *, is_root_allowed: bool, is_elsewhere: bool = False) -> None:
        self._map = AccountMap(Path(site.accounts.map)) if site.accounts else None
        self._is_root_allowed = is_root_allowed
        self._is_root = os.geteuid() == 0 and not is_elsewhere

    def account_of(self, lease: Lease) -> LocalAccount | None:
        """The account of a job; None: the agent's. Raises Denied if the job may not run here."""
        if self._map is not None:
            return self._map.account_of(lease.owner)
        if self._is_root and not self._is_root_allowed and not lease.is_owner_admin:
            raise Denied(
                "This agent runs as root and has no account map, so it starts jobs of platform administrators alone; "
                f"{lease.owner} is none. Who runs the agent can set `accounts: {{map: FILE}}` in its site file "
                "(--config), or start it with --allow-root."
            )
        return None

    def sharing(self) -> AccountSharing | None:
        """What to warn of at the start; None: every user has a separate account."""
        if self._map is not None:
            shared = self._map.shared()
            if not shared:
                return None
            detail = f"several users share the account {', '.join(shared)}: their jobs can read and change each other's"
            return AccountSharing(
                "shared-job-account", detail, "Give each user an account of their own in the account map."
            )
        if not self._is_root:
            detail = f"every job runs under the agent's own account {own_account_name()}: a job can {SHARED_REACH}"
            return AccountSharing("shared-account", detail, ACCOUNT_MAP_ADVICE)
        if self._is_root_allowed:
            detail = (
                f"everybody's jobs run as root (--allow-root): a job can change this machine, and can {SHARED_REACH}"
            )
            return AccountSharing("shared-account", detail, ACCOUNT_MAP_ADVICE)
        detail = (
            "the agent runs as root without an account map: it starts jobs of platform administrators alone, as root"
        )
        return AccountSharing("root-without-map", detail, ACCOUNT_MAP_ADVICE)


def own_account_name() -> str:
    """The name of the agent's account, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def check_local_accounts(site: Site, directory: Path) -> None:
    """Raise unless jobs can start here under the accounts of the map. Opens the data folder for passing through."""
    if site.accounts is None:
        return
    if site.accounts.way is not AccountSwitch.UID:
        raise Malformed(
            "The local backend starts jobs under other accounts as root, not by sudo.",
            next_step="Say `accounts: {way: uid}`, and run the agent as root.",
        )
    if os.geteuid() != 0:
        raise Unavailable(
            f"The site maps users to accounts, and this agent runs as {own_account_name()}, "
            "which cannot start jobs as others.",
            next_step="Run the agent as root, or leave `accounts` out: all jobs then run under its own account.",
        )
    for folder in (directory, directory / "jobs"):
        folder.chmod(0o711)  # accounts can pass through, not list; the agent's files in it are private
    closed = next((folder for folder in reversed(directory.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)
    if closed is not None:
        raise Unavailable(
            f"Jobs under other accounts cannot reach {directory}: {closed} is closed to them.",
            next_step="Give --data a folder that every account can pass through, such as /var/lib/switchyard/CLUSTER.",
        )
