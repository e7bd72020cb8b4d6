"""The registries that an operator listed, and what may be asked of each. Values only."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ListedRegistry:
    """`host`: as images name it, with the port if there is one. `address`: where its API is, in the same form.

    `allow`: patterns of repositories. `auth` and `blobs`: further hosts that it may send us to, for a token and for
    blobs. `is_private`: its hosts may have loopback and private addresses. `has_needs`: what its images need is read.
    """

    host: str
    address: str
    allow: tuple[str, ...] = ("*",)
    auth: str = ""
    blobs: tuple[str, ...] = ()
    is_private: bool = False
    is_plain_http: bool = False
    has_needs: bool = True
    tls: ssl.SSLContext | None = None
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def token_hosts(self) -> frozenset[str]:
        return frozenset(filter(None, (self.address, self.auth)))

    @property
    def blob_hosts(self) -> frozenset[str]:
        return frozenset((self.address, *self.blobs))

    def allows(self, repository: str) -> bool:
        return any(fnmatchcase(repository, pattern) for pattern in self.allow)


@dataclass(frozen=True, slots=True)
class ListedRegistries:
    by_host: Mapping[str, ListedRegistry] = field(default_factory=dict)
    timeout_s: float = 10.0
