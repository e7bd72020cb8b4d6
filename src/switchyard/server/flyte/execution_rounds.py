"""The leader's rounds over executions and schedules. Flyte's messages are imported only where there are executions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.server.flyte.flyteidl_check import is_flyteidl_installed
from switchyard.service.core.context import Context
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.executions import execution_due, schedules

if TYPE_CHECKING:
    from switchyard.service.executions.driving.driver import ExecutionDriver
    from switchyard.service.executions.driving.schedules import ScheduleChore


class ExecutionRounds:
    def __init__(self, submit: Submit, context: Context, leadership: Leadership) -> None:
        self._submit, self._context, self._leadership = submit, context, leadership
        self._driver: ExecutionDriver | None = None  # made for the first execution
        self._schedules: ScheduleChore | None = None

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
        if is_time and self._context.workflows.has_executions:
            if self._schedules is None:
                from switchyard.service.executions.driving.schedules import ScheduleChore

                self._schedules = ScheduleChore()
            self._schedules.go(self._context, self._leadership)
        if self._driver is None:
            from switchyard.service.executions.driving.driver import ExecutionDriver

            self._driver = ExecutionDriver(self._submit)
        return self._driver.go(self._context, self._leadership)
