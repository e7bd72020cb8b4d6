"""Kept connections that fell silent: one wait for an answer is enough to know that all of them are lost."""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit

from switchyard.sdk.transport.transport import Request, Transport
from tests.processes import until
from tests.relay import relaying
from tests.sdk.peer import Peer, Say

THREADS = 20
ANSWER_S = 2.0
ASK = Request("GET", "/v1/jobs", repeatable=True)


def test_silent_connections_cost_one_wait_together(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs", Say({"items": []}))
    with relaying(urlsplit(peer.url).port or 80) as relay:
        transport = Transport(f"http://127.0.0.1:{relay.port}", None, timeout_s=ANSWER_S, retry_s=60)
        together = threading.Barrier(THREADS)
        kept = []

        def hold() -> None:
            connection = transport._take(ANSWER_S)
            together.wait(60)
            kept.append(connection)
            transport._give_back(connection)

        threads = [threading.Thread(target=hold) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(kept) == THREADS
        until(lambda: relay.accepted == THREADS, 60, "all are connected")
        relay.silence()
        began = time.monotonic()
        assert b"items" in transport.send(ASK)
        assert time.monotonic() - began < ANSWER_S * THREADS / 2, "not one wait for each of the kept connections"
        transport.close()
