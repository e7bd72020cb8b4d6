"""The agent's side of the poll: when it parks, reports and asks for work. Threads and retries are loop.py's.

There are two connections. The *parked* poll waits at the server for leases and cancels; the *talk* poll (wait 0)
carries reports and output up at once, so that a finished job does not wait behind the park. Both answers may bring
leases, which is safe only under these rules:

1. At most one poll that asks for work (want > 0) is under way. The park asks when there is room. A talk asks only when
   the park does not, so room is never offered twice. Who may ask is decided under `_short`, the lock that every short
   poll (talk or sync) holds from its making until its answer is in the journal.
2. The park's offer can only be too small, since work comes only from answers: when room grew, its poll is given up
   (the socket is closed) and parked anew. A server gives no lease to a session that was followed by another.
3. If a poll that asked for work gets no whole answer, leases may have been lost with it. The next poll that asks is
   then preceded by a *sync*: it sends the inventory, and the answer has every lease that did not arrive. At start too.
   Leases that come twice are no news to the journal.
4. A sync is never under way together with a talk (same lock) nor with the park (same thread), so its inventory misses
   no lease that is on its way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from switchyard.agent.attempt import AttemptChange, Stage, TimedReport
from switchyard.agent.backends import Status, native_name
from switchyard.agent.client import Connection
from switchyard.agent.clock import stamp
from switchyard.agent.journal import Journal, JournalTrouble
from switchyard.agent.log import line
from switchyard.agent.outbox import Outbox, OutboxBatch
from switchyard.agent.poll_answer import DecodedPollAnswer, UnreadableLease, read_poll_answer
from switchyard.agent.quote_answerer import QuoteAnswerer
from switchyard.agent.runner import Runner, end_attempt
from switchyard.errors import BadRequest, Busy, Resync, YardError
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import BATCH_MAX, AttemptRef, Origin, Poll, Report, Room
from switchyard.model.quote import QuoteGiven
from switchyard.model.selection import Scalar

POLL_PATH = "/v1/agents/poll"
PARK_S = 8.0  # a server that hears nothing for 15 s calls the agent down
TROUBLE_CHARS_MAX = 200  # characters
RESTORED_SESSION_JUMP = 1000  # a restored server goes on a million sessions later, so that agents notice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the agent could take now."""

    want: int
    room: Room | None  # none: no bound but `want`
    load: Load

    def exceeds(self, other: Offer) -> bool:
        """Is there more to offer than that poll says?"""
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
        graph: Graph,
        jobs_max: int,
        trouble: Callable[[], str],
        on_work: Callable[[], None],
        values: Callable[[], dict[str, Scalar]] = dict,
        quoting: QuoteAnswerer | None = None,
        place: str = "",
    ) -> None:
        self._journal = journal
        self._runner = runner
        self._outbox = outbox
        self._quoting = quoting
        self._park = park
        self._talk = talk
        self._process = incarnation
        self.incarnation = incarnation  # with the claim before it, from the first sync on
        self._graph: Graph | None = graph  # until it has arrived
        self._jobs_max = jobs_max
        self._trouble = trouble
        self._on_work = on_work
        self._values = values  # what the site adds
        self._place = place  # host, folder and process, for the operator
        self.is_accepted = False  # the server has taken this process for the agent
        self._short = threading.Lock()
        self._parked: Offer | None = None  # what the parked poll that is under way offers
        self._is_given_up = False  # the parked poll was aborted by us
        self._told: dict[str, Scalar] | None = None  # the values that the server heard last
        self._session = 0
        self._is_session_good = False
        self._needs_sync = True
        self.is_rotation_asked = False  # an operator wants another credential here; the talking thread sees to it
        self._is_cut = True  # the server may think us gone: what has not begun must not begin now

    @property
    def may_start(self) -> bool:
        """A lease taken from the journal may have been given to another meanwhile: first hear from the server."""
        return not self._is_cut

    def park(self) -> ParkResult | None:
        """Sync if need be, then wait at the server. None: given up by our own hand."""
        with self._short:
            if self._needs_sync and not (self._is_session_good and self._trouble()):
                self._sync()
            offer = self._offer()
            self._park.arm()
            self._parked, self._is_given_up = offer, False
        sent = self._session
        try:
            heard = self._post(self._park, self._poll(offer, wait_s=PARK_S), wait_s=PARK_S)
            return ParkResult(self._take(heard), heard.is_closing)
        except YardError as exc:
            self._lost(exc, sent, asked=offer.want > 0, is_ours=self._is_given_up)
            if self._is_given_up:
                return None
            raise
        finally:
            self._parked = None

    def talk(self) -> bool:
        """Send what there is to say, asking for work if the park does not. False: there was nothing to say."""
        with self._short:
            if not self._is_session_good:
                return False
            if self._quoting is not None and (quotes := self._quoting.take()):
                return self._say(quotes)  # by themselves, and first: somebody waits for them
            letter = self._outbox.next()
            if letter is None:
                return self._state().values != self._told and self._say()
            parked = self._parked
            may_ask = not self._needs_sync and (parked is None or parked.want == 0) and bool(letter.reports)
            offer = self._offer()
            offer = offer if may_ask else Offer(0, offer.room, offer.load)
            sent = self._session
            try:
                heard = self._post(self._talk, self._poll(offer, letter=letter))
                self._outbox.answered(letter, heard.answers)
                self._take(heard)
            except BadRequest as exc:
                self._outbox.refused(letter, exc)
                self._lost(exc, sent, asked=offer.want > 0)
            except YardError as exc:
                if isinstance(exc, Busy) and not letter.reports:
                    self._outbox.pause()
                    return False
                self._lost(exc, sent, asked=offer.want > 0)
                raise
        return True

    def _say(self, quotes: Sequence[QuoteGiven] = ()) -> bool:
        """How the cluster stands, and these: what gets lost on the way is asked for, or said, again."""
        sent, offer = self._session, self._offer()
        poll = self._poll(Offer(0, offer.room, offer.load), quotes=quotes)
        try:
            self._take(self._post(self._talk, poll))
        except BadRequest as exc:
            log.error(line("not-taken", quotes=len(quotes), values=len(offer.load.values), error=exc.detail))
        except YardError as exc:
            self._lost(exc, sent, asked=False)
            raise
        return True

    @property
    def look_s(self) -> float | None:
        """In how many seconds a running job may have written something to send; none: nothing runs."""
        return self._outbox.look_s

    def refresh(self) -> None:
        """Give the parked poll up if it offers less than there is now, or work may have been lost elsewhere.

        Not for less: the sync that follows says all that is held.
        """
        with self._short:
            parked = self._parked
            if parked is None or self._is_given_up:
                return
            offer = self._offer()
            is_new = bool(offer.load.trouble) != bool(parked.load.trouble)
            if offer.exceeds(parked) or is_new or (self._needs_sync and not offer.load.trouble):
                self._is_given_up = True
                self._park.abort()

    def describe(self, graph: Graph) -> None:
        """The cluster has something else than it had: say so with the next sync, which is due now."""
        with self._short:
            self._graph, self._needs_sync = graph, True

    def doubt(self) -> None:
        """Time has passed unnoticed: start nothing more before the server has said what is still ours."""
        self._is_cut = self._needs_sync = True

    def _sync(self) -> None:
        """Say what is held, hear what is missing. Asks for no work itself."""
        start = self._journal.begin()
        self.incarnation = f"{self._journal.claim}-{self._process}"
        inventory = [each.held for each in self._journal.attempts()]
        offer = self._offer()
        origin = Origin(
            journal=self._journal.id,
            start=start,
            found=self._journal.found,
            is_rebuilt=self._journal.is_rebuilt,
            place=self._place,
        )
        poll = self._poll(Offer(0, offer.room, offer.load), inventory=inventory, origin=origin)
        self._park.arm()
        try:
            heard = self._post(self._park, poll)
        except YardError:
            self._is_cut = True
            raise
        if heard.session - self._session > RESTORED_SESSION_JUMP:
            self._say_what_runs()
        self._session, self._is_session_good, self._needs_sync = heard.session, True, False
        self._graph = None
        self._is_cut = False
        self.is_accepted = True
        self._journal.accepted()
        log.info(
            line("synced", session=heard.session, held=len(inventory), missing=len(heard.leases), stop=len(heard.stops))
        )
        self._take(heard)
        self._on_work()

    def _say_what_runs(self) -> None:
        """A server that was restored from a backup may have forgotten that these began; to others it is no news."""
        for each in self._journal.attempts():
            if each.stage is Stage.RUNNING:
                self._journal.say(
                    each.key,
                    TimedReport(
                        Report(*each.key, ObservedState.RUNNING, native_id=native_name(each.native_id or "")), stamp()
                    ),
                )

    def _state(self) -> Load:
        """How the cluster stands, with what the site adds."""
        load = self._runner.load()
        return msgspec.structs.replace(load, values={**load.values, **self._values()})

    def _offer(self) -> Offer:
        load, room = self._state(), self._runner.room()
        trouble = self._trouble()[:TROUBLE_CHARS_MAX]
        live = sum(1 for each in self._journal.attempts() if each.is_live)
        is_full = room is not None and room.cores == 0
        want = 0 if trouble or is_full else max(0, min(self._jobs_max - live, BATCH_MAX))
        return Offer(want, room, msgspec.structs.replace(load, trouble=trouble))

    def _poll(
        self,
        offer: Offer,
        *,
        wait_s: float = 0.0,
        letter: OutboxBatch | None = None,
        inventory: list[AttemptRef] | None = None,
        origin: Origin | None = None,
        quotes: Sequence[QuoteGiven] = (),
    ) -> Poll:
        self._told = offer.load.values
        return Poll(
            incarnation=self.incarnation,
            session=self._session,
            writes=self._journal.writes,
            origin=origin,
            wait_s=wait_s,
            want=offer.want,
            room=offer.room,
            load=offer.load,
            graph=self._graph,
            inventory=inventory,
            cancelling=[each.held for each in self._journal.attempts() if each.is_cancel_asked],
            reports=list(letter.reports) if letter else [],
            output=list(letter.output) if letter else [],
            quotes=list(quotes),
        )

    def _post(self, connection: Connection, poll: Poll, *, wait_s: float = 0.0) -> DecodedPollAnswer:
        heard = read_poll_answer(connection.post(POLL_PATH, msgspec.json.encode(poll), wait_s=wait_s))
        if heard.is_closing:
            connection.go_on()
        return heard

    def _take(self, heard: DecodedPollAnswer) -> bool:
        """Into the journal with it. What cannot be written down is not run: a later sync brings it again."""
        self._outbox.bound(heard.output_bytes_max)
        if heard.quotes and self._quoting is not None:
            self._quoting.ask(heard.quotes)
        if heard.is_rotation_asked:
            self.is_rotation_asked = True
            self._on_work()
        try:
            taken = self._journal.take(heard.leases)
            self._refuse(heard.unreadable)
        except JournalTrouble as exc:
            log.warning(line("leases-forgotten", leases=len(heard.leases), error=exc.detail))
            self._needs_sync = True
            taken = []
        for attempt in taken:
            log.info(line("leased", job=attempt.lease.job, attempt=attempt.lease.attempt, fence=attempt.lease.fence))
        for held in heard.cancels:
            log.info(line("cancel-asked", job=held.job, fence=held.fence))
        for stop in heard.stops:
            log.info(line("stop", job=stop.job, fence=stop.fence, why=stop.why))
        unknown = self._journal.mark([(each.job, each.fence) for each in heard.cancels], cancel=True)
        self._needs_sync |= bool(unknown)  # the server thinks we hold what we have never seen
        self._journal.mark([(each.job, each.fence) for each in heard.stops], stop=True)
        has_news = bool(taken or heard.unreadable or len(heard.cancels) > len(unknown) or heard.stops)
        if has_news or heard.answers:
            self._on_work()
        return has_news or bool(heard.quotes)

    def _refuse(self, unreadable: list[UnreadableLease]) -> None:
        """A job of a form this agent does not know fails with that reason, rather than hang."""
        whys = {(each.lease.job, each.lease.fence): each.why for each in unreadable}
        changes: list[AttemptChange] = []
        for attempt in self._journal.take([each.lease for each in unreadable]):
            log.error(line("lease-unreadable", job=attempt.lease.job, error=whys[attempt.key]))
            reason = f"this agent cannot read the job ({whys[attempt.key]}); it needs a newer version of the agent"
            changes.append(end_attempt(attempt, Status(seen=ObservedState.FAILED, reason=reason)))
        self._journal.apply(changes)

    def _lost(self, exc: YardError, sent: int, *, asked: bool, is_ours: bool = False) -> None:
        """No whole answer: what it might have held must be asked for again."""
        self._told = None
        if isinstance(exc, Resync):
            if sent == self._session:
                self._is_session_good, self._needs_sync = False, True
            return
        is_cut = exc.transient and not is_ours
        self._is_cut |= is_cut
        self._needs_sync |= asked or is_cut
