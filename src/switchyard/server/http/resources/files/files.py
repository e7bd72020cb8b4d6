"""Files of users: which objects to send, the objects, sealed trees, and what a job has."""

from __future__ import annotations

from switchyard.model.cluster.idset import INDEX_MAX
from switchyard.model.files.file_frames import MEDIA
from switchyard.model.files.files import (
    FilesOfJob,
    FilesUsage,
    MissingAnswer,
    MissingQuery,
    ObjectsQuery,
    StoredObjects,
    TreeAnswer,
    TreeQuery,
    UploadQuery,
    UploadRoom,
)
from switchyard.model.rules.names import NAME_PATTERN
from switchyard.model.wire.decode import JsonReader
from switchyard.server.http.bodies.body_bounds import OBJECTS_BODY
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded
from switchyard.server.http.bodies.object_bodies import read_objects, send_objects
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    refuse_parameters,
    send_json,
)
from switchyard.server.http.endpoint import BodyForm, Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.files import outputs, possession, reading, seal
from switchyard.service.files.upload_room import check_upload

_objects_query = JsonReader(ObjectsQuery)


def missing_objects(call: Call) -> MissingAnswer:
    return possession.missing_objects(call.context, call.actor.id, call.body.objects, call.body.sizes)


async def put_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/files/objects: the body is frames, stored while they arrive."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    stored = await read_objects(server, scope, receive, actor.id)
    await send_json(send, 200, stored)


def seal_tree(call: Call) -> TreeAnswer:
    return seal.seal_tree(call.context, call.actor.id, call.body.root)


def check_room(call: Call) -> UploadRoom:
    return check_upload(call.context, call.actor, call.body)


def files_of_job(call: Call) -> FilesOfJob:
    return outputs.files_of_job(
        call.context,
        call.actor,
        call.path["job"],
        task=call.number_or_none("task"),
        cursor=call.text("cursor"),
        limit=call.limit,
    )


async def get_objects(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs/{job}/files/objects: frames of a job that the caller may see."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    query = await read_objects_query(server, scope, receive)
    job = scope["path_params"]["job"]
    plan = await server.workers.in_file_thread(reading.plan_job_read, server.context, actor, job, query)
    await send_objects(server, scope, send, plan)


async def read_objects_query(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive) -> ObjectsQuery:
    body = await read_bounded(server.bodies, scope, receive, OBJECTS_BODY)
    query: ObjectsQuery = await decode_body(server.workers, scope, body, _objects_query, OBJECTS_BODY)
    return query


def files_usage(call: Call) -> FilesUsage:
    return outputs.files_usage(call.context, call.actor, call.text("project"))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/files/room",
        "Whether files fit into the limits, asked before they are sent",
        UploadRoom,
        check_room,
        UploadQuery,
        body_bound=OBJECTS_BODY,
        is_about_files=True,
    ),
    Endpoint(
        "POST",
        "/v1/files/missing",
        "Which of these objects must still be sent",
        MissingAnswer,
        missing_objects,
        MissingQuery,
        body_bound=OBJECTS_BODY,
        is_about_files=True,
    ),
    Endpoint(
        "POST",
        "/v1/files/objects",
        "Send objects, as frames; objects before a mistake are stored",
        StoredObjects,
        serve=put_objects,
        body=str,
        body_form=BodyForm.FRAMES,
    ),
    Endpoint(
        "POST",
        "/v1/files/trees",
        "Seal a tree whose objects were sent, for the jobs to come; or say what is missing",
        TreeAnswer,
        seal_tree,
        TreeQuery,
        is_about_files=True,
    ),
    Endpoint(
        "GET",
        "/v1/files/usage",
        "How many bytes the files of the caller take, and those of a project",
        FilesUsage,
        files_usage,
        query=(QueryParameter("project", pattern=NAME_PATTERN),),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/files",
        "The trees of a job, and the output files of its attempts",
        FilesOfJob,
        files_of_job,
        query=(QueryParameter("task", "integer", "of an array", most=INDEX_MAX), LIMIT, CURSOR),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/files/objects",
        "Read objects of a tree of a job, as frames",
        str,
        serve=get_objects,
        body=ObjectsQuery,
        body_bound=OBJECTS_BODY,
        media=MEDIA,
    ),
)
