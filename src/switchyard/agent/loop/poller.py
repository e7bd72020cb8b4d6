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
from dataclasses import dataclass

import msgspec

from switchyard.agent.backends import Status, Trouble, native_name
from switchyard.agent.journal.attempt import AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal, JournalTrouble
from switchyard.agent.log import attempt_lines, line
from switchyard.agent.loop.attempt_reports import end_attempt
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.outbox import Outbox, OutboxBatch
from switchyard.agent.loop.poll_answer import DecodedPollAnswer, UnreadableLease, read_poll_answer
from switchyard.agent.loop.quote_answerer import QuoteAnswerer
from switchyard.agent.loop.runner import Runner
from switchyard.agent.server.client import Connection
from switchyard.agent.server.credential import AgentCredentials
from switchyard.errors import BadRequest, Busy, Resync, YardError
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import BATCH_MAX, AttemptRef, Origin, Poll, Report, Room
from switchyard.model.cluster.quote import QuoteGiven
from switchyard.model.cluster.selection import Scalar
from switchyard.model.files.file_views import FileAsk
from switchyard.model.graph import Graph
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer

POLL_PATH = "/v1/agents/poll"
PARK_S = 8.0  # the server takes an agent for down after 15 s of silence
TROUBLE_CHARS_MAX = 200
RESTORED_SESSION_JUMP = 1000  # a restored server continues a million sessions later, so that agents notice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """How much work the agent could take now."""

    want: int
    room: Room | None  # None: only `want` is a bound
    load: Load

    def exceeds(self, other: Offer) -> bool:
        """Whether this offers more than `other`, the offer of a parked poll."""
        if self.want == 0 or other.want == 0:
            return self.want > other.want
        now, then = self.room, other.room
        if now is None or then is None:
            return self.want > other.want
        return now.cores > then.cores or now.gpus > then.gpus or now.memory_bytes > then.memory_bytes


@dataclass(frozen=True, slots=True)
class ParkResult:
    """How a parked poll came back."""

    has_news: bool
    is_closing: bool


