"""Wires the services of a server: settings → database → context → services. Knows no HTTP and no event loop."""

from __future__ import annotations

from functools import partial

import structlog

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Conflict
from switchyard.model.job.log import LogWindow
from switchyard.policy.resolve import empty_policy
from switchyard.server.config.platform_config import layout_of, platform_of
from switchyard.server.config.selection_section import read_selection
from switchyard.server.config.settings import Settings
from switchyard.server.config.storage_section import open_store
from switchyard.server.config.token_pools_section import make_token_pools
from switchyard.server.feature import server_features
from switchyard.server.services import Services
from switchyard.service.cluster.fit import FitChecker
from switchyard.service.core.agents.agent_sessions import SyncRequest
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import FileStorage
from switchyard.service.core.log_store import LogStore, OutputWrite, apply_output
from switchyard.service.core.process_metrics import ProcessMetrics
from switchyard.service.core.snapshots.selection_settings import Engines
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.user_usage import UserUsage
from switchyard.service.core.writes.change_budget import ChangeBudget
from switchyard.service.core.writes.clock import Clock, IdGenerator
from switchyard.service.core.writes.committer import Applier, BatchCall, Committer, apply_calls
from switchyard.service.core.writes.event_watermark import begin_watermark
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.rules.kinds import load_kinds
from switchyard.service.run.attempt_evidence import AttemptEvidence
from switchyard.service.run.lease import Leasing
from switchyard.service.run.report import ReportWrite, apply_reports
from switchyard.service.submit.bulk import BulkInsert, BulkSubmit
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.quarantine import Quarantine
from switchyard.store.engine.database import Database, create_schema, read_revisions
from switchyard.store.files.database_logs import DatabaseLogs
from switchyard.store.files.directory_logs import DirectoryLogs
from switchyard.store.tables import restore_recovery, schema_check

log = structlog.get_logger()


def make_services(settings: Settings, database: Database) -> Services:
    _prepare(database)
    clock = Clock(database)
    new_id = IdGenerator(clock)
    appliers: dict[type, Applier] = {}
    context = make_context(settings, database, clock=clock, new_id=new_id, appliers=appliers)
    _recover_restored(context)
    watermark = context.committer.watermark
    begin_watermark(watermark, database, now_us=context.now_us())
    submit = Submit(context)
    bulk = BulkSubmit(submit, new_id)
    leasing = Leasing(
        lambda: context.snapshots.laid.layout,
        access=lambda: context.snapshots.access,
        is_stopped=lambda: watermark.is_turned_back,
        context=context,
    )
    # The order in which the parts of a batch are applied.
    appliers[OutputWrite] = partial(apply_output, logs=context.logs, usage=context.usage)
    appliers[ReportWrite] = partial(
        apply_reports,
        logs=context.logs,
        usage=context.usage,
        rules=lambda: context.snapshots.policy,
        evidence=AttemptEvidence(context),
    )
    appliers[BatchCall] = apply_calls
    appliers[SyncRequest] = leasing.apply_syncs
    appliers[LeaseRequest] = leasing.apply_leases
    appliers[JobInsert] = submit.apply_inserts
    appliers[BulkInsert] = bulk.apply
    for feature in server_features():
        appliers.update(feature.appliers(submit))
    warm_loaded_types(*(kind.value for kind in context.snapshots.policy.kinds))  # before anything starts a thread
    return Services(
        settings=settings,
        context=context,
        clock=clock,
        submit=submit,
        bulk=bulk,
        leasing=leasing,
        fit=FitChecker(context),
    )


def make_context(
    settings: Settings, database: Database, *, clock: Clock, new_id: IdGenerator, appliers: dict[type, Applier]
) -> Context:
    """Make what use cases work on. `appliers`: by the type of a write; they may be added until the committer starts."""
    config, bounds = settings.config, settings.bounds
    committer = Committer(
        database,
        appliers,
        now_us=clock,
        queue_max=bounds.queue,
        batch_max=1 if settings.bench == "one-by-one" else bounds.batch,
    )
    snapshots = Snapshots(
        database,
        policy=empty_policy(platform_of(config), load_kinds()),
        now_us=clock,
        silent_after_us=int(settings.intervals.silent_after_s * 1_000_000),
        layout=layout_of(config),
    )
    engines = Engines(config.match.engine, tuple(config.match.allowed))
    engines.check()
    tally = ProcessMetrics()
    committer.committed = tally.committed
    committer.mend = Quarantine(database).mend
    return Context(
        database,
        committer,
        snapshots,
        now_us=clock,
        steady_us=clock.steady_us,
        is_clock_right=clock.is_right,
        new_id=new_id,
        list_budget=bounds.list_budget,
        logs=_logs(settings),
        engines=engines,
        selections=read_selection(config.selection)[0],
        moving=config.moving.terms,
        probation=config.probation.terms,
        tokens=make_token_pools(config.resourcemanager),
        tally=tally,
        files=FileStorage(
            partial(open_store, settings.storage, data=settings.data),
            config.files.limits,
            signed_s=config.storage.signed_s,
        ),
        usage=UserUsage(
            config.limits.of, is_exempt=lambda name: name in snapshots.access.admin_names, refused=tally.limits.add
        ),
        settings={type(value): value for feature in server_features() for value in feature.settings(settings)},
        namespace_template=config.namespace_mapping.template,
        changes=ChangeBudget(config.limits.of, tally.limits.add, lambda: clock.steady_us() / 1e6),
    )


def _logs(settings: Settings) -> LogStore:
    section = settings.config.logs
    window = LogWindow(section.bytes_max)
    if section.store == "database":
        return DatabaseLogs(window)
    logs = DirectoryLogs(settings.data / (section.path or "logs"), window)
    logs.prepare()
    return logs


def _recover_restored(context: Context) -> None:
    """Raise the fences if the database was restored from a backup: it has forgotten attempts that agents still have."""
    database = context.database
    if not restore_recovery.has_restore_mark(database):
        return
    with database.write(is_patient=True) as tx:
        base = restore_recovery.recover_restored(tx, now_us=context.now_us(), audit_id=context.new_id())
    if base is not None:
        log.warning("restored from a backup", fences_from=base)


def _prepare(database: Database) -> None:
    """Give an empty database its schema. An old one is left to `yard db upgrade`, beside which nothing is written."""
    current, head = read_revisions(database)
    if current is None:
        create_schema(database)
    elif current == head:
        with database.read() as tx:
            differences = schema_check.compare(tx)
        schema_check.refuse_harmful(differences)
        for difference in differences:
            log.warning("the schema differs, which does no harm", what=difference.what)
    else:
        raise Conflict(
            f"The database is at revision {current}, this version needs {head}.",
            next_step="Back it up, then run `yard db upgrade` with the same --data or --database.",
        )
    database.guard_revision()
