"""The config section `storage`: its mistakes, and credentials that are read and never shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from switchyard.errors import Malformed
from switchyard.server.config.config import read_config
from switchyard.server.config.storage_section import StorageSection, read_storage

KEYS = {"AWS_ACCESS_KEY_ID": "AKONE", "AWS_SECRET_ACCESS_KEY": "s3cr3t-one"}
SECRET = "s3cr3t-file"


def test_without_the_section_files_are_in_a_folder(tmp_path: Path) -> None:
    options, mistakes = read_storage(read_config("", where="x").storage, environment=KEYS, folder=tmp_path)
    assert (options.url, options.scheme, options.credentials, mistakes) == ("files", "", {}, [])


def test_a_section_as_it_should_be(tmp_path: Path) -> None:
    section = read_config("storage: {url: s3://b-1/a/c, endpoint: https://h:9000, region: eu-1}", where="x").storage
    options, mistakes = read_storage(section, environment={**KEYS, "HOME": "/"}, folder=tmp_path)
    assert mistakes == []
    assert (options.scheme, options.bucket, options.prefix) == ("s3", "b-1", "a/c")
    assert options.credentials == KEYS
    assert "s3cr3t" not in repr(options)


MISTAKES = [
    ({"url": "ftp://b"}, "url: ftp:// is not known"),
    ({"url": "s3://"}, "url: write s3://BUCKET"),
    ({"url": "s3://b/../c"}, "url: write s3://BUCKET"),
    ({"url": "s3://bucket/a b"}, "url: write s3://BUCKET"),
    ({"url": "s3://key:secret@bucket"}, "url: write s3://BUCKET"),
    ({"url": "s3://bucket", "endpoint": "host:9000"}, "endpoint: write https://HOST"),
    ({"url": "s3://bucket", "endpoint": "https://host:port"}, "endpoint: write https://HOST"),
    ({"url": "s3://bucket", "endpoint": "https://me:s3cr3t@host"}, "endpoint: credentials belong"),
    ({"url": "s3://bucket", "endpoint": "http://host"}, "allow_http: true"),
    ({"url": "files", "endpoint": "https://host"}, "endpoint: is for an object store"),
    ({"url": "files", "credentials_file": "c"}, "credentials_file: is for an object store"),
    ({"url": "az://box"}, "AZURE_STORAGE_ACCOUNT_NAME"),
    ({"url": "s3://bucket", "credentials_file": "absent"}, "cannot read"),
]


@pytest.mark.parametrize(("section", "words"), MISTAKES)
def test_mistakes(section: dict[str, str], words: str, tmp_path: Path) -> None:
    _, mistakes = read_storage(msgspec.convert(section, StorageSection), environment=KEYS, folder=tmp_path)
    (mistake,) = mistakes
    assert mistake.startswith("storage.")
    assert words in mistake
    assert "s3cr3t" not in mistake


@pytest.mark.parametrize("wrong", ["bucket: x", "signed_s: 1", "timeout_s: 0", "retries: 99", "url: ''", "region: A B"])
def test_unknown_keys_and_values_out_of_range(wrong: str) -> None:
    with pytest.raises(Malformed, match="storage"):
        read_config(f"storage: {{{wrong}}}", where="x")


def test_keys_that_are_missing(tmp_path: Path) -> None:
    section = StorageSection(url="s3://bucket")
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET" in read_storage(section, environment={}, folder=tmp_path)[1][0]
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    assert read_storage(section, environment=role, folder=tmp_path)[1] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"[default]\naws_access_key_id = AKTWO\naws_secret_access_key = {SECRET}\n", ""),
        (f"aws_access_key_id=AKTWO\naws_secret_access_key={SECRET}", ""),
        ("aws_access_key_id=AKTWO", "it has no aws_secret_access_key"),
        (f"[other]\naws_secret_access_key = {SECRET}", "not in the form"),
        (f"{SECRET}", "not in the form"),
        (f"password = {SECRET}", "unknown name"),
        (f"aws_access_key_id = {SECRET}\n" * 5000, "more than"),
    ],
)
def test_a_credentials_file(text: str, words: str, tmp_path: Path) -> None:
    """The file comes before the environment, and nothing of it is shown."""
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    section = StorageSection(url="s3://bucket", credentials_file="keys")
    options, mistakes = read_storage(section, environment=KEYS, folder=tmp_path)
    assert SECRET not in "".join(mistakes)
    if words:
        assert words in mistakes[0]
    else:
        assert options.credentials == {"AWS_ACCESS_KEY_ID": "AKTWO", "AWS_SECRET_ACCESS_KEY": SECRET}
        assert mistakes == []


def test_a_credentials_file_that_everybody_can_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("x")
    file.chmod(0o644)
    for url in ("s3://bucket", "gs://bucket"):
        section = StorageSection(url=url, credentials_file=str(file))
        assert "chmod 600" in read_storage(section, environment={}, folder=tmp_path)[1][0]
