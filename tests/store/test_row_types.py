"""Every query that returns a row type selects the fields of that type, equal in name and in order."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

import switchyard.features.dashboard.store
import switchyard.features.flyte.store
import switchyard.features.kubernetes.store
import switchyard.store
from switchyard.features.dashboard.store import job_windows
from switchyard.features.flyte.store.entities import entities, entity_names
from switchyard.features.flyte.store.executions import (
    child_executions,
    data_files,
    execution_due,
    execution_dynamics,
    execution_maps,
    execution_nodes,
    execution_pages,
    execution_recovery,
    execution_signals,
    executions,
    schedules,
    task_cache,
)
from switchyard.features.flyte.workflow.lists.list_query import ListOrder
from switchyard.features.kubernetes.store import namespace_rows
from switchyard.model.job.event_kind import EventKind
from switchyard.store.access import access, submit_tokens
from switchyard.store.clusters import (
    cluster_samples,
    clusters,
    graphs,
    group_invites,
    layout,
    probations,
    quotes,
    route_counts,
)
from switchyard.store.engine import leaders, ranges
from switchyard.store.engine.database import Database, Tx
from switchyard.store.engine.metadata import metadata
from switchyard.store.engine.new_rows import EventRow, NewJobRow, RangeUpdate
from switchyard.store.files import file_collection, file_objects, file_outputs, file_trees
from switchyard.store.jobs import (
    backlog,
    decision_events,
    events,
    failed_attempts,
    fetch,
    handovers,
    jobs,
    leases,
    retention,
    spread_arrays,
    unreadable_jobs,
    usage,
)
from switchyard.store.jobs.fetch import StoredRow
from switchyard.store.jobs.job_rows import AttemptRow, IdempotencyClaim, RepairedJobRow
from switchyard.store.jobs.jobs import JobFilter
from switchyard.store.rules import attributes, namespace_resources, queues, token_pools
from tests.store.rows import NOW_US, an_id, job_row, put_agent, put_cluster, put_jobs

PAGE: dict[str, Any] = {"after": "", "limit": 9}
FAILURES: dict[str, Any] = {"since_us": 0, "by": "nodes", "project": "p", "projects": ["p"], "reader": "u"}
FAILURES |= {"budget": 9, "limit": 9}
SILENT: dict[str, Any] = {"now_us": NOW_US, "amnesty_us": 0, "bears_s": 9, "silent_us": 9, "limit": 9}
ATTRIBUTE = attributes.WrittenValue(an_id(1), rank=1, value="{}", etag="e", changed_us=1, changed_by="ann")
SCOPE = ("", "", "", "")
ENTITY = entities.EntityKey("task", "p", "d", "n", "v")
ENTITY_NAME = entity_names.EntityNameKey("task", "p", "d", "n")
ENTITIES: dict[str, Any] = {
    **{"kind": "task", "project": "p", "domain": "d", "filters": ()},
    **{"order": ListOrder("name", is_descending=True), "offset": 0, "limit": 9},
}

EXECUTION = executions.ExecutionKey("p", "d", "n")
EXECUTIONS: dict[str, Any] = {
    **{"project": "p", "domain": "d", "filters": (), "with_archived": False},
    **{"order": ListOrder("created_us", is_descending=True), "offset": 0, "limit": 9, "bytes_max": 9},
}
SIGNALS: dict[str, Any] = {"is_descending": False, "offset": 0, "limit": 9, "bytes_max": 9}
NODES: dict[str, Any] = {"parent": None, "is_descending": False, "offset": 0, "limit": 9, "bytes_max": 9}

QUERIES: dict[Callable[..., Any], Callable[[Tx], Any]] = {
    execution_pages.execution_page: lambda tx: execution_pages.execution_page(
        tx, execution_pages.ExecutionFilter(cluster="c"), before=None, limit=9, budget=9
    ),
    execution_pages.live_counts: lambda tx: execution_pages.live_counts(tx, limit=9),
    execution_pages.node_states: lambda tx: execution_pages.node_states(tx, "e"),
    execution_pages.attempts_of: lambda tx: execution_pages.attempts_of(tx, "e", ["n0"]),
    execution_pages.map_counts: lambda tx: execution_pages.map_counts(tx, "e"),
    execution_dynamics.dynamics_shown: lambda tx: execution_dynamics.dynamics_shown(tx, "e", bytes_max=9),
    executions.execution_get: lambda tx: executions.execution_get(tx, EXECUTION),
    executions.execution_lock: lambda tx: executions.execution_lock(tx, EXECUTION),
    execution_recovery.recoverable_nodes: lambda tx: execution_recovery.recoverable_nodes(tx, "e"),
    schedules.schedules_due: lambda tx: schedules.schedules_due(tx, 9, limit=9),
    schedules.schedule_get: lambda tx: schedules.schedule_get(tx, "p", "d", "n"),
    execution_due.marked_due: lambda tx: execution_due.marked_due(tx, limit=9),
    execution_due.executions_by_id: lambda tx: execution_due.executions_by_id(tx, ["e"]),
    executions.execution_list: lambda tx: executions.execution_list(tx, **EXECUTIONS),
    execution_nodes.node_list: lambda tx: execution_nodes.node_list(tx, "e"),
    execution_nodes.node_page: lambda tx: execution_nodes.node_page(tx, "e", **NODES),
    execution_nodes.node_get: lambda tx: execution_nodes.node_get(tx, "e", "n0"),
    execution_dynamics.dynamic_live: lambda tx: execution_dynamics.dynamic_live(tx, "e"),
    execution_dynamics.dynamic_last: lambda tx: execution_dynamics.dynamic_last(tx, "e", "n0"),
    execution_signals.signal_get: lambda tx: execution_signals.signal_get(tx, "e", "s"),
    execution_signals.signal_page: lambda tx: execution_signals.signal_page(tx, "e", **SIGNALS),
    execution_nodes.job_of_attempt: lambda tx: execution_nodes.job_of_attempt(tx, "e", "n0", 0),
    execution_maps.maps_live: lambda tx: execution_maps.maps_live(tx, "e", limit=9),
    execution_maps.maps_done: lambda tx: execution_maps.maps_done(tx, "e"),
    execution_maps.map_get: lambda tx: execution_maps.map_get(tx, "e", "n0"),
    execution_maps.map_parts: lambda tx: execution_maps.map_parts(tx, "e", "n0"),
    execution_maps.map_job: lambda tx: execution_maps.map_job(tx, "j"),
    execution_maps.task_outputs: lambda tx: execution_maps.task_outputs(tx, "j"),
    child_executions.children_ended: lambda tx: child_executions.children_ended(tx, "e", limit=9, bytes_max=9),
    task_cache.cache_get: lambda tx: task_cache.cache_get(tx, [b"k"]),
    ranges.range_list_of_fences: lambda tx: ranges.range_list_of_fences(tx, "j", 1, 9),
    execution_nodes.attempt_list: lambda tx: execution_nodes.attempt_list(tx, "e", "n0"),
    execution_nodes.live_attempts: lambda tx: execution_nodes.live_attempts(tx, "e"),
    data_files.data_file_get: lambda tx: data_files.data_file_get(tx, "p", "d", "f"),
    data_files.grant_get: lambda tx: data_files.grant_get(tx, b"t"),
    access.user_all: access.user_all,
    access.user_by_name: lambda tx: access.user_by_name(tx, "ann"),
    access.user_lock: lambda tx: access.user_lock(tx, "ann"),
    access.token_all: access.token_all,
    access.token_list: lambda tx: access.token_list(tx, None, **PAGE),
    access.token_lock: lambda tx: access.token_lock(tx, "t1"),
    access.grant_all: access.grant_all,
    access.project_all: access.project_all,
    access.project_get: lambda tx: access.project_get(tx, "p"),
    access.audit_list_of: lambda tx: access.audit_list_of(tx, "o", before=None, limit=9),
    access.audit_list: lambda tx: access.audit_list(tx, before=None, limit=9),
    attributes.attribute_get: lambda tx: attributes.attribute_get(tx, "k", SCOPE),
    attributes.attribute_nearest: lambda tx: attributes.attribute_nearest(tx, "k", SCOPE),
    attributes.attribute_list: lambda tx: attributes.attribute_list(
        tx, "k", wanted={}, rank=None, projects=None, after=(9, ""), limit=9
    ),
    attributes.attribute_put: lambda tx: attributes.attribute_put(tx, "k", SCOPE, ATTRIBUTE),
    attributes.attribute_list_since: lambda tx: attributes.attribute_list_since(tx, 0),
    backlog.backlog_page: lambda tx: backlog.backlog_page(tx, "c1", "l", after=None, limit=9),
    backlog.backlog_demands: lambda tx: backlog.backlog_demands(tx, "c1", limit=9),
    cluster_samples.samples_since: lambda tx: cluster_samples.samples_since(tx, "c1", since_us=1, limit=9),
    probations.evidence_lock: lambda tx: probations.evidence_lock(tx, ["ann"]),
    probations.evidence_all: probations.evidence_all,
    probations.probation_all: probations.probation_all,
    probations.probation_lock: lambda tx: probations.probation_lock(tx, ["c1"]),
    probations.probation_try_lock: lambda tx: probations.probation_try_lock(tx, ["c1"]),
    probations.ready_before: lambda tx: probations.ready_before(tx, "c1", before_us=9, limit=9),
    probations.jobs_waiting_at: lambda tx: probations.jobs_waiting_at(tx, ["c1"], owner_id="ann", limit=9),
    clusters.cluster_all: clusters.cluster_all,
    clusters.cluster_by_name: lambda tx: clusters.cluster_by_name(tx, "c"),
    clusters.cluster_by_id: lambda tx: clusters.cluster_by_id(tx, "c1"),
    clusters.cluster_lock: lambda tx: clusters.cluster_lock(tx, "c1"),
    clusters.agent_all: clusters.agent_all,
    clusters.agent_of: lambda tx: clusters.agent_of(tx, "c1"),
    clusters.agent_lock_by_name: lambda tx: clusters.agent_lock_by_name(tx, "c1", "a"),
    clusters.agent_lock: lambda tx: clusters.agent_lock(tx, "a1"),
    clusters.agent_sessions: lambda tx: clusters.agent_sessions(tx, ["a1"]),
    clusters.invite_lock: lambda tx: clusters.invite_lock(tx, "i1"),
    clusters.invite_peek: lambda tx: clusters.invite_peek(tx, "i1"),
    clusters.invite_list: lambda tx: clusters.invite_list(tx, "c1", **PAGE),
    group_invites.group_invite_lock: lambda tx: group_invites.group_invite_lock(tx, "i1"),
    group_invites.pilot_list: lambda tx: group_invites.pilot_list(tx, ["c1"], now_us=0),
    group_invites.group_invite_list: lambda tx: group_invites.group_invite_list(tx, "g1", **PAGE),
    decision_events.decision_list: lambda tx: decision_events.decision_list(
        tx, "j", states=["A"], but=[EventKind.LATE], limit=9
    ),
    entities.entity_get: lambda tx: entities.entity_get(tx, ENTITY),
    entities.entity_get_many: lambda tx: entities.entity_get_many(tx, [ENTITY]),
    entities.entity_active: lambda tx: entities.entity_active(tx, ENTITY),
    entities.entity_list: lambda tx: entities.entity_list(tx, name="n", only_active=True, **ENTITIES),
    entities.usage_add: lambda tx: entities.usage_add(tx, "p", 9),
    entity_names.name_get: lambda tx: entity_names.name_get(tx, ENTITY_NAME),
    entity_names.name_lock: lambda tx: entity_names.name_lock(tx, ENTITY_NAME),
    entity_names.name_list: lambda tx: entity_names.name_list(tx, **ENTITIES),
    events.event_list_of_tasks: lambda tx: events.event_list_of_tasks(tx, "j", [1]),
    events.event_list_of_array: lambda tx: events.event_list_of_array(tx, "j", ["task-failed"], limit=9),
    events.event_list: lambda tx: events.event_list(tx, job_id=None, projects=["p"], reader="ann", after=0, limit=9),
    file_collection.holders_between: lambda tx: file_collection.holders_between(tx, b"a", b"b"),
    file_collection.parts_between: lambda tx: file_collection.parts_between(tx, b"a", b"b", after=(b"", b""), limit=9),
    file_objects.stored_totals: file_objects.stored_totals,
    clusters.agent_holder: lambda tx: clusters.agent_holder(tx, "a1"),
    file_outputs.attempt_place: lambda tx: file_outputs.attempt_place(tx, "j", 1),
    file_outputs.output_get: lambda tx: file_outputs.output_get(tx, "j", 1),
    file_outputs.output_list: lambda tx: file_outputs.output_list(tx, "j", task=1, after=1, limit=9),
    file_trees.tree_lock: lambda tx: file_trees.tree_lock(tx, b"r"),
    file_trees.tree_of_owner: lambda tx: file_trees.tree_of_owner(tx, "ann", b"r"),
    file_trees.trees_for_jobs: lambda tx: file_trees.trees_for_jobs(tx, [("ann", b"r")]),
    graphs.source_heads: lambda tx: graphs.source_heads(tx, "c1"),
    graphs.source_all: lambda tx: graphs.source_all(tx, "c1"),
    graphs.source_get: lambda tx: graphs.source_get(tx, "c1", ""),
    handovers.handover_get: lambda tx: handovers.handover_get(tx, "c1", [1]),
    handovers.handover_overdue: lambda tx: handovers.handover_overdue(tx, received_before_us=1, limit=9),
    handovers.handover_still_open: lambda tx: handovers.handover_still_open(tx, [1]),
    handovers.handover_unreported: lambda tx: handovers.handover_unreported(tx, accepted_before_us=1, limit=9),
    job_windows.job_sorted: lambda tx: [
        job_windows.job_sorted(tx, JobFilter(), order=order, offset=0, limit=9, budget=9, now_us=1)[0]
        for order in job_windows.ORDERS
    ],
    jobs.idempotency_claim: lambda tx: jobs.idempotency_claim(tx, [IdempotencyClaim("ann", "k", "h", "j", 1)]),
    jobs.idempotency_get: lambda tx: jobs.idempotency_get(tx, "ann", "k"),
    jobs.job_get: lambda tx: jobs.job_get(tx, an_id(1)),
    jobs.job_states: lambda tx: jobs.job_states(tx, [an_id(1)]),
    jobs.job_list: lambda tx: [
        jobs.job_list(tx, JobFilter(), before=None, limit=9, budget=9, with_spec=with_spec)
        for with_spec in (True, False)
    ],
    jobs.job_lock: lambda tx: jobs.job_lock(tx, [an_id(1)]),
    jobs.job_list_routable: lambda tx: jobs.job_list_routable(tx, **PAGE),
    jobs.dependency_list_settled: lambda tx: jobs.dependency_list_settled(tx, limit=9),
    jobs.dependency_list: lambda tx: jobs.dependency_list(tx, "j"),
    jobs.attempt_list: lambda tx: jobs.attempt_list(tx, "j"),
    layout.layout_all: layout.layout_all,
    layout.layout_get: lambda tx: layout.layout_get(tx, "p", "n"),
    leaders.leader_get: lambda tx: leaders.leader_get(tx, "l"),
    leaders.leader_lock: lambda tx: leaders.leader_lock(tx, "l"),
    leases.lease_candidates: lambda tx: leases.lease_candidates(tx, {"c1": 9}),
    leases.leased_by: lambda tx: leases.leased_by(tx, "a1"),
    leases.leased_cancels: lambda tx: leases.leased_cancels(tx, ["a1"]),
    leases.leased_by_silent: lambda tx: leases.leased_by_silent(tx, **SILENT),
    namespace_resources.namespace_all: namespace_resources.namespace_all,
    namespace_rows.report_list: lambda tx: namespace_rows.report_list(tx, ["c1"], ["n"]),
    queues.ready_tail: lambda tx: queues.ready_tail(tx, "c1", "l", 9),
    queues.arrays_without_places: lambda tx: queues.arrays_without_places(tx, ["default"], 9),
    queues.queued_heads: lambda tx: queues.queued_heads(tx, "l", 9),
    queues.queued_needing_tokens: lambda tx: queues.queued_needing_tokens(tx, "l", 9, namespaces=["n"]),
    queues.queued_with_other_reason: lambda tx: queues.queued_with_other_reason(tx, "l", 9, reason="r"),
    queues.arrays_with_places: lambda tx: queues.arrays_with_places(tx, 9),
    queues.queued_ahead: lambda tx: queues.queued_ahead(tx, "l", 9),
    queues.ready_ahead: lambda tx: queues.ready_ahead(tx, "c1", "l", 9),
    quotes.ask_list_open: lambda tx: quotes.ask_list_open(tx, "c1", now_us=1, limit=9),
    quotes.ask_lock: lambda tx: quotes.ask_lock(tx, ["s"]),
    quotes.quote_list_valid: lambda tx: quotes.quote_list_valid(tx, "s", now_us=1, limit=9),
    quotes.quote_list_of_shapes: lambda tx: quotes.quote_list_of_shapes(tx, ["s"]),
    quotes.quote_list_in_time: lambda tx: quotes.quote_list_in_time(tx, "s", asked_us=1, deadline_us=2, limit=9),
    quotes.wait_list_due: lambda tx: quotes.wait_list_due(tx, now_us=1, limit=9),
    quotes.use_get: lambda tx: quotes.use_get(tx, "j"),
    quotes.use_list_open: lambda tx: quotes.use_list_open(tx, **PAGE),
    quotes.backlog_by_spec: lambda tx: quotes.backlog_by_spec(tx, "c1", 9),
    ranges.range_live: lambda tx: ranges.range_live(tx, ["j"]),
    ranges.range_list: lambda tx: ranges.range_list(tx, "j"),
    failed_attempts.count_failures: lambda tx: failed_attempts.count_failures(tx, **FAILURES),
    job_windows.count_groups: lambda tx: job_windows.count_groups(tx, JobFilter(), by="cluster", budget=9, limit=9),
    ranges.range_list_of_task: lambda tx: ranges.range_list_of_task(tx, "j", 1),
    ranges.range_leased_by: lambda tx: ranges.range_leased_by(tx, "a1"),
    ranges.range_cancelling: lambda tx: ranges.range_cancelling(tx, ["a1"]),
    ranges.range_leased_by_silent: lambda tx: ranges.range_leased_by_silent(tx, **SILENT),
    retention.job_hashes_page: lambda tx: retention.job_hashes_page(tx, **PAGE),
    route_counts.count_by_route: lambda tx: route_counts.count_by_route(
        tx, oldest="", projects=None, reader="ann", budget=9, limit=9
    ),
    route_counts.count_by_time: lambda tx: route_counts.count_by_time(
        tx, oldest="", span_us=60, projects=None, reader="ann", budget=9, limit=9
    ),
    spread_arrays.spread_arrays: lambda tx: spread_arrays.spread_arrays(tx, limit=9),
    submit_tokens.submit_token_all: submit_tokens.submit_token_all,
    submit_tokens.consent_get: lambda tx: submit_tokens.consent_get(tx, "c1", "ann"),
    token_pools.pool_all: token_pools.pool_all,
    token_pools.pool_get: lambda tx: token_pools.pool_get(tx, "n"),
    token_pools.job_needing_tokens: lambda tx: token_pools.job_needing_tokens(tx, **PAGE),
    unreadable_jobs.jobs_with_specs: lambda tx: unreadable_jobs.jobs_with_specs(tx, [an_id(1)]),
    unreadable_jobs.live_jobs_with_specs: lambda tx: unreadable_jobs.live_jobs_with_specs(tx, **PAGE),
    usage.live_arrays: lambda tx: usage.live_arrays(tx, ["ann"]),
}
NO_QUERIES = {
    attributes.WrittenValue,
    entities.EntityKey,
    entity_names.EntityNameKey,
    executions.ExecutionKey,
    handovers.NewHandover,
    namespace_rows.NewNamespaceRow,
    quotes.QuoteWaitRow,
    unreadable_jobs.QuarantinedJob,
    AttemptRow,
    EventRow,
    failed_attempts.FailedAttempt,
    NewJobRow,
    RangeUpdate,
    RepairedJobRow,
    StoredRow,
}


def store_functions() -> Iterator[Callable[..., Any]]:
    features = switchyard.features
    packages = (switchyard.store, features.dashboard.store, features.flyte.store, features.kubernetes.store)
    modules = (info for each in packages for info in pkgutil.walk_packages(each.__path__, f"{each.__name__}."))
    for info in modules:
        if ".migrations" in info.name:
            continue
        module = importlib.import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and module is not fetch and not name.startswith("_"):
                yield function


def row_types_in(annotation: Any) -> set[type[StoredRow]]:
    if inspect.isclass(annotation) and issubclass(annotation, StoredRow):
        return {annotation}
    return {found for part in typing.get_args(annotation) for found in row_types_in(part)}


def returned_type(function: Callable[..., Any]) -> type[StoredRow] | None:
    first = inspect.signature(function).parameters
    types = row_types_in(typing.get_type_hints(function).get("return")) if "tx" in first else set()
    return next(iter(types), None)


def subclasses(row_type: type[StoredRow]) -> set[type[StoredRow]]:
    return {row_type}.union(*(subclasses(each) for each in row_type.__subclasses__()))


def test_all_queries_and_all_types_are_tested() -> None:
    assert {function for function in store_functions() if returned_type(function)} == set(QUERIES)
    assert {returned_type(function) for function in QUERIES} | NO_QUERIES == {
        row_type
        for row_type in subclasses(StoredRow)
        if row_type.__module__.startswith("switchyard.") and ".store." in row_type.__module__
    }


@contextmanager
def selected(tx: Tx) -> Iterator[list[tuple[str, ...]]]:
    """The columns of every query that goes to the driver."""
    columns: list[tuple[str, ...]] = []

    def note(_tx: Any, cursor: Any, *_rest: object) -> None:
        columns.append(tuple(column[0] for column in cursor.description or ()))

    sa.event.listen(tx, "after_cursor_execute", note)
    yield columns
    sa.event.remove(tx, "after_cursor_execute", note)


@pytest.fixture
def filled(store: Database) -> Database:
    with store.write() as tx:
        put_cluster(tx)
        put_agent(tx)
        events.counter_take(tx, "policy", 1)  # an attribute is put under the version of the policy
        put_jobs(tx, job_row(1), job_row(2, array="0-3", todo="0-3", tasks_live=0))
        executions.execution_insert(tx, a_row(executions.ExecutionRow, id="e", digest=b"", spec=b"", inputs=b""))
        execution_nodes.node_put(tx, [a_row(execution_nodes.NodeRow, execution_id="e", node_id="n0", attempts=1)])
        execution_dynamics.dynamic_insert(tx, [execution_dynamics.DynamicRow("e", "n0", 0, b"")])
    return store


def a_row(row_type: type[fetch.R], **fields: Any) -> fetch.R:
    """A row whose other fields are nothing: 0, no, or an empty text."""
    hints = typing.get_type_hints(row_type)
    nothing = {name: None if type(None) in typing.get_args(kind) else kind() for name, kind in hints.items()}
    return row_type(**{**nothing, **fields})


def test_a_query_selects_the_fields_of_its_type(filled: Database) -> None:
    with filled.write() as tx:
        for function, query in QUERIES.items():
            row_type = returned_type(function)
            assert row_type is not None
            with selected(tx) as columns:
                query(tx)
            assert row_type.__struct_fields__ in columns, (function, columns)


def test_a_field_is_optional_where_its_column_is() -> None:
    """Of the types that are one whole table. A query may promise more than the table: it filters."""
    whole = {tuple(table.c.keys()): table for table in metadata.sorted_tables}
    types = {
        row_type: whole[row_type.__struct_fields__]
        for row_type in subclasses(StoredRow)
        if row_type.__struct_fields__ in whole
    }
    assert len(types) > 20
    for row_type, table in types.items():
        for name, annotation in typing.get_type_hints(row_type).items():
            if type(None) in typing.get_args(annotation):
                assert table.c[name].nullable, (row_type, name)