class Poller:
    """`park` belongs to one thread, `talk` and `refresh` to another."""

    def __init__(
        self,
        journal: Journal,
        runner: Runner,
        *,
        outbox: Outbox,
        park: Connection,
        talk: Connection,
        incarnation: str,
        keys: AgentCredentials | None = None,
        graph: Graph,
        jobs_max: int,
        trouble: Callable[[], str],
        silence: Callable[[], Trouble | None] = lambda: None,
        files_trouble: Callable[[], str] = str,
        ends_in_s: Callable[[], int | None] = lambda: None,
        on_work: Callable[[], None],
        values: Callable[[], dict[str, Scalar]] = dict,
        quoting: QuoteAnswerer | None = None,
        view: Callable[[Sequence[FileAsk]], None] | None = None,
        note_resources: Callable[[str], None] = lambda _: None,
        place: str = "",
    ) -> None:
        self._journal = journal
        self._runner = runner
        self._outbox = outbox
        self._quoting = quoting
        self._view = view  # answers readers who look at files
        self._note_resources = note_resources  # told the version of the objects of namespaces
        self._park = park
        self._talk = talk
        self._process = incarnation
        self._keys = keys
        self.incarnation = incarnation  # after the first sync: with the claim in front
        self._graph: Graph | None = graph  # None once the server has it
        self._jobs_max = jobs_max
        self._trouble, self._files_trouble = trouble, files_trouble
        self._silence = silence  # of the batch system, long enough that the server must know
        self._ends_in_s = ends_in_s
        self._on_work = on_work
        self._values = values  # state values that the site adds
        self._place = place  # host, folder and process, for the operator
        self.is_accepted = False  # the server has taken this process for the agent
        self._short_poll_lock = threading.Lock()
        self._parked: Offer | None = None  # the offer of the parked poll that is under way
        self._is_given_up = False  # the parked poll was aborted by us
        self._last_sent_values: dict[str, Scalar] | None = None  # the state values that were sent last
        self._session = 0
        self._is_session_good = False
        self._needs_sync = True
        self.is_rotation_asked = False  # an operator asked to rotate the credential; the talk thread does it
        self._may_be_presumed_dead = True  # the server may have given our leases to another: start nothing

    @property
    def may_start(self) -> bool:
        """Whether leased attempts may start. After a silence a sync comes first: they may have been given away."""
        return not self._may_be_presumed_dead

    def park(self) -> ParkResult | None:
        """Sync if needed, then wait at the server for work. None: `refresh` aborted the poll."""
        with self._short_poll_lock:
            if self._needs_sync and not (self._is_session_good and self._trouble()):
                self._sync()
            offer = self._offer()
            self._park.clear_abort()
            self._parked, self._is_given_up = offer, False
        sent = self._session
        try:
            answer = self._post(self._park, self._poll(offer, wait_s=PARK_S), wait_s=PARK_S)
            return ParkResult(self._apply_answer(answer), answer.is_closing)
        except YardError as exc:
            self._note_failed_poll(exc, sent, asked=offer.want > 0, is_ours=self._is_given_up)
            if self._is_given_up:
                return None
            raise
        finally:
            self._parked = None

    def talk(self) -> bool:
        """Send reports and output, and ask for work if the parked poll does not. False: there was nothing to send."""
        with self._short_poll_lock:
            if not self._is_session_good:
                return False
            if self._quoting is not None and (quotes := self._quoting.take()):
                return self._send_state(quotes)  # alone and first: a user waits for quotes
            batch = self._outbox.next()
            if batch is None:
                self._journal.flush()
                return self._state().values != self._last_sent_values and self._send_state()
            parked = self._parked
            may_ask = not self._needs_sync and (parked is None or parked.want == 0) and bool(batch.reports)
            offer = self._offer()
            offer = offer if may_ask else Offer(0, offer.room, offer.load)
            sent = self._session
            try:
                answer = self._post(self._talk, self._poll(offer, batch=batch), on_sent=lambda: self._work_ahead(batch))
                self._outbox.answered(batch, answer.answers)
                self._apply_answer(answer)
            except BadRequest as exc:
                self._outbox.refused(batch, exc)
                self._note_failed_poll(exc, sent, asked=offer.want > 0)
            except YardError as exc:
                if isinstance(exc, Busy) and not batch.reports:
                    self._outbox.pause()
                    return False
                self._note_failed_poll(exc, sent, asked=offer.want > 0)
                raise
        return True

    def _work_ahead(self, batch: OutboxBatch) -> None:
        """While the server works on a batch: write down what was settled before it, and prepare the next batch."""
        if batch.reports:
            self._journal.flush()
            self._outbox.prepare_next(batch)

    def _send_state(self, quotes: Sequence[QuoteGiven] = ()) -> bool:
        """Send the load and these quotes. If the poll fails, the server asks for the quotes again."""
        sent, offer = self._session, self._offer()
        poll = self._poll(Offer(0, offer.room, offer.load), quotes=quotes)
        try:
            self._apply_answer(self._post(self._talk, poll))
        except BadRequest as exc:
            log.error(line("not-taken", quotes=len(quotes), values=len(offer.load.values), error=exc.detail))
        except YardError as exc:
            self._note_failed_poll(exc, sent, asked=False)
            raise
        return True

    @property
    def look_s(self) -> float | None:
        """Seconds until running jobs may have new output; None: nothing runs."""
        return self._outbox.look_s

    def refresh(self) -> None:
        """Abort the parked poll if the agent can take more than the poll offers, if trouble began or ended, or if a
        sync is due."""
        with self._short_poll_lock:
            parked = self._parked
            if parked is None or self._is_given_up:
                return
            offer = self._offer()
            is_new = _has_trouble(offer.load) != _has_trouble(parked.load)
            if offer.exceeds(parked) or is_new or (self._needs_sync and not self._trouble()):
                self._is_given_up = True
                self._park.abort()

    def describe(self, graph: Graph) -> None:
        """Send a changed graph with a sync, which is due now."""
        with self._short_poll_lock:
            self._graph, self._needs_sync = graph, True

    def require_sync(self) -> None:
        """Start nothing before the next sync: the process was frozen, and leases may have been given away."""
        self._may_be_presumed_dead = self._needs_sync = True

    def _sync(self) -> None:
        """Send the inventory and receive the leases that are missing in it. Asks for no new work."""
        start = self._journal.begin()
        self.incarnation = f"{self._journal.claim}-{self._process}"
        self._name_process()
        inventory = [attempt.held for attempt in self._journal.attempts()]
        offer = self._offer()
        origin = Origin(
            journal=self._journal.id,
            start=start,
            found=self._journal.writes_at_open,
            is_rebuilt=self._journal.is_rebuilt,
            place=self._place,
        )
        poll = self._poll(Offer(0, offer.room, offer.load), inventory=inventory, origin=origin)
        self._park.clear_abort()
        try:
            answer = self._post(self._park, poll)
        except YardError:
            self._may_be_presumed_dead = True
            raise
        if answer.session - self._session > RESTORED_SESSION_JUMP:
            self._report_running()
        self._session, self._is_session_good, self._needs_sync = answer.session, True, False
        self._graph = None
        self._may_be_presumed_dead = False
        self.is_accepted = True
        self._name_process()
        self._journal.confirm_identity()
        log.info(
            line(
                "synced",
                session=answer.session,
                held=len(inventory),
                missing=len(answer.leases),
                stop=len(answer.stops),
            )
        )
        self._apply_answer(answer)
        self._on_work()

    def _name_process(self) -> None:
        """Let all connections name this process in their calls, and say whether the server has accepted it."""
        if self._keys is not None:
            self._keys.name_process(self.incarnation, has_session=self.is_accepted)

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

    def _state(self) -> Load:
        """The load, with the state values that the site adds."""
        load = self._runner.load()
        return msgspec.structs.replace(load, values={**load.values, **self._values()})

    def _offer(self) -> Offer:
        load, room = self._state(), self._runner.room()
        silence = self._silence()
        trouble = (silence.text if silence is not None else self._trouble())[:TROUBLE_CHARS_MAX]
        silent_s = int(silence.silent_s or 0) if silence is not None else None
        live = sum(1 for attempt in self._journal.attempts() if attempt.is_live)
        is_full = room is not None and room.cores == 0
        want = 0 if trouble or is_full else max(0, min(self._jobs_max - live, BATCH_MAX))
        files_trouble = self._files_trouble()[:TROUBLE_CHARS_MAX]
        ends_in_s = self._ends_in_s()
        load = msgspec.structs.replace(
            load, trouble=trouble, silent_s=silent_s, files_trouble=files_trouble, ends_in_s=ends_in_s
        )
        return Offer(want, room, load)

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
            session=self._session,
            writes=self._journal.writes,
            event_mark=self._journal.event_mark,
            origin=origin,
            wait_s=wait_s,
            want=offer.want,
            room=offer.room,
            load=offer.load,
            graph=self._graph,
            inventory=inventory,
            cancelling=[attempt.held for attempt in cancelling if attempt.is_cancel_asked],
            reports=list(batch.reports) if batch else [],
            output=list(batch.output) if batch else [],
            quotes=list(quotes),
        )

    def _post(
        self, connection: Connection, poll: Poll, *, wait_s: float = 0.0, on_sent: Callable[[], None] | None = None
    ) -> DecodedPollAnswer:
        answer = read_poll_answer(connection.post(POLL_PATH, msgspec.json.encode(poll), wait_s=wait_s, on_sent=on_sent))
        if answer.is_closing:
            connection.use_next_server()
        return answer

    def _apply_answer(self, answer: DecodedPollAnswer) -> bool:
        """Store the leases, cancels and stops of an answer. A lease that cannot be stored comes again with a sync."""
        self._outbox.set_bytes_max(answer.output_bytes_max)
        self._journal.note_event_mark(answer.event_mark)  # before the leases: it is written with them
        self._note_resources(answer.cluster_resources)  # before the leases: jobs of a new namespace wait for it
        if answer.quotes and self._quoting is not None:
            self._quoting.ask(answer.quotes)
        if answer.files and self._view is not None:
            self._view(answer.files)
        if answer.is_rotation_asked:
            self.is_rotation_asked = True
            self._on_work()
        try:
            leased = self._journal.take(answer.leases)
            self._refuse(answer.unreadable)
        except JournalTrouble as exc:
            log.warning(line("leases-forgotten", leases=len(answer.leases), error=exc.detail))
            self._needs_sync = True
            leased = []
        for text in (
            *attempt_lines("leased", ((*attempt.key, {"attempt": attempt.lease.attempt}) for attempt in leased)),
            *attempt_lines("cancel-asked", ((named.job, named.fence, {}) for named in answer.cancels)),
            *attempt_lines("stop", ((stop.job, stop.fence, {"why": stop.why}) for stop in answer.stops)),
        ):
            log.info(text)
        unknown = self._journal.request_end([(named.job, named.fence) for named in answer.cancels], cancel=True)
        self._needs_sync |= bool(unknown)  # the server thinks that we hold attempts we never received
        self._journal.request_end([(named.job, named.fence) for named in answer.stops], stop=True)
        has_news = bool(leased or answer.unreadable or len(answer.cancels) > len(unknown) or answer.stops)
        if has_news or ReportAnswer.STOP in answer.answers:
            self._on_work()
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

    def _note_failed_poll(self, exc: YardError, sent: int, *, asked: bool, is_ours: bool = False) -> None:
        """Note a poll without a complete answer. A sync must ask again for what the answer may have contained."""
        self._last_sent_values = None
        if isinstance(exc, Resync):
            if sent == self._session:
                self._is_session_good, self._needs_sync = False, True
            return
        is_cut = exc.transient and not is_ours
        self._may_be_presumed_dead |= is_cut
        self._needs_sync |= asked or is_cut


def _has_trouble(load: Load) -> tuple[bool, bool, bool]:
    return bool(load.trouble), load.silent_s is not None, bool(load.files_trouble)
