"""Resource graphs of clusters, and their subsystems."""

from __future__ import annotations

from typing import Any

from switchyard.errors import BadValue, Malformed
from switchyard.model.cluster.cluster import GraphInfo, Subsystem
from switchyard.model.graph import Graph
from switchyard.model.graph.subsystem import SUBSYSTEM_NAME
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import RawAnswer
from switchyard.server.http.endpoint import BodyForm, Caller, Endpoint
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.service.cluster import graphs

FORMS = ("compact", "source")


def graph_put(call: Call) -> GraphInfo:
    return graphs.graph_put(call.context, call.caller, call.path["cluster"], call.body)


def graph_get(call: Call) -> Graph | RawAnswer:
    name = call.path["cluster"]
    if call.text("form") == "source":
        return RawAnswer(graphs.graph_source(call.context, call.caller, name))
    return graphs.graph_get(call.context, call.caller, name)


def graph_delete(call: Call) -> Deleted:
    graphs.graph_delete(call.context, call.caller, call.path["cluster"])
    return Deleted(call.path["cluster"])


def subsystem_list(call: Call) -> Page[Subsystem]:
    return Page(graphs.subsystem_list(call.context, call.caller, call.path["cluster"]))


def subsystem_put(call: Call) -> Subsystem:
    return graphs.subsystem_put(call.context, call.caller, call.path["cluster"], _subsystem(call), call.body)


def subsystem_get(call: Call) -> RawAnswer:
    return RawAnswer(graphs.subsystem_source(call.context, call.caller, call.path["cluster"], _subsystem(call)))


def subsystem_delete(call: Call) -> Deleted:
    graphs.subsystem_delete(call.context, call.caller, call.path["cluster"], _subsystem(call))
    return Deleted(_subsystem(call))


def _subsystem(call: Call) -> str:
    name = call.path["subsystem"]
    if not SUBSYSTEM_NAME.match(name):
        raise Malformed(f"{name[:80]!r} is not a valid name.")
    if name in graphs.RESERVED_SUBSYSTEMS:
        raise BadValue(f"The name {name!r} means the main graph; a subsystem needs another.")
    return name


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/graph",
        "Set the resource graph of a cluster: JGF, R or the short form, also gzip or deflate; it overrides the agent's",
        GraphInfo,
        graph_put,
        dict[str, Any],
        caller=Caller.USER_OR_AGENT,
        body_form=BodyForm.UPLOAD,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/graph",
        "The resource graph of a cluster: compiled, or as it was sent",
        Graph,
        graph_get,
        caller=Caller.USER_OR_AGENT,
        query=(QueryParameter("form", about="compact (default) or source", words=FORMS),),
        has_text=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/graph",
        "Remove the graph that was set; the agent's graph applies again",
        Deleted,
        graph_delete,
        caller=Caller.USER_OR_AGENT,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems",
        "The subsystems of a cluster",
        Page[Subsystem],
        subsystem_list,
        caller=Caller.USER_OR_AGENT,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Set or replace a subsystem: a further graph on the vertices of the main one",
        Subsystem,
        subsystem_put,
        dict[str, Any],
        caller=Caller.USER_OR_AGENT,
        body_form=BodyForm.UPLOAD,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "A subsystem, as it was sent",
        str,
        subsystem_get,
        caller=Caller.USER_OR_AGENT,
        media="text/plain",
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Remove a subsystem",
        Deleted,
        subsystem_delete,
        caller=Caller.USER_OR_AGENT,
    ),
)
