"""Executions of Flyte's workflows and tasks: list, show, nodes, explain, create. Flyte's own doors are beside it.

The use cases need the package flyteidl, so each handler imports its own when it is called.
"""

from __future__ import annotations

from switchyard.errors import NotFound
from switchyard.features.flyte.model.workflow_execution import (
    EXECUTION_NAME_PATTERN,
    PHASES,
    CreatedExecution,
    ExecutionDetails,
    ExecutionExplanation,
    ExecutionNode,
    LaunchRequest,
    TerminateRequest,
    WorkflowExecution,
)
from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed, not_installed_error
from switchyard.features.flyte.store.executions.execution_pages import ExecutionFilter
from switchyard.features.flyte.store.executions.executions import ExecutionKey
from switchyard.model.wire.api import Page
from switchyard.server.http.bodies.body_bounds import ENTITY_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ID_CURSOR, LIMIT, QueryParameter

PLACE_MAX = 10**7  # of a node in an execution
PLACE_CURSOR = QueryParameter("cursor", "integer", "the `next` of the page before", most=PLACE_MAX)
WORDS = (*PHASES, *(phase.lower() for phase in PHASES))
EXECUTION_FILTERS = (
    QueryParameter("project"),
    QueryParameter("domain"),
    QueryParameter("phase", about="only in these phases", is_repeatable=True, words=WORDS),
    QueryParameter("cluster", about="only those that run or ran there"),
    QueryParameter("pool"),
    QueryParameter("label", about="the cluster label that bounds them"),
    QueryParameter("owner"),
    QueryParameter("launched", about="the name of the launch plan or task"),
    QueryParameter("archived", "boolean", "archived ones, too"),
)


def execution_list(call: Call) -> Page[WorkflowExecution]:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_page

    wanted = read_execution_filter(call)
    return execution_page(call.context, call.actor, wanted, before=call.id_cursor, limit=call.limit)


def read_execution_filter(call: Call) -> ExecutionFilter:
    return ExecutionFilter(
        project=call.text("project"),
        domain=call.text("domain"),
        phases=[text.upper() for text in call.texts("phase")],
        cluster=call.text("cluster"),
        pool=call.text("pool"),
        label=call.text("label"),
        owner=call.text("owner"),
        launched=call.text("launched"),
        with_archived=call.flag("archived"),
    )


def execution_get(call: Call) -> ExecutionDetails:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_details

    return execution_details(call.context, call.actor, execution_key(call))


def node_list(call: Call) -> Page[ExecutionNode]:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.nodes.node_outlines import node_page

    return node_page(call.context, call.actor, execution_key(call), offset=call.number("cursor", 0), limit=call.limit)


def execution_explain(call: Call) -> ExecutionExplanation:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.explanations import explain_execution

    return explain_execution(call.context, call.actor, execution_key(call))


def execution_create(call: Call) -> CreatedExecution:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.driving.launches import launch

    return launch(call.context, call.actor, call.body)


def execution_terminate(call: Call) -> ExecutionDetails:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.changes import terminate
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_details

    key = execution_key(call)
    terminate(call.context, call.actor, key, call.body.cause)
    return execution_details(call.context, call.actor, key)


def execution_key(call: Call) -> ExecutionKey:
    return ExecutionKey(call.path["project"], call.path["domain"], call.path["execution"])


def need_flyteidl() -> None:
    if not is_flyteidl_installed():
        error = not_installed_error()
        raise NotFound(error.detail, next_step=error.next_step)


PATTERNS = {"execution": EXECUTION_NAME_PATTERN}
ADDRESS = "/v1/executions/{project}/{domain}/{execution}"
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/executions",
        "Executions of workflows and tasks, newest first",
        Page[WorkflowExecution],
        execution_list,
        query=(*EXECUTION_FILTERS, LIMIT, ID_CURSOR),
    ),
    Endpoint(
        "POST",
        "/v1/executions",
        "Create an execution from plain inputs, or run one again",
        CreatedExecution,
        execution_create,
        LaunchRequest,
        201,
        body_bound=ENTITY_BODY,
        is_ruled=True,
        is_heavy=True,
    ),
    Endpoint("GET", ADDRESS, "One execution", ExecutionDetails, execution_get, patterns=PATTERNS),
    Endpoint(
        "POST",
        f"{ADDRESS}/terminate",
        "End an execution: its jobs are cancelled, and no node begins",
        ExecutionDetails,
        execution_terminate,
        TerminateRequest,
        patterns=PATTERNS,
    ),
    Endpoint(
        "GET",
        f"{ADDRESS}/nodes",
        "The nodes of an execution, in drawing order",
        Page[ExecutionNode],
        node_list,
        query=(LIMIT, PLACE_CURSOR),
        is_heavy=True,
        patterns=PATTERNS,
    ),
    Endpoint(
        "GET",
        f"{ADDRESS}/explain",
        "Where an execution runs and why",
        ExecutionExplanation,
        execution_explain,
        is_heavy=True,
        patterns=PATTERNS,
    ),
)
