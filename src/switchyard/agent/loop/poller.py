"""The agent's side of the poll: when it parks, reports and asks for work. loop.py has the threads and the retries.

There are two connections. The *parked* poll waits at the server for leases and cancels. The *talk* poll (wait 0) sends
reports and output at once, so that a finished job does not wait behind the parked poll. Both answers may contain
leases, which is safe only under these rules:

1. At most one poll that asks for work (want > 0) is under way. The parked poll asks when resources are free. A talk
   asks only when the parked poll does not, so resources are never offered twice. This is decided under
   `_short_poll_lock`, which every short poll (talk or sync) holds until its answer is in the journal.
2. The parked poll's offer can only be too small, since work comes only from answers. When more became free, the poll is
   aborted (the socket is closed) and parked again. A server gives no lease to a session that another one followed.
3. If a poll that asked for work gets no complete answer, leases may be lost with it. Then a *sync* comes before the
   next poll that asks: it sends the inventory, and the answer has every lease that did not arrive. The journal ignores
   leases that come twice. Every start begins with a sync, too.
4. A sync never overlaps a talk (same lock) or the parked poll (same thread), so its inventory misses no lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from msgspec import Raw, Struct

from switchyard.agent.backends import Status, native_name
from switchyard.agent.journal.attempt import AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal, JournalTrouble
from switchyard.agent.log import attempt_lines, line
from switchyard.agent.loop.attempt_reports import end_attempt, without_details
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.offers import Offer, Offers
from switchyard.agent.loop.outbox import Outbox, OutboxBatch
from switchyard.agent.loop.quote_answerer import QuoteAnswerer
from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.agent.server.credential import AgentCredentials
from switchyard.errors import BadRequest, Busy, Resync, YardError
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import AttemptRef, Lease, Origin, Poll, Report, Stop
from switchyard.model.cluster.quote import QuoteAsk, QuoteGiven
from switchyard.model.cluster.selection import Scalar
from switchyard.model.files.file_views import FileAsk
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX

POLL_PATH = "/v1/agents/poll"
PARK_S = 8.0  # the server takes an agent for down after 15 s of silence
RESTORED_SESSION_JUMP = 1000  # a restored server continues a million sessions later, so that agents notice
OUTPUT_BOUND_MIN, OUTPUT_BOUND_MAX = 1024, 2**40  # sensible values of how much a server keeps of a stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParkResult:
    """How a parked poll came back."""

    has_news: bool
    is_closing: bool


@dataclass(frozen=True, slots=True)
class PollConnections:
    """Each used by one thread."""

    park: Connection
    talk: Connection


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """The process that polls. `place`: its host, folder and number, for the operator."""

    incarnation: str
    keys: AgentCredentials | None = None
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReceivers:
    """Who is told what the answers to polls bring. Called from both threads that poll."""

    on_work: Callable[[], None]
    quoting: QuoteAnswerer | None = None
    view: Callable[[Sequence[FileAsk]], None] | None = None  # answers readers who look at files
    note_resources: Callable[[str], None] = lambda _: None  # the version of the objects of namespaces
    rotate: Callable[[], None] = lambda: None  # an operator asked for a new credential


@dataclass(slots=True)
class _ParkedPoll:
    """The parked poll that is under way."""

    offer: Offer
    is_given_up: bool = field(default=False, init=False)  # it was aborted by us


class Poller:
    """`park` belongs to one thread, `talk` and `refresh` to another."""

    def __init__(
        self,
        journal: Journal,
        offers: Offers,
        outbox: Outbox,
        *,
        connections: PollConnections,
        process: AgentProcess,
        receivers: AnswerReceivers,
        graph: Graph,
    ) -> None:
        self._journal, self._offers, self._outbox = journal, offers, outbox
        self._connections, self._process, self._receivers = connections, process, receivers
        self.incarnation = process.incarnation  # after the first sync: with the claim in front
        self.session = PollSession()
        self._graph: Graph | None = graph  # None once the server has it
        self._short_poll_lock = threading.Lock()
        self._parked: _ParkedPoll | None = None
        self._last_sent_values: dict[str, Scalar] | None = None  # the state values that were sent last
        self._takes_details = False  # whether the server does, by its last answer

    def park(self) -> ParkResult | None:
        """Sync if needed, then wait at the server for work. None: `refresh` aborted the poll."""
        with self._short_poll_lock:
            may_wait = self.session.is_listened_to and self._offers.has_trouble() and not self._offers.is_leaving
            if self.session.needs_sync and not may_wait:
                self._sync()
            offer = self._offers.offer()
            self._connections.park.clear_abort()
            parked = self._parked = _ParkedPoll(offer)
        session_number = self.session.number
        try:
            answer = self._post(self._connections.park, self._poll(offer, wait_s=PARK_S), wait_s=PARK_S)
            return ParkResult(self._apply_answer(answer), answer.head.is_closing)
        except YardError as exc:
            self._note_failed_poll(exc, session_number, has_asked=offer.want > 0, is_ours=parked.is_given_up)
            if parked.is_given_up:
                return None
            raise
        finally:
            self._parked = None

    def talk(self) -> bool:
        """Send reports and output, and ask for work if the parked poll does not. False: there was nothing to send."""
        with self._short_poll_lock:
            if not self.session.is_listened_to:
                return False
            if (quoting := self._receivers.quoting) is not None and (quotes := quoting.take()):
                return self._send_state(quotes)  # alone and first: a user waits for quotes
            batch = self._outbox.next()
            if batch is None:
                self._journal.flush()
                return self._offers.load().values != self._last_sent_values and self._send_state()
            parked = self._parked
            may_ask = not self.session.needs_sync and (parked is None or parked.offer.want == 0) and bool(batch.reports)
            offer = self._offers.offer()
            offer = offer if may_ask else offer.without_work()
            session_number = self.session.number
            try:
                answer = self._post(
                    self._connections.talk, self._poll(offer, batch=batch), on_sent=lambda: self._work_ahead(batch)
                )
                self._outbox.note_answers(batch, answer.head.answers)
                self._apply_answer(answer)
            except BadRequest as exc:
                self._outbox.note_refusal(batch, exc)
                self._note_failed_poll(exc, session_number, has_asked=offer.want > 0)
            except YardError as exc:
                if isinstance(exc, Busy) and not batch.reports:
                    self._outbox.pause()
                    return False
                self._note_failed_poll(exc, session_number, has_asked=offer.want > 0)
                raise
        return True

    def _work_ahead(self, batch: OutboxBatch) -> None:
        """While the server works on a batch: write down what was settled before it, and prepare the next batch."""
        if batch.reports:
            self._journal.flush()
            self._outbox.prepare_next(batch)

    def _send_state(self, quotes: Sequence[QuoteGiven] = ()) -> bool:
        """Send the load and these quotes. If the poll fails, the server asks for the quotes again."""
        session_number, offer = self.session.number, self._offers.offer()
        poll = self._poll(offer.without_work(), quotes=quotes)
        try:
            self._apply_answer(self._post(self._connections.talk, poll))
        except BadRequest as exc:
            log.error(line("not-taken", quotes=len(quotes), values=len(offer.load.values), error=exc.detail))
        except YardError as exc:
            self._note_failed_poll(exc, session_number, has_asked=False)
            raise
        return True

    @property
    def look_s(self) -> float | None:
        """Seconds until running jobs may have new output; None: nothing runs."""
        return self._outbox.look_s

    def has_stopped_asking(self) -> bool:
        """Whether no poll asks for work, and no lease of an earlier poll is missing here."""
        with self._short_poll_lock:
            parked = self._parked
            asks_nothing = parked is not None and not parked.is_given_up and parked.offer.want == 0
            return asks_nothing and not self.session.needs_sync

    def refresh(self) -> None:
        """Abort the parked poll if the agent can take more than the poll offers, if trouble began or ended, if the
        agent leaves, or if a sync is due."""
        with self._short_poll_lock:
            parked = self._parked
            if parked is None or parked.is_given_up:
                return
            offer = self._offers.offer()
            is_new = _has_trouble(offer.load) != _has_trouble(parked.offer.load)
            is_new = is_new or (self._offers.is_leaving and parked.offer.want > 0)
            if offer.exceeds(parked.offer) or is_new or (self.session.needs_sync and not self._offers.has_trouble()):
                parked.is_given_up = True
                self._connections.park.abort()

    def describe(self, graph: Graph) -> None:
        """Send a changed graph with a sync, which is due now."""
        with self._short_poll_lock:
            self._graph = graph
            self.session.require_sync()

    def _sync(self) -> None:
        """Send the inventory and receive the leases that are missing in it. Asks for no new work."""
        start = self._journal.begin()
        self.incarnation = f"{self._journal.claim}-{self._process.incarnation}"
        self._name_process()
        inventory = [attempt.ref for attempt in self._journal.attempts()]
        offer = self._offers.offer()
        origin = Origin(
            journal=self._journal.id,
            start=start,
            found=self._journal.writes_at_open,
            is_rebuilt=self._journal.is_rebuilt,
            place=self._process.place,
        )
        poll = self._poll(offer.without_work(), inventory=inventory, origin=origin)
        self._connections.park.clear_abort()
        try:
            answer = self._post(self._connections.park, poll)
        except YardError:
            self.session.doubt()
            raise
        if answer.head.session - self.session.number > RESTORED_SESSION_JUMP:
            self._report_running()
        self._graph = None
        self.session.begin(answer.head.session)
        self._name_process()
        self._journal.confirm_identity()
        log.info(
            line(
                "synced",
                session=answer.head.session,
                held=len(inventory),
                missing=len(answer.leases),
                stop=len(answer.head.stops),
            )
        )
        self._apply_answer(answer)
        self._receivers.on_work()

    def _name_process(self) -> None:
        """Let all connections name this process in their calls, and say whether the server has accepted it."""
        if (keys := self._process.keys) is not None:
            keys.name_process(self.incarnation, has_session=self.session.is_accepted)

    def _report_running(self) -> None:
        """Report running attempts again: a server restored from a backup may not know that they began."""
        for attempt in self._journal.attempts():
            if attempt.stage is Stage.RUNNING:
                self._journal.queue_report(
                    attempt.key,
                    TimedReport(
                        Report(*attempt.key, ObservedState.RUNNING, native_id=native_name(attempt.native_id or "")),
                        stamp(),
                    ),
                )

    def _poll(
        self,
        offer: Offer,
        *,
        wait_s: float = 0.0,
        batch: OutboxBatch | None = None,
        inventory: list[AttemptRef] | None = None,
        origin: Origin | None = None,
        quotes: Sequence[QuoteGiven] = (),
    ) -> Poll:
        self._last_sent_values = offer.load.values
        # The server sends cancels only with leases. Only then does it need to know those that have arrived.
        cancelling = self._journal.attempts() if wait_s or offer.want else []
        return Poll(
            incarnation=self.incarnation,
            session=self.session.number,
            writes=self._journal.writes,
            event_mark=self._journal.event_mark,
            origin=origin,
            wait_s=wait_s,
            want=offer.want,
            room=offer.room,
            load=offer.load,
            graph=self._graph,
            inventory=inventory,
            cancelling=[attempt.ref for attempt in cancelling if attempt.is_cancel_asked],
            reports=self._readable(batch.reports) if batch else [],
            output=list(batch.output) if batch else [],
            quotes=list(quotes),
        )

    def _readable(self, reports: Sequence[Report]) -> list[Report]:
        """The reports without what an older server would refuse. The answer to a sync comes before any report."""
        return list(reports) if self._takes_details else [without_details(report) for report in reports]

    def _post(
        self, connection: Connection, poll: Poll, *, wait_s: float = 0.0, on_sent: Callable[[], None] | None = None
    ) -> DecodedPollAnswer:
        answer = read_poll_answer(connection.post(POLL_PATH, msgspec.json.encode(poll), wait_s=wait_s, on_sent=on_sent))
        if answer.head.is_closing:
            connection.use_next_server()
        return answer

    def _apply_answer(self, answer: DecodedPollAnswer) -> bool:
        """Store the leases, cancels and stops of an answer. A lease that cannot be stored comes again with a sync."""
        receivers = self._receivers
        self._takes_details = answer.head.takes_details
        self.session.is_graph_by_operator = answer.head.is_graph_by_operator
        self._outbox.set_bytes_max(answer.output_bytes_max)
        self._journal.note_event_mark(answer.head.event_mark)  # before the leases: it is written with them
        receivers.note_resources(
            answer.head.cluster_resources
        )  # before the leases: jobs of a new namespace wait for it
        if answer.quotes and receivers.quoting is not None:
            receivers.quoting.ask(answer.quotes)
        if answer.files and receivers.view is not None:
            receivers.view(answer.files)
        if answer.head.is_rotation_asked:
            receivers.rotate()
            receivers.on_work()
        try:
            leased = self._journal.take(answer.leases)
            self._refuse(answer.unreadable)
        except JournalTrouble as exc:
            log.warning(line("leases-forgotten", leases=len(answer.leases), error=exc.detail))
            self.session.require_sync()
            leased = []
        for text in (
            *attempt_lines("leased", ((*attempt.key, {"attempt": attempt.lease.attempt}) for attempt in leased)),
            *attempt_lines("cancel-asked", ((ref.job, ref.fence, {}) for ref in answer.head.cancels)),
            *attempt_lines("stop", ((stop.job, stop.fence, {"why": stop.why}) for stop in answer.head.stops)),
        ):
            log.info(text)
        unknown = self._journal.request_end([(ref.job, ref.fence) for ref in answer.head.cancels], cancel=True)
        if unknown:  # the server thinks that we hold attempts we never received
            self.session.require_sync()
        self._journal.request_end([(ref.job, ref.fence) for ref in answer.head.stops], stop=True)
        has_news = bool(leased or answer.unreadable or len(answer.head.cancels) > len(unknown) or answer.head.stops)
        if has_news or ReportAnswer.STOP in answer.head.answers:
            receivers.on_work()
        return has_news or bool(answer.quotes or answer.files)

    def _refuse(self, unreadable: list[UnreadableLease]) -> None:
        """Fail jobs that this agent cannot decode, with that reason."""
        whys = {(damaged.lease.job, damaged.lease.fence): damaged.why for damaged in unreadable}
        changes: list[AttemptChange] = []
        for attempt in self._journal.take([damaged.lease for damaged in unreadable]):
            log.error(line("lease-unreadable", job=attempt.lease.job, error=whys[attempt.key]))
            reason = f"this agent cannot read the job ({whys[attempt.key]}); it needs a newer version of the agent"
            changes.append(end_attempt(attempt, Status(seen=ObservedState.FAILED, reason=reason)))
        self._journal.apply(changes)

    def _note_failed_poll(self, exc: YardError, session_number: int, *, has_asked: bool, is_ours: bool = False) -> None:
        """Note a poll without a complete answer. A sync must ask again for what the answer may have contained."""
        self._last_sent_values = None
        if isinstance(exc, Resync):
            self.session.end(session_number)
        elif exc.transient and not is_ours:  # no complete answer
            self.session.doubt()
        elif has_asked:
            self.session.require_sync()


def _has_trouble(load: Load) -> tuple[bool, bool, bool]:
    return bool(load.trouble), load.silent_s is not None, bool(load.files_trouble)


class PollAnswerHead(Struct, frozen=True, kw_only=True):
    """An answer whose parts are decoded one by one, later."""

    session: int
    leases: list[Raw] = []
    cancels: list[AttemptRef] = []
    stops: list[Stop] = []
    answers: list[ReportAnswer] = []
    quotes: list[Raw] = []
    files: list[Raw] = []
    cluster_resources: str = ""  # version of the objects of all namespaces
    is_closing: bool = False
    is_rotation_asked: bool = False
    is_graph_by_operator: bool = False
    output_bytes_max: int = OUTPUT_BYTES_MAX
    event_mark: str = ""
    takes_details: bool = False


class _LeaseIdentity(Struct, frozen=True):
    job: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class UnreadableLease:
    """A lease that this agent cannot decode. `lease` has only its identity."""

    lease: Lease
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPollAnswer:
    head: PollAnswerHead
    leases: list[Lease]
    unreadable: list[UnreadableLease]
    quotes: list[QuoteAsk]
    files: list[FileAsk]

    @property
    def output_bytes_max(self) -> int:
        return min(max(self.head.output_bytes_max, OUTPUT_BOUND_MIN), OUTPUT_BOUND_MAX)


def read_poll_answer(body: bytes) -> DecodedPollAnswer:
    """Decode lease by lease: an unreadable job must not hide the others."""
    try:
        head = msgspec.json.decode(body, type=PollAnswerHead)
        leases = [_read_lease(raw) for raw in head.leases]
    except msgspec.DecodeError as exc:
        raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
    return DecodedPollAnswer(
        head=head,
        leases=[lease for lease in leases if isinstance(lease, Lease)],
        unreadable=[lease for lease in leases if isinstance(lease, UnreadableLease)],
        quotes=[inquiry for raw in head.quotes if (inquiry := _read_inquiry(raw)) is not None],
        files=[ask for raw in head.files if (ask := _read_file_ask(raw)) is not None],
    )


def _read_inquiry(raw: Raw) -> QuoteAsk | None:
    """None: the inquiry cannot be decoded and is not answered. The server waits only for a short time."""
    try:
        return msgspec.json.decode(raw, type=QuoteAsk)
    except msgspec.DecodeError:
        return None


def _read_file_ask(raw: Raw) -> FileAsk | None:
    """The same for an ask for a part of a file."""
    try:
        return msgspec.json.decode(raw, type=FileAsk)
    except msgspec.DecodeError:
        return None


def _read_lease(raw: Raw) -> Lease | UnreadableLease:
    try:
        return msgspec.json.decode(raw, type=Lease)
    except msgspec.DecodeError as exc:
        identity = msgspec.json.decode(raw, type=_LeaseIdentity)
        stand_in = JobSpec(command=["unreadable"])
        lease = Lease(
            job=identity.job,
            attempt=identity.attempt,
            fence=identity.fence,
            name="",
            owner="",
            project="",
            domain="",
            spec=stand_in,
        )
        return UnreadableLease(lease, str(exc))


class SessionState(Enum):
    """In every state but SYNCED a sync is due before the next poll that asks for work."""

    # None yet, or none that the server listens to. Leases may have been given to others: nothing starts.
    ABSENT = "absent"
    # The server wants a new one, although every poll of this one was answered: what is leased still starts.
    REPLACED = "replaced"
    SYNCED = "synced"
    # Leases may be missing here, or the server does not know our graph.
    SYNC_DUE = "sync due"
    # A poll got no complete answer, or the process was frozen: the server may have given our leases to others.
    IN_DOUBT = "in doubt"


_LISTENED_TO = frozenset({SessionState.SYNCED, SessionState.SYNC_DUE, SessionState.IN_DOUBT})


_MAY_START = frozenset({SessionState.REPLACED, SessionState.SYNCED, SessionState.SYNC_DUE})


class PollSession:
    """The session with the server: whether polls are listened to, and what may start.

    Changed by several threads. A change never hides a worse one that came in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = SessionState.ABSENT
        self.number = 0  # of the last sync; 0: the server has not accepted this process
        self.is_graph_by_operator = False  # as the server said last

    @property
    def is_accepted(self) -> bool:
        """Whether the server has taken this process for the agent."""
        return self.number > 0

    @property
    def is_listened_to(self) -> bool:
        return self._state in _LISTENED_TO

    @property
    def may_start(self) -> bool:
        """Whether leased attempts may start. After a silence a sync comes first: they may have been given away."""
        return self._state in _MAY_START

    @property
    def needs_sync(self) -> bool:
        return self._state is not SessionState.SYNCED

    def begin(self, number: int) -> None:
        """A sync was answered."""
        with self._lock:
            self.number, self._state = number, SessionState.SYNCED

    def require_sync(self) -> None:
        with self._lock:
            if self._state is SessionState.SYNCED:
                self._state = SessionState.SYNC_DUE

    def doubt(self) -> None:
        """Start nothing before the next sync."""
        with self._lock:
            self._state = SessionState.IN_DOUBT if self._state in _LISTENED_TO else SessionState.ABSENT

    def end(self, number: int) -> None:
        """The server answered a poll of the session `number` that it wants a new one."""
        with self._lock:
            if number == self.number:
                self._state = SessionState.REPLACED if self._state in _MAY_START else SessionState.ABSENT
