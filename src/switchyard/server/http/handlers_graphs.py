"""The endpoints about what clusters have: graphs, subsystems, and whether a job fits. From a Call to a use case."""

from __future__ import annotations

from switchyard.errors import BadValue, Malformed
from switchyard.model.api import Deleted, Page
from switchyard.model.cluster import GraphInfo, Subsystem
from switchyard.model.graph import Graph
from switchyard.model.graph.subsystem import SUBSYSTEM_NAME
from switchyard.server.http.asgi_messages import RawAnswer
from switchyard.server.http.call import Call
from switchyard.service.cluster import graphs

FORMS = ("compact", "source")


def graph_put(call: Call) -> GraphInfo:
    return graphs.graph_put(call.yard.context, call.caller, call.path["cluster"], call.body)


def graph_get(call: Call) -> Graph | RawAnswer:
    name = call.path["cluster"]
    if call.text("form") == "source":
        return RawAnswer(graphs.graph_source(call.yard.context, call.caller, name))
    return graphs.graph_get(call.yard.context, call.caller, name)


def graph_delete(call: Call) -> Deleted:
    graphs.graph_delete(call.yard.context, call.caller, call.path["cluster"])
    return Deleted(call.path["cluster"])


def subsystem_list(call: Call) -> Page[Subsystem]:
    return Page(graphs.subsystem_list(call.yard.context, call.caller, call.path["cluster"]))


def subsystem_put(call: Call) -> Subsystem:
    return graphs.subsystem_put(call.yard.context, call.caller, call.path["cluster"], _subsystem(call), call.body)


def subsystem_get(call: Call) -> RawAnswer:
    return RawAnswer(graphs.subsystem_source(call.yard.context, call.caller, call.path["cluster"], _subsystem(call)))


def subsystem_delete(call: Call) -> Deleted:
    graphs.subsystem_delete(call.yard.context, call.caller, call.path["cluster"], _subsystem(call))
    return Deleted(_subsystem(call))


def _subsystem(call: Call) -> str:
    name = call.path["subsystem"]
    if not SUBSYSTEM_NAME.match(name):
        raise Malformed(f"{name[:80]!r} is not a valid name.")
    if name in graphs.RESERVED_SUBSYSTEMS:
        raise BadValue(f"The name {name!r} means the main graph; a subsystem needs another.")
    return name
