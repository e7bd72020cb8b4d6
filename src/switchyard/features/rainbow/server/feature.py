"""What Rainbow adds to a server: its gRPC services, numbers of jobs, and chores about jobs that pollers received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from switchyard.features.rainbow.server.rainbow_section import RainbowSection, rainbow_section
from switchyard.features.rainbow.service import pollers
from switchyard.features.rainbow.service.rainbow import NumberedInsert, apply_numbered
from switchyard.server.config.config import SECRET_CHARS_MIN
from switchyard.server.feature import ServerFeature
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.writes.committer import Applier
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.round import Chore

if TYPE_CHECKING:
    import grpc

    from switchyard.server.grpc.grpc_intake import MessageIntake

# For jobs that were handed over while the config had a section `rainbow`: they are still taken back.
DEFAULT_SECTION = RainbowSection("-" * SECRET_CHARS_MIN)


class RainbowFeature(ServerFeature):
    def grpc_handlers(
        self, server: ServerRuntime, intake: MessageIntake, threads: ThreadPoolExecutor
    ) -> Sequence[grpc.GenericRpcHandler]:
        if rainbow_section(server.settings.config) is None:
            return ()
        from switchyard.features.rainbow.server.grpc_services import handlers

        return handlers(server, intake)

    def appliers(self, submit: Submit) -> Mapping[type, Applier]:
        return {NumberedInsert: partial(apply_numbered, submit)}

    def chores(self, server: ServerRuntime, leadership: Leadership) -> Sequence[Chore]:
        context, polling = server.context, rainbow_section(server.settings.config) or DEFAULT_SECTION
        return [
            Chore(
                "requeue what no poller accepted",
                lambda: pollers.requeue_unaccepted(context, lease_us=polling.receive_lease_us),
            ),
            Chore(
                "release what no poller reported",
                lambda: pollers.release_unreported(context, ttl_us=polling.handover_ttl_us),
            ),
        ]
