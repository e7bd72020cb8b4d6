"""What a feature adds to a server: addresses, gRPC services, pages, kinds of writes, chores, loops, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.feature import load_parts
from switchyard.server.config.config import Config
from switchyard.server.config.settings import Settings
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.pages.web_page import WebPage
from switchyard.service.core.writes.committer import Applier
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.round import Chore

if TYPE_CHECKING:
    import grpc  # only a server with a gRPC port loads it
    from prometheus_client.registry import Collector

    from switchyard.server.grpc.grpc_intake import MessageIntake

AsgiApp = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """Addresses that a feature serves itself: whether a path is one of them, and their label in the metrics."""

    label: str
    serves: Callable[[str], bool]
    app: AsgiApp


class ServerFeature:
    """The part of one feature. A feature overrides what it adds."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Endpoints of the API, also in its document."""
        return ()

    def routes(self, server: ServerRuntime, api: AsgiApp) -> Sequence[HttpRoute]:
        """Addresses beside the API. `api` serves the API itself."""
        return ()

    def pages(self) -> Sequence[WebPage]:
        return ()

    def grpc_handlers(
        self, server: ServerRuntime, intake: MessageIntake, threads: ThreadPoolExecutor
    ) -> Sequence[grpc.GenericRpcHandler]:
        """Services of the gRPC port. `threads`: for calls that are plain functions."""
        return ()

    def settings(self, settings: Settings) -> Sequence[Any]:
        """What use cases of the feature find with `Context.setting`: one value of each type."""
        return ()

    def mistakes(self, config: Config, *, folder: Path) -> Sequence[str]:
        """What the sections of the feature alone do not show to be wrong. `folder`: of the config file."""
        return ()

    def appliers(self, submit: Submit) -> Mapping[type, Applier]:
        """How kinds of writes of the feature are applied, after those of the core."""
        return {}

    def loops(self, server: ServerRuntime, leadership: Leadership) -> Sequence[BackgroundLoop]:
        return ()

    def chores(self, server: ServerRuntime, leadership: Leadership) -> Sequence[Chore]:
        """Chores of the leader, before jobs are routed."""
        return ()

    def collectors(self, server: ServerRuntime) -> Sequence[Collector]:
        """Metrics beside those of the core."""
        return ()


@cache
def server_features() -> tuple[ServerFeature, ...]:
    return load_parts("server", ServerFeature)
