"""How the server comes to a bucket: its address, its credentials, and what is wrong with them."""

from __future__ import annotations

import configparser
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from switchyard.storage.object_store import ObjectStore, StorageOptions

CREDENTIALS_BYTES_MAX = 64 * 1024
OTHERS_MODE = 0o007  # the bits of a file's mode that let every user read it
BUCKET_URL = re.compile(r"[a-z0-9]{2}://[A-Za-z0-9][A-Za-z0-9._-]{1,221}(/[A-Za-z0-9._-]+)*/?")
# The variables of each provider, which are also the names in a credentials file (there in lower case).
VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
NEEDED = {"s3": VARIABLES["s3"][:2], "gs": (), "az": VARIABLES["az"]}
# With one of these, obstore gets keys that change. There is no key then that uploads could be signed with.
ROLE_VARIABLES = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class BucketKind:
    """The buckets of all providers. It is a `storage.object_store.StoreKind`."""

    def read_options(
        self, options: StorageOptions, *, credentials_file: Path | None, environment: Mapping[str, str]
    ) -> tuple[StorageOptions, list[str]]:
        mistakes = _mistakes(options)
        if mistakes:
            return options, mistakes
        credentials, mistakes = _credentials(options.scheme, credentials_file, environment)
        return replace(options, credentials=credentials), mistakes

    def open(self, options: StorageOptions) -> ObjectStore:
        from switchyard.features.buckets.bucket_store import open_bucket  # obstore is an extra, and takes 30 ms

        return open_bucket(options)


def _mistakes(options: StorageOptions) -> list[str]:
    mistakes = []
    if not BUCKET_URL.fullmatch(options.url) or "/../" in f"{options.url}/" or "/./" in f"{options.url}/":
        mistakes.append(f"url: write {options.scheme}://BUCKET or {options.scheme}://BUCKET/PREFIX")
    elif importlib.util.find_spec("obstore") is None:
        mistakes.append("url: an object store needs the extra package: pip install 'switchyard[storage]'")
    if options.endpoint:
        mistakes += _endpoint_mistakes(options)
    return mistakes


def _endpoint_mistakes(options: StorageOptions) -> list[str]:
    try:
        parts = urlsplit(options.endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        return ["endpoint: write https://HOST or https://HOST:PORT"]
    if parts.username is not None or parts.password is not None:
        return ["endpoint: credentials belong into credentials_file or the environment"]
    if parts.scheme == "http" and not options.allow_http:
        return ["endpoint: everybody on the way can read files by http://; use https://, or set allow_http: true"]
    return []


def _credentials(scheme: str, file: Path | None, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    if file:
        values, why = _read_google(file) if scheme == "gs" else _read_file(file, VARIABLES[scheme])
        mistakes = [f"credentials_file: {why}"] if why else []
    else:
        values = {name: environment[name] for name in VARIABLES[scheme] if environment.get(name)}
        mistakes = []
        if not values and any(environment.get(name) for name in ROLE_VARIABLES):
            return {}, []
    absent = [name for name in NEEDED[scheme] if not values.get(name)]
    if absent and not mistakes:
        names = " and ".join(name.lower() if file else name for name in absent)
        where = "credentials_file: it has no" if file else "credentials_file: name one, or set"
        mistakes.append(f"{where} {names}")
    return values, mistakes


def _read_file(path: Path, variables: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """The values of a file in the form of ~/.aws/credentials; and what is wrong with it, without any of its content."""
    text, why = _read_private(path)
    if why:
        return {}, why
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text if "[" in text else f"[default]\n{text}")
        values = dict(parser["default"])
    except (configparser.Error, KeyError):
        return {}, f"{path} is not in the form `[default]`, then lines of `name = value`"
    names = {name.lower(): name for name in variables}
    unknown = [name for name in values if name not in names]
    if unknown:
        return {}, f"{path} has an unknown name; known are {', '.join(names)}"
    return {names[name]: value for name, value in values.items()}, ""


def _read_google(path: Path) -> tuple[dict[str, str], str]:
    _, why = _read_private(path)
    return {"GOOGLE_SERVICE_ACCOUNT": str(path)}, why


def _read_private(path: Path) -> tuple[str, str]:
    try:
        if path.stat().st_mode & OTHERS_MODE:
            return "", f"every user of this machine can read {path}: chmod 600 {path}"
        with path.open("rb") as file:
            data = file.read(CREDENTIALS_BYTES_MAX + 1)
    except OSError as exc:
        return "", f"cannot read {path}: {exc.strerror}"
    if len(data) > CREDENTIALS_BYTES_MAX:
        return "", f"{path} has more than {CREDENTIALS_BYTES_MAX} bytes"
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return "", f"{path} is not text"
