"""Flyte's calls about files that clients upload and download: addresses on the HTTP port of this server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flyteidl.service import dataproxy_pb2

from switchyard.server.flyte.data_path import FLYTE_DATA_PATH
from switchyard.server.flyte.grpc_status import FlyteNotFound, FlyteNotServed
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.executions import data_proxy
from switchyard.service.executions.data_proxy import DataAddress


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


def create_download_link(_url: str, _context: Context, _actor: Actor, _request: Any) -> Any:
    raise FlyteNotFound("no deck is kept of this node execution")


def _signed_url(url: str, address: DataAddress) -> str:
    if not url:
        raise FlyteNotServed(
            "This server does not know the address that clients reach its HTTP port by.",
            next_step="Set `workflows.url` in its config file, for example https://yard.example.org.",
        )
    return f"{url}{FLYTE_DATA_PATH}{address.token}/{quote(address.filename)}"
