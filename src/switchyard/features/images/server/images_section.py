"""The config section `images`: the registries that the server may ask, and what it may ask of each."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.features.images.registry.listed import ListedRegistries, ListedRegistry
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.wire.decode import convert, load_yaml
from switchyard.server.config.config import Config

REGISTRIES_MAX = 100
HOST_PATTERN = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?(?!\n)$"
CREDENTIALS_BYTES_MAX = 64 * 1024
OTHERS_MODE = 0o007  # the bits of a file's mode that let every user read it
TIMEOUT_S_MAX = 30  # a submit waits for it, and holds a thread
Host = Annotated[str, Meta(max_length=260, pattern=HOST_PATTERN)]
Pattern = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[a-z0-9._/*?\[\]-]+(?!\n)$")]
FilePath = Annotated[str, Meta(max_length=1024)]


class RegistrySection(Struct, frozen=True, forbid_unknown_fields=True):
    """One registry. `host`: as images name it; `address`: where its API is, if that is another host.

    `auth`, `blobs`: further hosts that the registry may send the server to. `credentials_file`: YAML with `user` and
    `password`, or `token`. `private`: it may have a loopback or private address.
    """

    host: Host
    address: Host | None = None
    allow: Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=1000)] = ("*",)
    ca: FilePath = ""
    credentials_file: FilePath = ""
    auth: Host | None = None
    blobs: Annotated[list[Host], Meta(max_length=20)] = []
    private: bool = False
    plain_http: bool = False
    needs: bool = True  # read what images need, too; else tags are pinned and nothing else is read

    def __post_init__(self) -> None:
        if self.plain_http and not self.private:
            raise ValueError("plain_http is for registries of this site: set `private: true`, too, or leave it out")
        if self.plain_http and self.ca:
            raise ValueError("ca is for https, and plain_http uses none")


class ImagesSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Only these registries are asked. The images of others are taken as they are."""

    registries: Annotated[list[RegistrySection], Meta(max_length=REGISTRIES_MAX)] = []
    timeout: Annotated[int, Meta(ge=1, le=TIMEOUT_S_MAX)] | Annotated[str, Meta(max_length=40)] = "10s"  # for one image

    def __post_init__(self) -> None:
        if not 1 <= parse_duration_s(self.timeout) <= TIMEOUT_S_MAX:
            raise ValueError(f"the timeout is 1 to {TIMEOUT_S_MAX} seconds: a submit waits for it")
        hosts = [each.host for each in self.registries]
        if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
            raise ValueError(f"the registry {twice[0]} is there twice")


class _Credentials(Struct, frozen=True, forbid_unknown_fields=True):
    user: str = ""
    password: str = ""
    token: str = ""

    def __post_init__(self) -> None:
        if bool(self.user) != bool(self.password) or bool(self.user) == bool(self.token):
            raise ValueError("give `user` and `password`, or `token`")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value.isprintable() or not value.isascii() or (name == "user" and ":" in value):
                raise ValueError(f"`{name}` has characters that no header can carry")


def images_section(config: Config) -> ImagesSection:
    section = getattr(config, "images", None)
    return section if isinstance(section, ImagesSection) else ImagesSection()


def images_mistakes(config: Config, *, folder: Path) -> list[str]:
    """What the files of the section show to be wrong."""
    return [
        mistake
        for index, each in enumerate(images_section(config).registries)
        for mistake in _mistakes(each, index, folder)
    ]


def listed_registries(config: Config, *, folder: Path) -> ListedRegistries:
    section = images_section(config)
    rows = {each.host: _listed(each, folder) for each in section.registries}
    return ListedRegistries(rows, timeout_s=float(parse_duration_s(section.timeout)))


def _listed(each: RegistrySection, folder: Path) -> ListedRegistry:
    credentials = _read_credentials(each, folder)
    return ListedRegistry(
        each.host,
        _own_port(each.address or each.host, each),
        allow=each.allow,
        auth=_own_port(each.auth, each) if each.auth else "",
        blobs=tuple(_own_port(host, each) for host in each.blobs),
        is_private=each.private,
        is_plain_http=each.plain_http,
        has_needs=each.needs,
        tls=None if each.plain_http else _tls(each, folder),
        user=credentials.user if credentials else "",
        password=credentials.password if credentials else "",
        token=credentials.token if credentials else "",
    )


def _own_port(host: str, each: RegistrySection) -> str:
    """Without the port that the scheme has anyway."""
    return re.sub(r":80\Z" if each.plain_http else r":443\Z", "", host)


def _mistakes(each: RegistrySection, index: int, folder: Path) -> Iterator[str]:
    where = f"images.registries[{index}]"
    try:
        _tls(each, folder)
    except (OSError, ValueError) as exc:
        yield f"{where}.ca: {exc}"
    try:
        _read_credentials(each, folder)
    except (OSError, Malformed, ValueError) as exc:
        yield f"{where}.credentials_file: {getattr(exc, 'detail', exc)}"


def _tls(each: RegistrySection, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if each.ca:
        context = ssl.create_default_context(cafile=str(folder / Path(each.ca).expanduser()))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read_credentials(each: RegistrySection, folder: Path) -> _Credentials | None:
    """None: no file is named. Errors have nothing of the file's content."""
    if not each.credentials_file:
        return None
    path = folder / Path(each.credentials_file).expanduser()
    if path.stat().st_mode & OTHERS_MODE:
        raise ValueError(f"every user of this machine can read {path}: chmod 600 {path}")
    with path.open("rb") as file:
        body = file.read(CREDENTIALS_BYTES_MAX + 1)
    if len(body) > CREDENTIALS_BYTES_MAX:
        raise ValueError(f"{path} has more than {CREDENTIALS_BYTES_MAX} bytes")
    return convert(load_yaml(body, where=str(path)), _Credentials, where=str(path))
