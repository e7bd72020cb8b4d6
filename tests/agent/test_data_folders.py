"""Folders for data of executions, on a cluster whose jobs run under accounts of their own."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from switchyard.agent.site.accounts import LocalAccount
from switchyard.agent.site.data_folders import make_data_folder
from switchyard.agent.site.site import site_type
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import EXECUTION_LABEL
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobSpec
from switchyard.model.job.site_needs import SiteNeeds

ANN, BOB = LocalAccount("ann", 54_001, 54_001, "/"), LocalAccount("bob", 54_002, 54_002, "/")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to other accounts")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for data, which accounts can pass through. They cannot pass through pytest's folders."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def make(place: Path, account: LocalAccount | None, execution: str | None, data: str = "") -> None:
    site = msgspec.convert({"data": {"folder": str(place)}}, site_type())
    spec = JobSpec(["true"], files=JobFiles(), site=SiteNeeds(data=data or str(place)))
    labels = {} if execution is None else {EXECUTION_LABEL: execution}
    lease = Lease(job="J", attempt=1, fence=1, name="n", owner="o", project="kit", domain="d", labels=labels, spec=spec)
    make_data_folder(lease, site, account)


def owner_and_mode(folder: Path) -> tuple[int, int]:
    status = folder.lstat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


def as_account(account: LocalAccount, script: str) -> int:
    done = subprocess.run(["/bin/sh", "-c", script], user=account.uid, group=account.gid, extra_groups=[], check=False)
    return done.returncode


def test_each_execution_has_a_folder_of_its_own_account(place: Path) -> None:
    for account, name in ((ANN, "first"), (BOB, "second"), (ANN, "third"), (ANN, "first")):
        make(place, account, name)
    assert owner_and_mode(place / "kit") == (0, 0o711)
    assert owner_and_mode(place / "kit/d") == (0, 0o711)
    assert owner_and_mode(place / "kit/d/first") == (ANN.uid, 0o700)
    assert owner_and_mode(place / "kit/d/second") == (BOB.uid, 0o700)
    mine, theirs = place / "kit/d/first", place / "kit/d/second"
    assert as_account(ANN, f"mkdir -p {mine}/n0-0/J-1 && echo x > {mine}/n0-0/J-1/x && cat {mine}/n0-0/J-1/x") == 0
    for script in (
        f"ls {theirs}",
        f"touch {theirs}/x",
        f"mkdir {place}/kit/d/taken",
        f"rm -r {mine}",
        f"mkdir {place}/x",
    ):
        assert as_account(ANN, f"{script} 2>/dev/null") != 0, script


def test_without_accounts_or_an_execution_nothing_is_made(place: Path) -> None:
    make(place, None, "first")
    make(place, ANN, None)
    make(place, ANN, "first", data="s3://bucket/x")
    make(place, ANN, "first", data=f"{place}-else")
    assert list(place.iterdir()) == []


def test_a_prefix_below_the_folder_of_the_project(place: Path) -> None:
    make(place, ANN, "first", data=f"{place}/kit/mine/")
    assert owner_and_mode(place / "kit/mine/kit/d") == (0, 0o711)
    assert owner_and_mode(place / "kit/mine/kit/d/first") == (ANN.uid, 0o700)
    make(place, ANN, "second", data=f"{place}/kit/mine/kit/d/first")  # the account can make the rest itself
    assert list((place / "kit/mine/kit/d/first").iterdir()) == []
    with pytest.raises(PolicyRefused, match="belongs to the account 54001"):
        make(place, BOB, "second", data=f"{place}/kit/mine/kit/d/first")


def test_an_execution_gets_no_folder_that_others_have_data_below(place: Path) -> None:
    make(place, ANN, "first", data=f"{place}/kit/d/mine")
    with pytest.raises(PolicyRefused, match="has data of other executions"):
        make(place, BOB, "mine")
    assert owner_and_mode(place / "kit/d/mine") == (0, 0o711)


@pytest.mark.parametrize("taken", ["kit", "kit/d", "kit/d/first"])
def test_a_folder_of_another_account_is_neither_used_nor_changed(place: Path, taken: str) -> None:
    (place / taken).mkdir(parents=True)
    os.chown(place / taken, BOB.uid, BOB.gid)
    (place / taken).chmod(0o777)
    with pytest.raises(PolicyRefused, match=f"/{taken} belongs to the account 54002"):
        make(place, ANN, "first")
    assert owner_and_mode(place / taken) == (BOB.uid, 0o777)
    assert list((place / taken).iterdir()) == []


@pytest.mark.parametrize("taken", ["kit", "kit/d", "kit/d/first"])
def test_links_are_not_followed(place: Path, tmp_path: Path, taken: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (place / taken).parent.mkdir(parents=True, exist_ok=True)
    (place / taken).symlink_to(target)
    with pytest.raises(PolicyRefused, match=f"cannot make the folder for data .*/{taken}: "):
        make(place, ANN, "first")
    assert list(target.iterdir()) == []
    assert target.stat().st_uid == 0


def test_folders_that_a_killed_agent_left_are_settled(place: Path) -> None:
    (place / "kit").mkdir(mode=0o700)
    make(place, ANN, "first")
    (place / "kit/d/second").mkdir(mode=0o700)
    make(place, BOB, "second")
    assert owner_and_mode(place / "kit") == (0, 0o711)
    assert owner_and_mode(place / "kit/d/second") == (BOB.uid, 0o700)


def test_a_folder_that_every_account_can_change_is_refused(place: Path) -> None:
    (place / "kit").mkdir()
    (place / "kit").chmod(0o777)
    with pytest.raises(PolicyRefused, match=r"Every account can change .*/kit"):
        make(place, ANN, "first")
    (place / "kit").chmod(0o1777)
    make(place, ANN, "first")
    assert owner_and_mode(place / "kit") == (0, 0o1777)


def test_bad_names_and_a_place_that_is_missing(place: Path) -> None:
    for name in ("..", "", "a/b"):
        with pytest.raises(PolicyRefused, match="cannot be the name of a folder"):
            make(place, ANN, name)
    with pytest.raises(PolicyRefused, match="No such file or directory"):
        make(place / "absent", ANN, "first")
