"""What it takes to open a store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMES = ("s3", "gs", "az")


@dataclass(frozen=True)
class StorageOptions:
    """Where objects are kept, and how to get there."""

    url: str = "files"  # a folder, relative to the server's data; or s3://bucket/prefix, gs://…, az://…
    endpoint: str = ""  # of a service that is not the provider's own
    region: str = ""
    allow_http: bool = False
    is_direct: bool = True  # clients and agents get signed addresses
    timeout_s: float = 30.0  # of one request
    retries: int = 3  # of one request; with the waits between them
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)  # by the provider's variable; never shown

    @property
    def scheme(self) -> str:
        """`s3`, `gs`, `az`; empty for a folder."""
        return self.url.partition("://")[0] if "://" in self.url else ""

    @property
    def bucket(self) -> str:
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def prefix(self) -> str:
        """Without slashes around it."""
        return self.url.partition("://")[2].partition("/")[2].strip("/")
