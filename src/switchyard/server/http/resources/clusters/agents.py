"""Agents: list, pause, remove, join, rotate credentials."""

from __future__ import annotations

from switchyard.model.cluster.cluster import Agent, AgentChange
from switchyard.model.cluster.poll import Join, Joined, Leave, Left, Rotate, Rotated
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.bodies.body_bounds import LEAVE_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import BodyForm, Caller, Endpoint
from switchyard.server.http.query_parameters import ABANDON, CURSOR, LIMIT, QueryParameter
from switchyard.service.cluster import agent_join, agent_leave, agents
from switchyard.service.run.report import take_back_unbegun


def agent_list(call: Call) -> Page[Agent]:
    registered = agents.agent_list(call.context, call.actor, call.text("cluster"))
    return call.page(registered, lambda agent: agent.id)


def agent_change(call: Call) -> Agent:
    return agents.agent_change(call.context, call.actor, call.path["agent"], call.body)


def agent_remove(call: Call) -> Deleted:
    unsent = agents.agent_remove(call.context, call.actor, call.path["agent"], abandon=call.flag("abandon"))
    return Deleted(call.path["agent"], outputs_given_up=unsent)


def agent_self(call: Call) -> Agent:
    assert call.agent is not None
    return agents.agent_view(call.context, call.agent)


def agent_rotate(call: Call) -> Rotated:
    assert call.agent is not None
    return agents.rotate_credential(call.context, call.agent, call.body)


def cluster_leave(call: Call) -> Left:
    assert call.agent is not None
    agents.require_place(call.context, call.agent, call.body.incarnation)
    take_back_unbegun(call.context, call.agent, call.body)
    return agent_leave.leave_cluster(call.context, call.agent, call.body)


def cluster_join(call: Call) -> Joined:
    return agent_join.join_agent(call.context, call.token, call.body, is_open=call.services.settings.is_open)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/agents", "Agents", Page[Agent], agent_list, query=(QueryParameter("cluster"), LIMIT, CURSOR)),
    Endpoint("PATCH", "/v1/agents/{agent}", "Pause or resume an agent", Agent, agent_change, AgentChange),
    Endpoint("DELETE", "/v1/agents/{agent}", "Remove an agent", Deleted, agent_remove, query=(ABANDON,)),
    Endpoint("GET", "/v1/agents/self", "The agent that asks", Agent, agent_self, caller=Caller.AGENT),
    Endpoint(
        "POST",
        "/v1/agents/rotate",
        "A new credential",
        Rotated,
        agent_rotate,
        Rotate,
        201,
        Caller.AGENT,
        body_form=BodyForm.OPTIONAL_JSON,
    ),
    Endpoint(
        "POST",
        "/v1/agents/leave",
        "Leave an ephemeral cluster",
        Left,
        cluster_leave,
        Leave,
        200,
        Caller.AGENT,
        body_bound=LEAVE_BODY,
    ),
    Endpoint("POST", "/v1/agents/join", "Join a cluster", Joined, cluster_join, Join, 201, Caller.JOINER),
)
