"""Rotates the agent's credential, regularly or on request: fetch a new one, store it, use it, keep the old one."""

from __future__ import annotations

import logging
import time

import msgspec

from switchyard.agent.log import line
from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.agent.server.credential import AgentCredentials
from switchyard.errors import Gone, Unauthenticated, YardError
from switchyard.model.cluster.poll import Rotate, Rotated

ROTATE_AFTER_S = 30 * 86_400.0
ROTATION_RETRY_S = 60.0  # after a failed rotation; the current credential stays valid

ROTATE_PATH = "/v1/agents/rotate"
SELF_PATH = "/v1/agents/self"

log = logging.getLogger(__name__)


class Rotation:
    """Used by one thread."""

    def __init__(self, keys: AgentCredentials, connection: Connection, *, after_s: float) -> None:
        self._keys = keys
        self._connection = connection
        self._after_s = after_s
        self._not_before = 0.0

    def go(self, incarnation: str, *, is_asked: bool) -> bool:
        """Rotate if it is due or asked for. True: the server accepted the new credential."""
        if not is_asked and self._keys.age_s() < self._after_s:
            return False
        if time.monotonic() < self._not_before:
            return False
        self._not_before = time.monotonic() + ROTATION_RETRY_S
        try:
            self._rotate(incarnation)
        except (Gone, Unauthenticated):
            raise
        except YardError as exc:
            log.warning(line("rotation-failed", error=exc.detail))
            return False
        log.info(line("rotated"))
        self._not_before = 0.0
        return True

    def _rotate(self, incarnation: str) -> None:
        body = self._connection.post(ROTATE_PATH, msgspec.json.encode(Rotate(incarnation=incarnation)))
        try:
            rotated = msgspec.json.decode(body, type=Rotated)
        except msgspec.DecodeError as exc:
            raise ServerUnreachable(f"The server's answer to a rotation cannot be read: {exc}.") from exc
        self._keys.renew(rotated.credential)
        # The first use ends the old credential. It goes to the same server, on the same connection.
        self._connection.get(SELF_PATH)
