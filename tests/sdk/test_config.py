"""The user's file and environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from switchyard import errors
from switchyard.model.job.job import ClusterToken
from switchyard.sdk.transport import config
from switchyard.sdk.transport.config import (
    URL_DEFAULT,
    SavedSubmitToken,
    UserFile,
    load_user_file,
    resolve_settings,
    save_user_file,
)

FULL = UserFile(
    url="https://yard.example.org",
    tokens={"https://yard.example.org": "yard_a", "http://127.0.0.1:8080": 'odd "one" \\ é \u2028'},
    clusters=(SavedSubmitToken("alpha", "submit_a"), SavedSubmitToken("beta", "submit_b", "http://h:1")),
    ca_file="/etc/ca é.pem",
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "er" / "config.yaml"
    monkeypatch.setenv("YARD_CONFIG", str(path))
    return path


def test_what_is_saved_is_loaded_by_both_readers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_user_file(file, FULL)
    assert load_user_file(file) == FULL
    monkeypatch.setattr(config, "_parse_saved_form", lambda _: None)
    assert load_user_file(file) == FULL


def test_the_file_is_for_its_user_alone_and_nothing_else_is_left(file: Path) -> None:
    old = os.umask(0)
    try:
        save_user_file(file, FULL)
        file.chmod(0o644)
        save_user_file(file, FULL.with_token("http://b:1", "yard_b"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == ["config.yaml"]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir(parents=True)
    real = tmp_path / "dotfiles.yaml"
    file.symlink_to(real)
    save_user_file(file, FULL)
    assert file.is_symlink()
    assert load_user_file(real) == FULL


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.YardError, match="Cannot write"):
        save_user_file(tmp_path / "file" / "config.yaml", FULL)


def test_hand_written_yaml_is_read(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("url: http://h:1/\ntokens: {'http://H:1': yard_x}\nclusters:\n- name: alpha\n  token: submit_a\n")
    account = resolve_settings()
    assert (account.url, account.token) == ("http://h:1", "yard_x")
    assert account.submit_tokens == (ClusterToken("alpha", "submit_a"),)


def test_submit_tokens_stay_with_their_server(file: Path) -> None:
    first, second = "http://a:1", "http://b:1"
    content = UserFile(url=first).with_submit_token(first, "alpha", "submit_1").with_submit_token(second, "beta", "s2")
    content = content.with_submit_token(first, "alpha", "submit_3")
    for default in (first, second, first):  # `yard login` makes another server the default
        content = content.with_token(default, "yard_x")
        save_user_file(file, content)
        assert resolve_settings(first).submit_tokens == (ClusterToken("alpha", "submit_3"),)
        assert resolve_settings(second).submit_tokens == (ClusterToken("beta", "s2"),)
    assert resolve_settings("http://c:1").submit_tokens == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "url:\n", "tokens:\n"])
def test_an_empty_file_is_as_good_as_none(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert load_user_file(file) == UserFile()
    assert resolve_settings().url == URL_DEFAULT


@pytest.mark.parametrize(
    "text",
    [
        "urll: x\n",
        "url: [1]\n",
        "- a\n",
        "url: 'x\n",
        "url: a\nurl: b\n",
        'url: "a"\nurl: "b"\n',
        'tokens:\n  "a": "b"\n  "a": "c"\n',
        "tokens: {a: 1}\n",
        "clusters: [{name: a}]\n",
        "clusters: [{name: a, token: t, server: elsewhere}]\n",
    ],
)
def test_a_mistake_in_the_file_names_the_file(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(errors.Malformed, match=r"config\.yaml"):
        load_user_file(file)


def test_given_wins_over_environment_over_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_user_file(
        file, UserFile(url="http://file:1", tokens={"http://file:1": "f", "http://env:1": "e", "http://flag:1": "g"})
    )
    assert (resolve_settings().url, resolve_settings().token) == ("http://file:1", "f")
    monkeypatch.setenv("YARD_URL", "http://env:1/")
    assert (resolve_settings().url, resolve_settings().token) == ("http://env:1", "e")
    assert (resolve_settings("HTTP://Flag:1").url, resolve_settings("HTTP://Flag:1").token) == ("http://flag:1", "g")
    monkeypatch.setenv("YARD_TOKEN", " t\n")
    assert resolve_settings("http://flag:1").token == "t"
    assert resolve_settings("http://flag:1", "own").token == "own"


@pytest.mark.parametrize("url", ["host:1", "ftp://h", "http://", "http://u:p@h", "http://h?x", "http://a b"])
def test_what_is_no_url_is_refused(file: Path, url: str) -> None:
    with pytest.raises(errors.BadRequest, match="not the URL"):
        resolve_settings(url)


def test_a_token_that_cannot_be_one_is_refused(file: Path) -> None:
    with pytest.raises(errors.Unauthenticated):
        resolve_settings(token="a\r\nX-Evil: 1")
