"""What Flyte adds to a server: its doors by gRPC and HTTP, executions in the API and as pages, their loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from switchyard.features.flyte.server import execution_resource
from switchyard.features.flyte.server.data_app import FLYTE_DATA_PATH, FlyteDataApp
from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed, refuse_grpc
from switchyard.features.flyte.server.pages import execution_page
from switchyard.features.flyte.server.pages.console import is_console, serve_console
from switchyard.features.flyte.server.rest_app import FlyteRestApp
from switchyard.features.flyte.server.workflows_section import workflows_section
from switchyard.features.flyte.service.executions.calls.execution_counts import ExecutionTally, count_live
from switchyard.features.flyte.store.executions import execution_due, schedules
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.server.config.settings import Settings
from switchyard.server.feature import AsgiApp, HttpRoute, ServerFeature
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.metrics import CachedCount, counter
from switchyard.server.pages.web_page import WebPage
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import LABEL_SETS_MAX
from switchyard.service.core.writes.batch import Topic
from switchyard.service.upkeep.leadership import Leadership

if TYPE_CHECKING:
    import grpc

    from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver
    from switchyard.features.flyte.service.executions.driving.schedules import ScheduleChore
    from switchyard.server.grpc.grpc_intake import MessageIntake


LIVE_LABELS = ("pool", "label", "cluster", "phase")
PHASES_ABOUT = "Executions that reached a phase, by what bounds them and where they run."
LIVE_ABOUT = "Executions that are not over; of very many sets of labels the largest."
EXECUTIONS_PAUSE_S = 1.0  # between two looks for executions with something to do, if nothing wakes the loop


class FlyteFeature(ServerFeature):
    def endpoints(self) -> Sequence[Endpoint]:
        return execution_resource.ENDPOINTS

    def routes(self, server: ServerRuntime, api: AsgiApp) -> Sequence[HttpRoute]:
        return (
            HttpRoute("flyte", lambda path: path.startswith("/api/v1/"), FlyteRestApp(server)),
            HttpRoute("flyte", lambda path: path.startswith(FLYTE_DATA_PATH), FlyteDataApp(server)),
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
            return (refuse_grpc(),)
        from switchyard.features.flyte.server.grpc_services import handlers

        return handlers(server, intake, threads)

    def settings(self, settings: Settings) -> Sequence[Any]:
        return (workflows_section(settings.config).limits, ExecutionTally())

    def loops(self, server: ServerRuntime, leadership: Leadership) -> Sequence[BackgroundLoop]:
        return (ExecutionRounds(server, leadership).loop(),)

    def collectors(self, server: ServerRuntime) -> Sequence[Collector]:
        return (ExecutionMetrics(server.context),)


class ExecutionMetrics(Collector):
    """How many executions reached a phase, and how many are live. `collect` reads the database, so on a thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._live = CachedCount(partial(count_live, context, sets_max=LABEL_SETS_MAX))

    def collect(self) -> Iterator[Metric]:
        yield counter("executions", PHASES_ABOUT, self._context.setting(ExecutionTally).phases)
        family = GaugeMetricFamily("switchyard_executions_live", LIVE_ABOUT, labels=LIVE_LABELS)
        for one in self._live.read():
            family.add_metric([one.pool, one.label, one.cluster, one.phase], one.count)
        yield family


class ExecutionRounds:
    """The leader's rounds over executions and schedules. Commits wake it; it looks now and then if nothing does.

    Flyte's messages are imported only where there are executions.
    """

    def __init__(self, server: ServerRuntime, leadership: Leadership) -> None:
        self._server, self._context, self._leadership = server, server.context, leadership
        self._driver: ExecutionDriver | None = None  # made for the first execution
        self._schedules: ScheduleChore | None = None

    def loop(self) -> BackgroundLoop:
        kick = self._server.wakeups.kick_of(Topic.EXECUTIONS)
        return BackgroundLoop("executions", self.drive, EXECUTIONS_PAUSE_S, pause_s=self.pause_s, kick=kick)

    async def drive(self) -> None:
        kick = self._server.wakeups.kick_of(Topic.EXECUTIONS)
        kick.clear()
        if self._leadership.epoch is not None and await self._server.workers.in_file_thread(self.go):
            kick.set()

    def pause_s(self, every_s: float) -> float:
        """How long to wait for a wake-up until the next round."""
        return every_s if self._driver is None else self._driver.pause_s

    def go(self) -> bool:
        """Drive what is due. Returns whether more is due."""
        with self._context.database.read() as tx:
            is_any_live = execution_due.is_any_live(tx)
            is_time = schedules.is_any_due(tx, self._context.now_us())
        if not (is_any_live or is_time) or not is_flyteidl_installed():
            return False
        if is_time and self._context.setting(WorkflowLimits).has_executions:
            if self._schedules is None:
                from switchyard.features.flyte.service.executions.driving.schedules import ScheduleChore

                self._schedules = ScheduleChore()
            self._schedules.go(self._context, self._leadership)
        if self._driver is None:
            from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver

            self._driver = ExecutionDriver(self._server.services.submit)
        return self._driver.go(self._context, self._leadership)
