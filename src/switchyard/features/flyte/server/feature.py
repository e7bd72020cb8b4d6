"""What Flyte adds to a server: its doors by gRPC and HTTP, executions in the API and as pages, their loop."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from switchyard.features.flyte.server import execution_resource
from switchyard.features.flyte.server.data.data_address import FlyteDataRoute
from switchyard.features.flyte.server.data.data_path import FLYTE_DATA_PATH
from switchyard.features.flyte.server.execution_rounds import ExecutionRounds
from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed
from switchyard.features.flyte.server.pages import execution_page
from switchyard.features.flyte.server.pages.console import is_console, serve_console
from switchyard.features.flyte.server.rest_app import FlyteRestApp
from switchyard.features.flyte.server.workflows_section import workflows_section
from switchyard.features.flyte.service.executions.calls.execution_counts import ExecutionTally
from switchyard.server.config.config import Config
from switchyard.server.feature import AsgiApp, HttpRoute, ServerFeature
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.pages.web_page import WebPage
from switchyard.service.upkeep.leadership import Leadership

if TYPE_CHECKING:
    import grpc
    from prometheus_client.registry import Collector

    from switchyard.server.grpc.grpc_intake import MessageIntake


class FlyteFeature(ServerFeature):
    def endpoints(self) -> Sequence[Endpoint]:
        return execution_resource.ENDPOINTS

    def routes(self, server: ServerRuntime, api: AsgiApp) -> Sequence[HttpRoute]:
        return (
            HttpRoute("flyte", lambda path: path.startswith("/api/v1/"), FlyteRestApp(server)),
            HttpRoute("flyte", lambda path: path.startswith(FLYTE_DATA_PATH), FlyteDataRoute(server)),
            HttpRoute("dashboard", is_console, serve_console),
        )

    def pages(self) -> Sequence[WebPage]:
        return (
            execution_page.PAGES if is_flyteidl_installed() else [page.without_menu() for page in execution_page.PAGES]
        )

    def grpc_handlers(
        self, server: ServerRuntime, intake: MessageIntake, threads: ThreadPoolExecutor
    ) -> Sequence[grpc.GenericRpcHandler]:
        if not is_flyteidl_installed():
            from switchyard.features.flyte.server.flyteidl_absent import FlyteNotInstalled

            return (FlyteNotInstalled(),)
        from switchyard.features.flyte.server.grpc_services import handlers

        return handlers(server, intake, threads)

    def settings(self, config: Config) -> Sequence[Any]:
        return (workflows_section(config).limits, ExecutionTally())

    def loops(self, server: ServerRuntime, leadership: Leadership) -> Sequence[BackgroundLoop]:
        return (ExecutionRounds(server, leadership).loop(),)

    def collectors(self, server: ServerRuntime) -> Sequence[Collector]:
        from switchyard.features.flyte.server.execution_metrics import ExecutionMetrics

        return (ExecutionMetrics(server.context),)
