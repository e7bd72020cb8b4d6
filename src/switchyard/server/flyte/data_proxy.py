"""Flyte's calls about files that clients upload and download: addresses on the HTTP port of this server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flyteidl.service import dataproxy_pb2
from google.protobuf.duration_pb2 import Duration

from switchyard.server.flyte.data_path import FLYTE_DATA_PATH
from switchyard.server.flyte.grpc_status import FlyteInvalid, FlyteNotServed
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.executions.calls import data_proxy, flyte_urls
from switchyard.service.executions.calls.data_proxy import DataAddress
from switchyard.service.executions.calls.reads import read_key


def create_upload_location(url: str, context: Context, actor: Actor, request: Any) -> Any:
    address = data_proxy.create_upload_location(context, actor, request)
    answer = dataproxy_pb2.CreateUploadLocationResponse(
        signed_url=_signed_url(url, address), native_url=address.native_url
    )
    answer.expires_at.FromMicroseconds(address.expires_us)
    return answer


def create_download_location(url: str, context: Context, actor: Actor, request: Any) -> Any:
    address = data_proxy.create_download_location(context, actor, request)
    answer = dataproxy_pb2.CreateDownloadLocationResponse(signed_url=_signed_url(url, address))
    answer.expires_at.FromMicroseconds(address.expires_us)
    return answer


def create_download_link(url: str, context: Context, actor: Actor, request: Any) -> Any:
    """A link to the deck of a node: of its last attempt."""
    if request.artifact_type != dataproxy_pb2.ARTIFACT_TYPE_DECK:
        raise FlyteInvalid("artifact_type must be ARTIFACT_TYPE_DECK: there are links to decks alone")
    node = request.node_execution_id
    address = flyte_urls.deck_location(
        context, actor, read_key(node.execution_id), node.node_id, attempt=None, expires_in=request.expires_in
    )
    answer = dataproxy_pb2.CreateDownloadLinkResponse(signed_url=[_signed_url(url, address)])
    answer.pre_signed_urls.signed_url.append(answer.signed_url[0])
    for moment in (answer.expires_at, answer.pre_signed_urls.expires_at):
        moment.FromMicroseconds(address.expires_us)
    return answer


def get_data(url: str, context: Context, actor: Actor, request: Any) -> Any:
    """What an address of Flyte's names: values, or a link to a deck."""
    asked = flyte_urls.read_flyte_url(request.flyte_url)
    answer = dataproxy_pb2.GetDataResponse()
    if asked.kind == "d":
        address = flyte_urls.deck_location(
            context, actor, asked.key, asked.node_id, attempt=asked.attempt, expires_in=Duration()
        )
        answer.pre_signed_urls.signed_url.append(_signed_url(url, address))
        answer.pre_signed_urls.expires_at.FromMicroseconds(address.expires_us)
        return answer
    values = flyte_urls.read_values(context, actor, asked)
    (answer.literal if asked.variable else answer.literal_map).CopyFrom(values)
    return answer


def _signed_url(url: str, address: DataAddress) -> str:
    if not url:
        raise FlyteNotServed(
            "This server does not know the address that clients reach its HTTP port by.",
            next_step="Set `workflows.url` in its config file, for example https://yard.example.org.",
        )
    return f"{url}{FLYTE_DATA_PATH}{address.token}/{quote(address.filename)}"
