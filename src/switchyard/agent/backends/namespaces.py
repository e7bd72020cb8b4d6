"""What the agent needs of a backend whose cluster has namespaces with objects that the server renders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from switchyard.agent.server.resource_client import ResourceClient
from switchyard.model.cluster.poll import Lease


class ManagesNamespaces(Protocol):
    """Applies the objects that the server renders for each namespace."""

    def attach(self, server: ResourceClient, on_ready: Callable[[], None]) -> None:
        """Called once, before the threads start. `on_ready` is to be called when a job that waited may start."""

    def note_version(self, version: str) -> None:
        """The version of all objects, as the last answer to a poll said it; empty: there are none."""

    def hold(self, lease: Lease) -> str:
        """Return why a job must not start yet; empty: it may. Never waits."""

    def run_once(self, timeout_s: float) -> None:
        """Wait for news, at most so long, then apply what is due. Called on its own thread."""

    def stop(self) -> None:
        """End a wait. Called from other threads."""
