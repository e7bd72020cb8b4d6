"""Under which account a job runs, and whether it is started: the map, root without a map, and what is shared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.site.accounts import AllowList, read_account_map
from switchyard.agent.site.job_accounts import JobAccounts, check_local_accounts, own_account_name
from switchyard.agent.site.site import AccountsSite, LocalSite, Site
from switchyard.errors import Denied, Malformed, PolicyRefused, Unavailable
from switchyard.features.local.agent.backend import LocalBackend
from switchyard.features.local.agent.launch import start_files
from switchyard.model.job.job import JobSpec
from tests.agent.builders import a_lease, a_setting

is_root = os.geteuid() == 0


def site_of(folder: Path, text: str) -> Site:
    file = folder / "accounts.yaml"
    file.write_text(text)
    file.chmod(0o644)
    return Site(accounts=AccountsSite(map=str(file)))


@pytest.mark.skipif(not is_root, reason="the rule is root's")
def test_root_without_a_map_starts_jobs_of_administrators_alone() -> None:
    accounts = JobAccounts(Site(), is_root_allowed=False)
    with pytest.raises(Denied, match="alice is none") as refused:
        accounts.account_of(a_lease("true"))
    assert not refused.value.transient
    assert accounts.account_of(replace(a_lease("true"), is_owner_admin=True)) is None
    assert JobAccounts(Site(), is_root_allowed=True).account_of(a_lease("true")) is None
    assert JobAccounts(Site(), is_root_allowed=False, is_elsewhere=True).account_of(a_lease("true")) is None


def test_a_star_stands_for_every_other_user(tmp_path: Path) -> None:
    accounts = JobAccounts(site_of(tmp_path, "ada: daemon\n'*': nobody\n"), is_root_allowed=False)
    lease = a_lease("true")
    found = [accounts.account_of(replace(lease, owner=owner)) for owner in ("ada", "grace", "alice")]
    assert [each.name for each in found if each is not None] == ["daemon", "nobody", "nobody"]


def test_sharing_is_said(tmp_path: Path) -> None:
    for text, shared in (
        ("ada: daemon\ngrace: nobody\n", ""),
        ("a: daemon\nb: daemon\n", "daemon"),
        ("'*': bin", "bin"),
    ):
        sharing = JobAccounts(site_of(tmp_path, text), is_root_allowed=False).sharing()
        assert shared in sharing.detail if sharing else not shared, text
    everybody = JobAccounts(Site(), is_root_allowed=True).sharing()
    assert everybody is not None
    assert own_account_name() in everybody.detail
    for word in ("credential", "journal", "environments"):
        assert word in everybody.detail


def test_a_map_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Its owner would say who becomes whom."""
    file = tmp_path / "accounts.yaml"
    file.write_text("ada: daemon\n")
    file.chmod(0o644)
    assert read_account_map(file) == {"ada": "daemon"}
    if is_root:
        os.chown(file, 1, 1)
        with pytest.raises(Malformed, match="belongs neither to root"):
            read_account_map(file)


def test_the_local_backend_does_not_go_by_sudo(tmp_path: Path) -> None:
    site = Site(accounts=AccountsSite(map="/m", way="sudo"))  # type: ignore[arg-type]
    with pytest.raises((Malformed, Unavailable)):
        check_local_accounts(site, tmp_path)


def test_what_the_site_does_not_take_is_not_started(tmp_path: Path) -> None:
    backend = LocalBackend(a_setting(tmp_path, site=Site(local=LocalSite(), allow=AllowList(users=["bob"]))))
    lease = a_lease("true")
    with pytest.raises(PolicyRefused, match="does not take jobs of the user alice"):
        backend.submit(lease)
    assert backend.state().running == 0
    assert backend.find(marker_of(lease)) is None
    backend.close()


@pytest.mark.parametrize("where", ["command", "env", "cwd"])
def test_no_word_of_a_job_begins_another_word(tmp_path: Path, where: str) -> None:
    """A NUL ends a word of the start file: what follows could be another account."""
    hostile = "x\0uid=1\0gid=1\0groups="
    fields: dict[str, Any] = {
        "command": ["true"],
        **{where: {"command": ["true", hostile], "env": {"A": hostile}, "cwd": hostile}[where]},
    }
    lease = replace(a_lease("true"), spec=JobSpec(**fields))
    with pytest.raises(PolicyRefused, match="NUL"):
        start_files(lease, tmp_path, a_setting(tmp_path), None, directory=tmp_path)
