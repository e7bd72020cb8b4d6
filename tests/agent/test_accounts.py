"""As whom a job runs: the map is the site's word, read as it changes, and nothing is guessed where it is silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.site.accounts import (
    ACCOUNTS_FILE_BYTES_MAX,
    AccountMap,
    AllowList,
    LocalAccount,
    _change_folder_owner,
    find_account,
    open_untrusted,
    sbatch_uid_options,
    share_folder,
    sudo_prefix,
)
from switchyard.errors import Denied, Malformed, Unavailable


def write(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o644)
    os.replace(new, file)  # noqa: PTH105 - as a careful site does it: the change is seen whatever the clock's grain


def test_the_map_is_followed_as_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "accounts.yaml"
    write(file, "ada: nobody\n'grace@example.org': daemon\n")
    accounts = AccountMap(file)
    assert accounts.account_of("ada") == find_account("nobody")
    assert accounts.account_of("grace@example.org").name == "daemon"
    with pytest.raises(Denied, match="mallory has no account"):
        accounts.account_of("mallory")
    write(file, "mallory: nobody\n")
    assert accounts.account_of("mallory").name == "nobody"
    with pytest.raises(Denied):
        accounts.account_of("ada")  # who left the map is out at once


@pytest.mark.parametrize("text", ["ada: [", "ada: {a: 1}", "", None], ids=["broken", "nested", "empty", "missing"])
def test_while_the_map_cannot_be_read_nobody_runs(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "accounts.yaml"
    write(file, "ada: nobody\n")
    accounts = AccountMap(file)
    if text is None:
        file.unlink()
    else:
        write(file, text)
    for _ in range(2):  # it is not forgotten after the first look
        with pytest.raises(Denied if text == "" else Unavailable):
            accounts.account_of("ada")
    write(file, "ada: nobody\n")
    assert accounts.account_of("ada").name == "nobody"


BAD = ["[ada]", "ada", "ada: 7", "ada: ''", "ada: 'a b'", "ada: -x", "ada: root", "ada: x\nada: y", "ada: null"]


@pytest.mark.parametrize("text", [*BAD, "#" * (ACCOUNTS_FILE_BYTES_MAX + 1)], ids=[*BAD, "too long"])
def test_a_wrong_map_stops_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "accounts.yaml"
    write(file, text)
    with pytest.raises(Malformed):
        AccountMap(file)


def test_a_map_that_others_may_write_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "accounts.yaml"
    write(file, "ada: nobody\n")
    file.chmod(0o664)
    with pytest.raises(Malformed, match="Others may write"):
        AccountMap(file)


def test_an_account_the_machine_does_not_know_waits_and_root_is_nobodys() -> None:
    with pytest.raises(Unavailable, match="no account no-such-one"):
        find_account("no-such-one")
    with pytest.raises(Denied, match="root"):
        find_account("root")


ALL = {"user": "ada", "project": "physics", "queue": "main"}


@pytest.mark.parametrize(
    ("allow", "asked", "reason"),
    [
        (AllowList(), ALL, ""),
        (AllowList(users=["ada"], projects=["physics"], queues=["main"]), ALL, ""),
        (AllowList(users=["grace"]), ALL, "This site does not take jobs of the user ada."),
        (AllowList(users=[]), ALL, "This site does not take jobs of the user ada."),
        (AllowList(projects=["biology"]), ALL, "This site does not take jobs of the project physics."),
        (AllowList(queues=["short"]), ALL, "This site does not take jobs of the queue main."),
        (AllowList(queues=["short"]), {**ALL, "queue": None}, ""),
        (AllowList(options=["--nice"]), {**ALL, "options": ["--nice=5"]}, ""),
        (AllowList(), {**ALL, "options": ["--nice"]}, "This site does not allow the option --nice: it allows none."),
        (
            AllowList(options=["--nice"]),
            {**ALL, "options": ["--nice=5", "--uid=0"]},
            "This site does not allow the option --uid: it allows --nice.",
        ),
        (
            AllowList(options=["--nice"]),
            {**ALL, "options": ["--nice5"]},
            "This site does not allow the option --nice5: it allows --nice.",
        ),
    ],
)
def test_what_a_site_allows(allow: AllowList, asked: dict[str, object], reason: str) -> None:
    assert allow.refusal(**asked) == reason  # type: ignore[arg-type]


def test_the_words_by_which_a_job_is_another_accounts() -> None:
    account = LocalAccount("ada", 1000, 1000, "/home/ada")
    assert sudo_prefix(account, "sh")[:5] == ["sudo", "-n", "-u", "ada", "--"]
    assert Path(sudo_prefix(account, "sh")[5]).is_absolute()
    assert sbatch_uid_options(account) == ["--uid=1000", "--gid=1000"]
    assert account.environment == {"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada"}


def test_a_folder_handed_over_is_the_accounts(tmp_path: Path) -> None:
    """As root it is given away; the other way is driven with two local accounts in the acceptance tests."""
    mine = (
        find_account("nobody") if os.geteuid() == 0 else LocalAccount("me", os.geteuid(), os.getegid(), str(tmp_path))
    )
    share_folder(tmp_path, mine)
    assert tmp_path.stat().st_uid == mine.uid


def test_a_link_in_the_place_of_a_folder_is_not_given_away(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(Unavailable, match="not a folder"):
        _change_folder_owner(tmp_path / "link", find_account("nobody"))
    theirs.mkdir()
    if os.geteuid() == 0:
        os.chown(theirs, 1, 1)
    with pytest.raises(Unavailable, match="somebody else's"):
        _change_folder_owner(theirs, find_account("nobody"))
    assert mine.stat().st_uid == os.geteuid()


def test_what_they_put_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    secret, plain, link, twin, pipe = (tmp_path / name for name in ("secret", "plain", "link", "twin", "pipe"))
    secret.write_text("not theirs to read")
    plain.write_text("theirs")
    link.symlink_to(secret)
    twin.hardlink_to(secret)
    os.mkfifo(pipe)
    with open_untrusted(plain) as file:
        assert file.read() == b"theirs"
    for path in (link, twin, pipe, tmp_path):
        with pytest.raises(OSError, match=r"."):
            open_untrusted(path)
