"""Files of attempts, for the agents of their clusters: read what a job brings along, send what it leaves."""

from __future__ import annotations

from switchyard.model.files.file_frames import MEDIA
from switchyard.model.files.files import (
    AttemptOutputs,
    MissingAnswer,
    MissingQuery,
    ObjectsQuery,
    OutputRoom,
    StoredObjects,
    TreeAnswer,
    TreeQuery,
)
from switchyard.model.wire.ids import ID_PATTERN
from switchyard.server.http.agent_admission import admit_for_attempt, rule_of
from switchyard.server.http.bodies.body_bounds import OBJECTS_BODY
from switchyard.server.http.bodies.object_bodies import read_objects, send_objects
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_json
from switchyard.server.http.endpoint import BodyForm, Caller, Endpoint, check_query
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.http.resources.files.files import read_objects_query
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.files import outputs, possession, reading, seal
from switchyard.service.files.output_room import output_room

OBJECTS_PATH, READ_PATH = "/v1/agents/files/objects", "/v1/agents/files/read"
ATTEMPT = (
    QueryParameter("job", about="the job of the attempt", is_required=True, pattern=ID_PATTERN),
    QueryParameter("fence", "integer", "of the attempt", is_required=True),
)


def missing_objects(call: Call) -> MissingAnswer:
    attempt = _attempt(call)
    return possession.missing_objects(call.context, attempt.owner, call.body.objects, call.body.sizes, attempt=attempt)


def seal_tree(call: Call) -> TreeAnswer:
    attempt = _attempt(call)
    return seal.seal_tree(call.context, attempt.owner, call.body.root, attempt=attempt)


def read_room(call: Call) -> OutputRoom:
    return output_room(call.context, _attempt(call))


def record_outputs(call: Call) -> dict[str, str]:
    assert call.agent is not None
    outputs.record_outputs(call.context, call.agent, call.body)
    return {}


async def put_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/files/objects: the owner of the job holds them."""
    attempt = await _admit(server, scope, OBJECTS_PATH)
    stored = await read_objects(server, scope, receive, attempt.owner, attempt=attempt)
    await send_json(send, 200, stored)


async def get_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/files/read: frames of a tree that the job brings along."""
    attempt = await _admit(server, scope, READ_PATH)
    query = await read_objects_query(server, scope, receive)
    plan = await server.workers.in_file_thread(reading.plan_agent_read, server.context, attempt, query)
    await send_objects(server, scope, send, plan)


async def _admit(server: ServerRuntime, scope: AsgiScope, path: str) -> AgentAttempt:
    await server.authenticator.agent(scope)  # first: strangers learn nothing of the parameters
    query = read_query(scope)
    check_query(ATTEMPT, query)
    values = dict(query)
    return await admit_for_attempt(server, scope, rule_of("POST", path), values["job"], int(values["fence"]))


def _attempt(call: Call) -> AgentAttempt:
    """The attempt for which an agent calls; its owner is the user for whom it sends files."""
    assert call.attempt is not None
    return call.attempt


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/agents/files/room",
        "How much of an attempt's output files the server takes",
        OutputRoom,
        read_room,
        caller=Caller.AGENT,
        query=ATTEMPT,
        is_about_files=True,
    ),
    Endpoint(
        "POST",
        "/v1/agents/files/missing",
        "Which of these objects must still be sent for the attempt",
        MissingAnswer,
        missing_objects,
        MissingQuery,
        caller=Caller.AGENT,
        query=ATTEMPT,
        body_bound=OBJECTS_BODY,
        is_about_files=True,
    ),
    Endpoint(
        "POST",
        OBJECTS_PATH,
        "Send objects of an attempt's outputs, as frames",
        StoredObjects,
        serve=put_objects,
        body=str,
        body_form=BodyForm.FRAMES,
        caller=Caller.AGENT,
        query=ATTEMPT,
    ),
    Endpoint(
        "POST",
        "/v1/agents/files/trees",
        "Seal a tree of an attempt's outputs, for the owner of the job",
        TreeAnswer,
        seal_tree,
        TreeQuery,
        caller=Caller.AGENT,
        query=ATTEMPT,
        is_about_files=True,
    ),
    Endpoint(
        "POST",
        READ_PATH,
        "Read objects of a tree that the job brings along, as frames",
        str,
        serve=get_objects,
        body=ObjectsQuery,
        body_bound=OBJECTS_BODY,
        caller=Caller.AGENT,
        query=ATTEMPT,
        media=MEDIA,
    ),
    Endpoint(
        "POST",
        "/v1/agents/outputs",
        "Where the output files of an attempt are",
        dict[str, str],
        record_outputs,
        AttemptOutputs,
        caller=Caller.AGENT,
        body_bound=OBJECTS_BODY,
        is_about_files=True,
    ),
)
