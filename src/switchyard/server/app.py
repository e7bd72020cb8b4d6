"""The one place that wires: settings → database → services → doors and loops → a running server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog
import uvicorn

from switchyard.connection import is_loopback
from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import EXIT_OK, Conflict, Unavailable
from switchyard.model.log import LogWindow
from switchyard.policy.resolve import empty_policy
from switchyard.server import garbage_collection
from switchyard.server.background_loops import BackgroundLoops
from switchyard.server.connections_section import connection_bounds
from switchyard.server.database_wait import wait_for_database
from switchyard.server.http.acceptor import HttpServer
from switchyard.server.http.connection_gate import ConnectionGate
from switchyard.server.http.routes import HttpApp
from switchyard.server.open_files import raise_open_files
from switchyard.server.platform_config import layout_of, platform_of
from switchyard.server.postgres_listener import PostgresListener
from switchyard.server.private_files import restrict_file_modes
from switchyard.server.runtime import ServerRuntime
from switchyard.server.selection_section import read_selection
from switchyard.server.settings import Settings
from switchyard.server.token_pools_section import make_token_pools
from switchyard.service.access.users import prepare_first_start
from switchyard.service.clock import Clock, IdGenerator
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.committer import Applier, BatchCall, Committer, apply_calls
from switchyard.service.context import Context
from switchyard.service.process_metrics import ProcessMetrics
from switchyard.service.quarantine import Quarantine
from switchyard.service.rules.kinds import load_kinds
from switchyard.service.run.agent_sessions import SyncRequest
from switchyard.service.run.lease import LeaseRequest, Leasing
from switchyard.service.run.log_store import LogStore, OutputWrite, apply_output
from switchyard.service.run.report import ReportWrite, apply_reports
from switchyard.service.snapshots import Snapshots
from switchyard.service.submit.bulk import BulkInsert, BulkSubmit, bulk_answer_without_commit
from switchyard.service.submit.engines import Engines
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.rainbow import NumberedInsert, apply_numbered
from switchyard.service.submit.submit import Submit, answer_without_commit
from switchyard.service.token.pool_type import refuse_other_pool_type
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.user_usage import UserUsage
from switchyard.store import file_lock, restore_recovery, schema_check
from switchyard.store.database import Database, create_schema, read_revisions
from switchyard.store.database_logs import DatabaseLogs
from switchyard.store.directory_logs import DirectoryLogs

if TYPE_CHECKING:
    from switchyard.server.grpc_port import GrpcPort

log = structlog.get_logger()
STOP_COMMIT_S = 5.0  # for the changes still queued at the end: thousands are committed in one


def build(settings: Settings, database: Database | None = None) -> ServerRuntime:
    """Wire a server that is not yet running."""
    database = database or Database(settings.database)
    _prepare(database)
    clock = Clock(database)
    appliers: dict[type, Applier] = {}
    committer = Committer(
        database,
        appliers,
        now_us=clock,
        queue_max=settings.bounds.queue,
        batch_max=1 if settings.bench == "one-by-one" else settings.bounds.batch,
        left_out={JobInsert: answer_without_commit, BulkInsert: bulk_answer_without_commit}
        if settings.bench == "no-commit"
        else {},
    )
    snapshots = Snapshots(
        database,
        policy=empty_policy(platform_of(settings.config), load_kinds()),
        now_us=clock,
        silent_after_us=int(settings.pace.silent_after_s * 1_000_000),
        layout=layout_of(settings.config),
    )
    logs = _logs(settings)
    ids = IdGenerator(clock)
    _settle_restored(database, ids(), now_us=clock())
    engines = Engines(settings.config.match.engine, tuple(settings.config.match.allowed))
    engines.check()
    tally = ProcessMetrics()
    usage = UserUsage(
        settings.config.limits.of,
        is_exempt=lambda name: name in snapshots.access.admin_names,
        refused=tally.limits.add,
    )
    context = Context(
        database,
        committer,
        snapshots,
        now_us=clock,
        steady_us=clock.steady_us,
        is_clock_right=clock.is_right,
        new_id=ids,
        list_budget=settings.bounds.list_budget,
        page_max=settings.bounds.page,
        logs=logs,
        engines=engines,
        selections=read_selection(settings.config.selection)[0],
        moving=settings.config.moving.terms,
        tokens=make_token_pools(settings.config.resourcemanager),
        tally=tally,
        usage=usage,
    )
    committer.committed = context.tally.committed
    committer.mend = Quarantine(database).mend
    submit = Submit(context)
    bulk = BulkSubmit(submit, ids)
    # The order in which the parts of a batch are applied.
    appliers[OutputWrite] = partial(apply_output, logs=logs, usage=usage)
    appliers[ReportWrite] = partial(apply_reports, logs=logs, usage=usage)
    appliers[BatchCall] = apply_calls
    leasing = Leasing(lambda: snapshots.laid.layout, access=lambda: snapshots.access)
    appliers[SyncRequest] = leasing.apply_syncs
    appliers[LeaseRequest] = leasing.apply_leases
    appliers[JobInsert] = submit.apply_inserts
    appliers[BulkInsert] = bulk.apply
    appliers[NumberedInsert] = partial(apply_numbered, submit)
    warm_loaded_types(*(kind.value for kind in snapshots.policy.kinds))  # before anything starts a thread
    return ServerRuntime(settings, context, submit, bulk, leasing, clock=clock)


def _logs(settings: Settings) -> LogStore:
    wanted = settings.config.logs
    window = LogWindow(wanted.bytes_max)
    if wanted.store == "database":
        return DatabaseLogs(window)
    found = DirectoryLogs(settings.data / (wanted.path or "logs"), window)
    found.prepare()
    return found


def _settle_restored(database: Database, audit_id: str, *, now_us: int) -> None:
    """The first server on a database that was restored from a backup puts right what that turned back."""
    if not restore_recovery.has_restore_mark(database):
        return
    with database.write(is_patient=True) as tx:
        base = restore_recovery.recover_restored(tx, now_us=now_us, audit_id=audit_id)
    if base is not None:
        log.warning("restored from a backup", fences_from=base)


def _prepare(database: Database) -> None:
    """An empty database gets its schema; an old one is left to `yard db upgrade`."""
    current, head = read_revisions(database)
    if current is None:
        create_schema(database)
    elif current == head:
        with database.read() as tx:
            differences = schema_check.compare(tx)
        schema_check.refuse_harmful(differences)
        for each in differences:
            log.warning("the schema differs, which does no harm", what=each.what)
    else:
        raise Conflict(
            f"The database is at revision {current}, this version needs {head}.",
            next_step="Back it up, then run `yard db upgrade` with the same --data or --database.",
        )


async def serve(settings: Settings, yard: ServerRuntime) -> None:
    """Run until SIGTERM or SIGINT; parked polls go home at once, accepted writes are committed."""
    loop = asyncio.get_running_loop()
    yard.attach(loop)
    yard.context.snapshots.refresh(force=True)
    server = http_server(settings, yard)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    leadership = Leadership(holder=f"{os.getpid()}-{secrets.token_hex(4)}")
    loops = BackgroundLoops(yard, leadership)
    listener = PostgresListener(yard) if not yard.context.database.is_sqlite else None
    grpc = _grpc_port(yard) if settings.grpc else None
    garbage_collection.limit_collections()
    loops.start()
    if listener:
        listener.start()
    if grpc:
        grpc.start()
    serving = asyncio.ensure_future(server.serve())
    yard.is_ready, yard.refreshed_at = True, loop.time()
    if not settings.tls_cert and not is_loopback(settings.http[0]):
        log.warning("plain HTTP beyond this machine: everybody on the way can read tokens", url=settings.url)
    log.info("serving", url=settings.url, database=yard.context.database.url.get_backend_name())
    await asyncio.wait({serving, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    yard.is_ready = False
    yard.hub.close()
    server.should_exit = True
    if grpc:
        grpc.stop()
    await asyncio.wait({serving}, timeout=settings.bounds.stop_s)
    has_answered = await loops.stop()
    if listener:
        listener.stop()
    yard.context.compiler.close()
    yard.context.tokens.pools.close()
    for threads in (yard.threads, yard.reckoners, yard.heavy_threads):
        threads.shutdown(wait=False, cancel_futures=True)
    for pool in (yard.decoders, yard.bulks):
        pool.close()
    yard.context.committer.close(STOP_COMMIT_S if has_answered else 0)
    yard.context.database.close()
    log.info("stopped")
    if serving.done():
        serving.result()
    if not has_answered:
        # A database that hangs holds the threads that asked it, and Python would wait for those for ever.
        os._exit(EXIT_OK)


def _grpc_port(yard: ServerRuntime) -> GrpcPort:
    from switchyard.server.grpc_port import GrpcPort  # 0.2 s and 25 MB that most servers can do without

    return GrpcPort(yard)


def run(settings: Settings, *, announce: bool = True) -> int:
    """The whole life of a server process."""
    import uvloop

    settings = replace(settings, connections=connection_bounds(settings.config.connections, raise_open_files()))
    settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.database)
    with _only_one(settings, database):
        restrict_file_modes(settings.data, database)
        _refuse_taken(settings.http, "--http")
        if settings.grpc:
            _refuse_taken(settings.grpc, "--grpc")
        wait_for_database(database)
        yard = build(settings, database)
        yard.context.committer.start()
        refuse_other_pool_type(yard.context)
        for name in store_file_layout(yard.context, layout_of(settings.config)):
            log.warning("a pool or label names a cluster that is not registered", cluster=name)
        token = prepare_first_start(yard.context, is_open=settings.is_open)
        if token is not None and announce:
            from switchyard.server.first_admin_token import show_first_token

            show_first_token(settings, token)
        uvloop.run(serve(settings, yard))
    return 0


def _refuse_taken(address: tuple[str, int], flag: str) -> None:
    """Before anything is made: a first start shows its token once, and must not have shown it for nothing."""
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
def _only_one(settings: Settings, database: Database) -> Iterator[None]:
    """SQLite has one server: a second one would not know of the first one's commits. Neither on the same folder, nor
    on the same database file."""
    next_step = "Stop it, or give --data another folder; several servers need --database postgresql://…"
    path = settings.data / "server.lock"
    with path.open("w") as lock:
        if database.is_sqlite:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                holder = file_lock.lock_holder(database)
                raise Conflict(f"Another server runs on {settings.data}: {holder}.", next_step=next_step) from exc
        with file_lock.hold_file_lock(database, f"a server with --data {settings.data}", next_step=next_step):
            yield


def http_server(settings: Settings, yard: ServerRuntime) -> HttpServer:
    config = uvicorn.Config(
        HttpApp(yard),
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
