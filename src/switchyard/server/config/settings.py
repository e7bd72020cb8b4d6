"""Settings: read once, frozen, passed down. Each bound says how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from switchyard.server.config.config import Config
from switchyard.server.config.connections_section import ConnectionBounds, ConnectionsSection, connection_bounds
from switchyard.storage.object_store import StorageOptions

DEFAULT_CONNECTIONS = connection_bounds(ConnectionsSection(), open_files=1024)  # the soft limit of most systems


@dataclass(frozen=True)
class ServerBounds:
    """Bounds of the server."""

    # Bounds of bodies are in server/http/bodies/body_bounds.py.
    graph_bytes: int = 256 * 2**20  # uncompressed; a million vertices as JGF
    graph_packed_bytes: int = 64 * 2**20  # held in memory during an upload
    uploads: int = 4  # of graphs at once; above: 429
    page: int = 500
    page_default: int = 100
    list_budget: int = 5000  # rows read for one page: 0.7 ms at a million jobs
    queue: int = 20_000  # writes waiting for the committer; above: 429
    batch: int = 1000  # writes in one transaction
    wait_s: float = 60  # a wait for a job; many proxies cut connections after that
    # A parked poll. The next poll must arrive, be stored (flush_s) and be read by the other servers (refresh_s) before
    # its agent counts as silent (silent_after_s): 8 + 2 + 1 s, and 4 s for a slow network.
    park_s: float = 8
    threads: int = 8  # one per reading connection
    stop_s: float = 1.5  # how long a stopping server waits for open requests


@dataclass(frozen=True)
class LoopIntervals:
    """How often the loops run."""

    refresh_s: float = 1.0  # versions and liveness: one small query
    flush_s: float = 2.0  # last-seen times of agents and tokens
    sweep_s: float = 5.0  # wakes polls whose wake-up got lost
    upkeep_s: float = 2.0
    checkpoint_s: float = 0.25  # SQLite's WAL
    silent_after_s: float = 15.0  # an agent that has not polled for this long is down


ANY_HOST = ("0.0.0.0", "::")  # noqa: S104  not bound here: such a host is no address for clients


@dataclass(frozen=True)
class Settings:
    """One server process."""

    data: Path
    http: tuple[str, int]
    database: str
    grpc: tuple[str, int] | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # gRPC clients need a certificate of this authority
    is_open: bool = False  # --no-auth
    bench: str = ""  # for the benchmark alone: one-by-one
    config: Config = field(default_factory=Config)
    unused_keys: Mapping[str, str] = field(default_factory=dict)  # of the config file, with the reasons
    config_folder: Path = Path()  # relative paths in the config are relative to it
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # which values in the config may name
    storage: StorageOptions = field(default_factory=StorageOptions)  # with its credentials, which nothing shows
    bounds: ServerBounds = ServerBounds()
    intervals: LoopIntervals = LoopIntervals()
    connections: ConnectionBounds = DEFAULT_CONNECTIONS

    @property
    def url(self) -> str:
        scheme = "https" if self.tls_cert else "http"
        host = f"[{self.http[0]}]" if ":" in self.http[0] else self.http[0]
        return f"{scheme}://{host}:{self.http[1]}"


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, with [::1]:8080 for IPv6."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT")
    return host, int(port)
