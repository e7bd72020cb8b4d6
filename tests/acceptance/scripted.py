"""An agent that a test writes by hand: it joins and polls over HTTP and says whatever the test wants. No process."""

from __future__ import annotations

import time
from typing import Any

from tests.acceptance.stage import SOON_S, Stage, graph
from tests.programs import Answer

Lease = dict[str, Any]


class ScriptedAgent:
    """Joins at once, with the graph of one node, and begins its first session."""

    def __init__(
        self, stage: Stage, cluster: str, *, name: str = "scripted", cores: int = 8, backend: str = "local"
    ) -> None:
        self._stage = stage
        request = {"cluster": cluster, "name": name, "journal": f"journal-{name}", "backend": backend}
        self._credential = stage.post("/v1/agents/join", request)["credential"]
        nodes = graph(cores)["each"]
        memory = {"type": "memory", "size": 2**33, "unit": "B"}
        node = {"type": "node", "children": [[0, nodes["core"]], [1, 1]]}
        self._graph = {"shapes": [{"type": "core"}, memory, node]}
        self._cores = cores
        self.session = 0
        self.sync()

    def move_to(self, stage: Stage) -> None:
        """Go on at another server."""
        self._stage = stage
        self.sync()

    def poll(self, **fields: Any) -> Answer:
        """One poll as it is, whatever the answer."""
        body = {"incarnation": "first", "session": self.session, **fields}
        return self._stage.call("POST", "/v1/agents/poll", body, token=self._credential)

    def raw(self, body: str) -> Answer:
        """One poll with a body that no JSON writer would make."""
        return self._stage.call("POST", "/v1/agents/poll", body.encode(), token=self._credential)

    def heard(self, **fields: Any) -> dict[str, Any]:
        answer = self.poll(**fields)
        assert answer.status == 200, answer.body
        said: dict[str, Any] = answer.json
        return said

    def sync(self, *held: Lease) -> dict[str, Any]:
        """Say what is held, begin a new session."""
        inventory = [{"job": lease["job"], "fence": lease["fence"]} for lease in held]
        said = self.heard(inventory=inventory, graph=self._graph)
        self.session = said["session"]
        return said

    def lease(self, want: int = 1, *, patience_s: float = SOON_S) -> list[Lease]:
        """The next jobs once there are any; none if none came in this time. One poll may come back without."""
        room = {"cores": self._cores, "memory_bytes": 2**33}
        end_s = time.monotonic() + patience_s
        while True:
            leases = list(self.heard(want=want, room=room, wait_s=5).get("leases", []))
            if leases or time.monotonic() > end_s:
                return leases

    def report(self, lease: Lease, *seen: str, **fields: Any) -> list[str]:
        """Report these states of one attempt in one poll; the answers."""
        said = {"job": lease["job"], "fence": lease["fence"], **fields}
        return list(self.heard(reports=[{**said, "seen": each} for each in seen])["answers"])
