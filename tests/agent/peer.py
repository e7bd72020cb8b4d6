"""A small real HTTP server that speaks the agent's protocol as a control plane does, and misbehaves when told to.

It keeps what it leased, to whom it gave it and what was reported, and answers syncs from that; it records every poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import msgspec

from switchyard.agent.loop.need import need_of, spec_of
from switchyard.errors import Resync, Unauthenticated, YardError
from switchyard.model.cluster.poll import AttemptRef, Join, Joined, Lease, OutputChunk, Poll, PollAnswer, Report, Stop
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.wire.api import Problem
from tests.processes import PATIENCE_S, until

AGENT = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
ENDS = {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED, ObservedState.LOST}
Key = tuple[str, int]


class Peer:
    def __init__(self, *, port: int = 0) -> None:
        self._changed = threading.Condition()
        self._port = port
        self.reset()
        self.joins: list[Join] = []
        self.polls: list[Poll] = []
        self.reports: list[Report] = []
        self.output: list[OutputChunk] = []
        self.ready: list[Lease] = []
        self.held: dict[Key, Lease] = {}
        self.cancels: set[Key] = set()
        self.session = 0
        self.parked = 0

    def reset(self) -> None:
        """No more misbehaviour."""
        self.refuse: YardError | None = None  # say this to every poll
        self.refuse_join: YardError | None = None
        self.retry_after: str | None = None
        self.lose: Callable[[Poll, PollAnswer], bool] = lambda _poll, _answer: False  # break off instead of answering
        self.stop_reports = False  # answer STOP to every report
        self.takes_details = True  # False: as a server of an older version

    # What a test does with it.

    def __enter__(self) -> Self:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                peer._serve(self, body)

            def log_message(self, *_: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                pass  # an agent that hangs up is no news

        self._server = Listener(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def lease(self, *leases: Lease) -> None:
        with self._changed:
            self.ready += leases
            self._changed.notify_all()

    def cancel(self, lease: Lease) -> None:
        with self._changed:
            self.cancels.add((lease.job, lease.fence))
            self._changed.notify_all()

    def seen(self, lease: Lease) -> list[ObservedState]:
        """What was reported of it, in order."""
        return [each.seen for each in self.reports if (each.job, each.fence) == (lease.job, lease.fence)]

    def wait_end(self, lease: Lease, timeout_s: float = PATIENCE_S) -> Report:
        def ended() -> Report | None:
            mine = [each for each in self.reports if (each.job, each.fence) == (lease.job, lease.fence)]
            return next((each for each in mine if each.seen in ENDS), None)

        found = until(ended, timeout_s, f"the end of {lease.job} is reported")
        assert found is not None
        return found

    def wait_seen(self, lease: Lease, seen: ObservedState, timeout_s: float = PATIENCE_S) -> None:
        until(lambda: seen in self.seen(lease), timeout_s, f"{seen} is reported")

    def wait_parked(self, timeout_s: float = PATIENCE_S, *, want: int | None = None) -> Poll:
        """Until the agent waits here (for so much work)."""

        def parked() -> Poll | None:
            with self._changed:
                last = next((each for each in reversed(self.polls) if each.wait_s), None)
            is_so = last is not None and self.parked and (want is None or last.want == want)
            return last if is_so else None

        found = until(parked, timeout_s, f"the agent is parked, want={want}")
        assert found is not None
        return found

    def text(self, lease: Lease, stream: str = "stdout") -> bytes:
        chunks = {each.offset: each.data for each in self.output if each.job == lease.job and each.stream == stream}
        return b"".join(chunks[offset] for offset in sorted(chunks))

    # What it answers.

    def _serve(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            if request.path == "/v1/agents/join":
                answer: Any = self._join(msgspec.json.decode(body, type=Join))
                self._send(request, 201, msgspec.json.encode(answer))
                return
            poll = msgspec.json.decode(body, type=Poll)
            answer = self._poll(poll, request.headers["Authorization"])
            if self.lose(poll, answer):
                request.close_connection = True
                return
            self._send(request, 200, msgspec.json.encode(answer))
        except YardError as exc:
            problem = Problem("about:blank", exc.title, exc.status, exc.code, exc.detail, exc.next_step)
            self._send(request, exc.status, msgspec.json.encode(problem))

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        if self.retry_after and status >= 400:
            request.send_header("Retry-After", self.retry_after)
        request.end_headers()
        request.wfile.write(body)

    def _join(self, join: Join) -> Joined:
        self.joins.append(join)
        if self.refuse_join is not None:
            raise self.refuse_join
        return Joined(AGENT, join.cluster, f"agent_{AGENT}_secret")

    def _poll(self, poll: Poll, bearer: str) -> PollAnswer:
        with self._changed:
            self.polls.append(poll)
            if self.refuse is not None:
                raise self.refuse
            if bearer != f"Bearer agent_{AGENT}_secret":
                raise Unauthenticated
            answers = [self._report(each) for each in poll.reports]
            self.output += poll.output
            self._changed.notify_all()
            if poll.inventory is not None:
                return self._sync(poll, answers)
            if poll.session != self.session:
                raise Resync
            return self._give(poll, answers)

    def _sync(self, poll: Poll, answers: list[ReportAnswer]) -> PollAnswer:
        self.session += 1
        inventory = {(each.job, each.fence) for each in poll.inventory or []}
        return PollAnswer(
            session=self.session,
            leases=[lease for key, lease in self.held.items() if key not in inventory],
            cancels=[AttemptRef(*key) for key in self.cancels if key in self.held],
            stops=[Stop(*key, "not leased to this agent") for key in sorted(inventory - set(self.held))],
            answers=answers,
            takes_details=self.takes_details,
        )

    def _give(self, poll: Poll, answers: list[ReportAnswer]) -> PollAnswer:
        known = {(each.job, each.fence) for each in poll.cancelling}
        deadline = time.monotonic() + poll.wait_s
        self.parked += bool(poll.wait_s)
        try:
            while True:
                if poll.session != self.session:
                    raise Resync
                given = self._fitting(poll)
                cancels = [AttemptRef(*key) for key in self.cancels if key in self.held and key not in known]
                left = deadline - time.monotonic()
                if given or cancels or left <= 0 or self.refuse is not None:
                    return PollAnswer(
                        session=self.session,
                        leases=given,
                        cancels=cancels,
                        answers=answers,
                        takes_details=self.takes_details,
                    )
                self._changed.wait(min(left, 0.1))
        finally:
            self.parked -= bool(poll.wait_s)

    def _fitting(self, poll: Poll) -> list[Lease]:
        """From the head of the line while it fits, as the server does it."""
        given: list[Lease] = []
        room = poll.room
        cores = 0
        while self.ready and len(given) < poll.want:
            cores += need_of(spec_of(self.ready[0])).cores
            if room is not None and cores > room.cores:
                break
            given.append(self.ready.pop(0))
        self.held.update({(lease.job, lease.fence): lease for lease in given})
        return given

    def _report(self, report: Report) -> ReportAnswer:
        self.reports.append(report)
        key = (report.job, report.fence)
        if self.stop_reports:
            self.held.pop(key, None)  # what is to be stopped is not handed out again
            return ReportAnswer.STOP
        if key not in self.held and report.seen not in ENDS:
            return ReportAnswer.STOP
        if report.seen in ENDS:
            self.held.pop(key, None)
            self.cancels.discard(key)
        return ReportAnswer.TAKEN
