"""A database that hangs: connections stay open and nothing answers. The server still does, where it can."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.programs import call, start_server
from tests.services import Postgres

pytestmark = pytest.mark.xdist_group("stop")
SOON_S = 5.0  # half of what the call itself waits for


def test_a_hanging_database_does_not_hang_the_server(own_postgres: Postgres, tmp_path: Path) -> None:
    with start_server(tmp_path, database=own_postgres.create_database()) as server:
        asked = {"cluster": "alpha", "name": "a", "journal": "j", "backend": "fake"}
        credential = call("POST", f"{server.url}/v1/agents/join", asked).json["credential"]
        own_postgres.pause()
        # Long enough that each loop of the server has met it.
        with pytest.raises(OSError, match="timed out"):
            call("GET", f"{server.url}/v1/users", timeout_s=2.5)
        statuses: list[int] = []

        def poll() -> None:  # the first word of an agent: its cluster is reckoned anew, on the event loop
            hello = {"incarnation": "i1", "inventory": []}
            statuses.append(call("POST", f"{server.url}/v1/agents/poll", hello, token=credential).status)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        for _ in range(5):
            began = time.monotonic()
            assert call("GET", f"{server.url}/healthz", timeout_s=10).status == 200
            assert time.monotonic() - began < SOON_S
            thread.join(0.1)
        assert statuses == [], "what needs the database waits for it"
        own_postgres.resume()
        thread.join(30)
        assert statuses == [200]
        assert call("GET", f"{server.url}/v1/users").status == 200
