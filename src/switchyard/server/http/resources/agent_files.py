"""Files of attempts, for the agents of their clusters: read what a job brings along, send what it leaves."""

from __future__ import annotations

from switchyard.model.file_frames import MEDIA
from switchyard.model.files import (
    AttemptOutputs,
    MissingAnswer,
    MissingQuery,
    ObjectsQuery,
    OutputRoom,
    StoredObjects,
    TreeAnswer,
    TreeQuery,
)
from switchyard.model.ids import ID_PATTERN
from switchyard.server.http.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_json
from switchyard.server.http.body_bounds import OBJECTS_BODY
from switchyard.server.http.call import Call, read_query
from switchyard.server.http.endpoint import BodyForm, Caller, Endpoint, check_query
from switchyard.server.http.object_bodies import read_objects, send_objects
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.http.resources.files import read_objects_query
from switchyard.server.runtime import ServerRuntime
from switchyard.service.files import outputs, possession, reading, seal
from switchyard.service.files.attempts import owner_of_attempt
from switchyard.service.files.output_room import output_room

ATTEMPT = (
    QueryParameter("job", about="the job of the attempt", is_required=True, pattern=ID_PATTERN),
    QueryParameter("fence", "integer", "of the attempt", is_required=True),
)


def missing_objects(call: Call) -> MissingAnswer:
    return possession.missing_objects(call.context, _owner(call), call.body.objects, call.body.sizes)


def seal_tree(call: Call) -> TreeAnswer:
    return seal.seal_tree(call.context, _owner(call), call.body.root)


def read_room(call: Call) -> OutputRoom:
    assert call.agent is not None
    return output_room(call.context, call.agent, call.text("job") or "", call.number("fence", 0))


def record_outputs(call: Call) -> dict[str, str]:
    assert call.agent is not None
    outputs.record_outputs(call.context, call.agent, call.body)
    return {}


async def put_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/files/objects: the owner of the job holds them."""
    agent = await server.authenticator.agent(scope)
    job, fence = _attempt(scope)
    owner = await server.workers.in_file_thread(owner_of_attempt, server.context, agent, job, fence)
    stored = await read_objects(server, scope, receive, owner)
    await send_json(send, 200, stored)


async def get_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/files/read: frames of a tree that the job brings along."""
    agent = await server.authenticator.agent(scope)
    job, fence = _attempt(scope)
    query = await read_objects_query(server, scope, receive)
    plan = await server.workers.in_file_thread(reading.plan_agent_read, server.context, agent, job, fence, query)
    await send_objects(server, scope, send, plan)


def _attempt(scope: AsgiScope) -> tuple[str, int]:
    query = read_query(scope)
    check_query(ATTEMPT, query)
    values = dict(query)
    return values["job"], int(values["fence"])


def _owner(call: Call) -> str:
    """The user for whom an agent sends files: the owner of the job."""
    assert call.agent is not None
    return owner_of_attempt(call.context, call.agent, call.text("job") or "", call.number("fence", 0))


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
        "Which of these objects must still be sent for the owner of the job",
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
        "/v1/agents/files/objects",
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
        "/v1/agents/files/read",
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
