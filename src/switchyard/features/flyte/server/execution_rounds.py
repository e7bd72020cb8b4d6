"""The leader's rounds over executions and schedules. Flyte's messages are imported only where there are executions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed
from switchyard.features.flyte.store.executions import execution_due, schedules
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.writes.batch import Topic
from switchyard.service.upkeep.leadership import Leadership

if TYPE_CHECKING:
    from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver
    from switchyard.features.flyte.service.executions.driving.schedules import ScheduleChore

EXECUTIONS_PAUSE_S = 1.0  # between two looks for executions with something to do, if nothing wakes the loop


class ExecutionRounds:
    """The loop over executions of one server. It is woken by commits, and looks now and then if nothing wakes it."""

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
