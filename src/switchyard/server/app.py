"""The life of a server process: make its parts, open its ports, run its loops, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import secrets
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn

from switchyard.connection import is_loopback
from switchyard.errors import EXIT_OK, Conflict, Unavailable
from switchyard.server.commands.database_wait import wait_for_database, while_database_restarts
from switchyard.server.config.connections_section import connection_bounds
from switchyard.server.config.platform_config import layout_of
from switchyard.server.config.settings import Settings
from switchyard.server.http.connections.acceptor import HttpServer
from switchyard.server.http.connections.connection_gate import ConnectionGate
from switchyard.server.http.http_app import HttpApp
from switchyard.server.loops import garbage_collection
from switchyard.server.loops.background_loops import BackgroundLoops
from switchyard.server.loops.postgres_listener import PostgresListener
from switchyard.server.loops.runtime import ServerRuntime, make_runtime
from switchyard.server.private_files import restrict_file_modes
from switchyard.server.wiring import make_services
from switchyard.service.access.users import prepare_first_start
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.reserve.pool_type import refuse_other_pool_type
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.engine import file_lock
from switchyard.store.engine.database import Database

if TYPE_CHECKING:
    from switchyard.server.grpc.grpc_port import GrpcPort


log = structlog.get_logger()
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STOP_COMMIT_S = 5.0  # for the changes still queued at the end: thousands are committed in one


def build(settings: Settings, database: Database | None = None) -> ServerRuntime:
    """Make a server that is not yet running."""
    return make_runtime(make_services(settings, database or Database(settings.database)))


async def serve(settings: Settings, server: ServerRuntime, *, home: str = "") -> None:
    """Run until SIGTERM or SIGINT. Then parked polls are answered and accepted writes are committed."""
    loop = asyncio.get_running_loop()
    server.attach(loop)
    # Nothing is served yet, so the loop may wait.
    while_database_restarts(server.context.database, partial(server.context.snapshots.refresh, force=True))
    http = http_server(settings, server)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # `_only_one` holds the lock of the SQLite file.
    is_only = server.context.database.is_sqlite
    holder = f"{home}{os.getpid()}-{secrets.token_hex(4)}"
    leadership = Leadership(holder=holder, is_only_server=is_only, home=home)
    loops = BackgroundLoops(server, leadership)
    listener = (
        PostgresListener(server.context.database, server.wakeups, own_name=server.context.committer.name)
        if not server.context.database.is_sqlite
        else None
    )
    grpc = _grpc_port(server) if settings.grpc else None
    garbage_collection.limit_collections()
    loops.start()
    if listener:
        listener.start()
    if grpc:
        grpc.start()
    serving = asyncio.ensure_future(http.serve())
    server.readiness.is_serving, server.readiness.database_answered_at = True, loop.time()
    if not settings.tls_cert and not is_loopback(settings.http[0]):
        log.warning("plain HTTP beyond this machine: everybody on the way can read tokens", url=settings.url)
    log.info("serving", url=settings.url, database=server.context.database.url.get_backend_name())
    await asyncio.wait({serving, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    server.readiness.is_serving = False
    server.wakeups.hub.close()
    http.should_exit = True
    if grpc:
        grpc.stop()
    await asyncio.wait({serving}, timeout=settings.bounds.stop_s)
    has_answered = await loops.stop()
    if listener:
        listener.stop()
    server.context.compiler.close()
    server.context.tokens.pools.close()
    server.workers.close()
    server.context.committer.close(STOP_COMMIT_S if has_answered else 0)
    server.context.database.close()
    log.info("stopped")
    if serving.done():
        serving.result()
    if not has_answered:
        # Threads that wait for a database that hangs never end, and Python would wait for them.
        os._exit(EXIT_OK)


def _grpc_port(server: ServerRuntime) -> GrpcPort:
    from switchyard.server.grpc.grpc_port import GrpcPort  # takes 0.2 s and 25 MB, and most servers have no such port

    return GrpcPort(server)


def run(settings: Settings, *, announce: bool = True) -> int:
    """The whole life of a server process."""
    import uvloop

    settings = replace(settings, connections=connection_bounds(settings.config.connections, raise_open_files()))
    settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.database)
    with _only_one(settings, database) as home:
        restrict_file_modes(settings.data, database)
        _refuse_taken(settings.http, "--http")
        if settings.grpc:
            _refuse_taken(settings.grpc, "--grpc")
        wait_for_database(database)
        patiently = partial(while_database_restarts, database)
        server = patiently(partial(build, settings, database))
        server.context.committer.start()
        patiently(partial(refuse_other_pool_type, server.context))
        for name in patiently(partial(store_file_layout, server.context, layout_of(settings.config))):
            log.warning("a pool or label names a cluster that is not registered", cluster=name)
        token = patiently(partial(prepare_first_start, server.context, is_open=settings.is_open))
        if token is not None and announce:
            from switchyard.server.commands.admin_token import show_first_token

            show_first_token(settings, token)
        uvloop.run(serve(settings, server, home=home))
    return 0


def _refuse_taken(address: tuple[str, int], flag: str) -> None:
    """Check the ports before anything is made: a first start shows its token once, so it must not fail afterwards."""
    host, port = address
    for family, kind, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself will
            try:
                probe.bind(place)
            except OSError as exc:
                if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                    raise Unavailable(
                        f"Cannot listen on {host}:{port}: {exc.strerror}.",
                        next_step=f"Is the port taken? Give {flag} another.",
                    ) from exc


@contextlib.contextmanager
def _only_one(settings: Settings, database: Database) -> Iterator[str]:
    """Allow one server for a SQLite folder and a SQLite file: a second one would not see the first one's commits.

    Yields a name for the folder that no other living server has, or "" if another server uses the folder, too.
    """
    next_step = "Stop it, or give --data another folder; several servers need --database postgresql://…"
    path = settings.data / "server.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            home = _home_name(lock.fileno())
        except OSError as exc:
            if database.is_sqlite:
                holder = file_lock.lock_holder(database)
                raise Conflict(f"Another server runs on {settings.data}: {holder}.", next_step=next_step) from exc
            home = ""
        with file_lock.hold_file_lock(database, f"a server with --data {settings.data}", next_step=next_step):
            yield home


def _home_name(lock: int) -> str:
    """Name a folder by its lock file on this machine since its boot: no copy of the folder has the same name."""
    boot = BOOT_ID.read_text(encoding="ascii") if BOOT_ID.exists() else ""
    if not boot:
        return ""
    stat = os.fstat(lock)
    digest = hashlib.sha256(f"{boot} {stat.st_dev} {stat.st_ino}".encode()).hexdigest()
    return f"{digest[:16]}/"


def http_server(settings: Settings, server: ServerRuntime) -> HttpServer:
    config = uvicorn.Config(
        HttpApp(server),
        host=settings.http[0],
        port=settings.http[1],
        loop="none",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.connections.idle_s,
        timeout_graceful_shutdown=1,
        backlog=4096,
        ssl_certfile=str(settings.tls_cert) if settings.tls_cert else None,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
    )
    return HttpServer(config, ConnectionGate(settings.connections))


FILES_MAX = 1_000_000  # "unlimited" as a number


def raise_open_files() -> int:
    """Raise the soft limit to the hard limit. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError) as exc:  # a sandbox may forbid it
            log.warning("the limit of open files stays as it is", limit=soft, hard=hard, error=str(exc))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = FILES_MAX if now == resource.RLIM_INFINITY else min(now, FILES_MAX)
    log.info("open files", limit=limit, before=soft)
    return limit
