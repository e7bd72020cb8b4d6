"""The parts of one running server, each with one purpose. Made once, and handed to what serves requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from switchyard.server.commits import Commits
from switchyard.server.config.settings import Settings
from switchyard.server.grpc.limiter import Limiter
from switchyard.server.http.authenticate import Authenticator
from switchyard.server.http.bodies.body_budget import BodyBudgets
from switchyard.server.loops.agent_presence import AgentPresence
from switchyard.server.loops.loop_pauses import LoopPauses
from switchyard.server.loops.readiness import Readiness
from switchyard.server.loops.wakeups import Wakeups
from switchyard.server.loops.workers import Workers
from switchyard.server.services import Services
from switchyard.service.core.context import Context


@dataclass(frozen=True)
class ServerRuntime:
    services: Services
    limiter: Limiter
    bodies: BodyBudgets
    uploads: BodyBudgets  # of files
    downloads: BodyBudgets
    workers: Workers
    commits: Commits
    wakeups: Wakeups
    agents: AgentPresence
    authenticator: Authenticator
    readiness: Readiness
    pauses: LoopPauses

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def context(self) -> Context:
        return self.services.context

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell this loop of commits from here on."""
        self.commits.attach(loop)
        self.wakeups.attach(loop)
        self.pauses.measure("http", loop)


def make_runtime(services: Services) -> ServerRuntime:
    settings, context = services.settings, services.context
    limiter = Limiter(
        settings.config.limits.of,
        context.tally.limits.add,
        connections=settings.connections.http_max,
        address_connections=settings.connections.address_max,
        uploads=settings.bounds.uploads,
    )
    workers = Workers(settings.bounds.threads, limiter)
    commits = Commits(context.committer)
    wakeups = Wakeups(context, workers)
    return ServerRuntime(
        services,
        limiter,
        BodyBudgets(context.tally.limits.add),
        BodyBudgets(context.tally.limits.add),
        BodyBudgets(context.tally.limits.add),
        workers,
        commits,
        wakeups,
        AgentPresence(context, wakeups),
        Authenticator(context, workers, limiter, is_open=settings.is_open),
        Readiness(context, commits),
        LoopPauses(context.tally.pause_s),
    )
