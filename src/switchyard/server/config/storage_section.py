"""The config section `storage`: where the bytes of files are kept, and the credentials of an object store."""

from __future__ import annotations

import configparser
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from switchyard.storage.object_store import SCHEMES, StorageOptions

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
Text = Annotated[str, Meta(max_length=2048)]


class StorageSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bytes of files are kept: a folder, relative to the server's data, or a bucket of an object store.

    With `direct`, users and agents read large objects of a bucket by signed addresses, each valid for `signed_s`
    seconds, and upload them to S3 in the same way. All other uploads pass through the server.
    """

    url: Annotated[str, Meta(min_length=1, max_length=1024)] = "files"  # or s3://bucket/prefix, gs://…, az://…
    endpoint: Text = ""  # of a service that is not the provider's own: https://host:port
    region: Annotated[str, Meta(max_length=64, pattern="^[a-z0-9-]*(?!\n)$")] = ""
    credentials_file: Text = ""  # else the environment
    allow_http: bool = False
    direct: bool = True  # large objects go straight between the object store and users and agents
    signed_s: Annotated[int, Meta(ge=10, le=7 * 24 * 3600)] = 900  # how long a signed address holds
    timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0  # of one request
    retries: Annotated[int, Meta(ge=0, le=10)] = 3  # of one request

    @property
    def is_folder(self) -> bool:
        return "://" not in self.url


def read_storage(
    section: StorageSection, *, environment: Mapping[str, str], folder: Path
) -> tuple[StorageOptions, list[str]]:
    """The options of the store, and the mistakes. `folder`: of the config file, for a relative credentials_file."""
    mistakes = _mistakes(section)
    credentials: dict[str, str] = {}
    if not mistakes and not section.is_folder:
        credentials, mistakes = _credentials(section, environment=environment, folder=folder)
    options = StorageOptions(
        url=section.url,
        endpoint=section.endpoint,
        region=section.region,
        allow_http=section.allow_http,
        is_direct=section.direct,
        timeout_s=section.timeout_s,
        retries=section.retries,
        credentials=credentials,
    )
    return options, [f"storage.{mistake}" for mistake in mistakes]


def _mistakes(section: StorageSection) -> list[str]:
    if section.is_folder:
        bucket_keys = ("endpoint", "region", "credentials_file", "allow_http")
        return [
            f"{key}: is for an object store, and the url is a folder" for key in bucket_keys if getattr(section, key)
        ]
    mistakes = []
    scheme = section.url.partition("://")[0]
    if scheme not in SCHEMES:
        mistakes.append(
            f"url: {scheme}:// is not known; there are {', '.join(f'{name}://' for name in SCHEMES)}, or a folder"
        )
    elif not BUCKET_URL.fullmatch(section.url) or "/../" in f"{section.url}/" or "/./" in f"{section.url}/":
        mistakes.append(f"url: write {scheme}://BUCKET or {scheme}://BUCKET/PREFIX")
    elif importlib.util.find_spec("obstore") is None:
        mistakes.append("url: an object store needs the extra package: pip install 'switchyard[storage]'")
    if section.endpoint:
        mistakes += _endpoint_mistakes(section)
    return mistakes


def _endpoint_mistakes(section: StorageSection) -> list[str]:
    try:
        parts = urlsplit(section.endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        return ["endpoint: write https://HOST or https://HOST:PORT"]
    if parts.username is not None or parts.password is not None:
        return ["endpoint: credentials belong into credentials_file or the environment"]
    if parts.scheme == "http" and not section.allow_http:
        return ["endpoint: everybody on the way can read files by http://; use https://, or set allow_http: true"]
    return []


def _credentials(
    section: StorageSection, *, environment: Mapping[str, str], folder: Path
) -> tuple[dict[str, str], list[str]]:
    scheme = section.url.partition("://")[0]
    if section.credentials_file:
        path = folder / Path(section.credentials_file).expanduser()
        values, why = _read_google(path) if scheme == "gs" else _read_file(path, VARIABLES[scheme])
        mistakes = [f"credentials_file: {why}"] if why else []
    else:
        values = {name: environment[name] for name in VARIABLES[scheme] if environment.get(name)}
        mistakes = []
        if not values and any(environment.get(name) for name in ROLE_VARIABLES):
            return {}, []
    absent = [name for name in NEEDED[scheme] if not values.get(name)]
    if absent and not mistakes:
        names = " and ".join(name.lower() if section.credentials_file else name for name in absent)
        where = "credentials_file: it has no" if section.credentials_file else "credentials_file: name one, or set"
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
