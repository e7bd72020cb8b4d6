"""What the leader does, and in which order. The server runs a round when it is woken; the simulation runs the same.

Chores that a round does not know (`further`) come before jobs are routed: they may make jobs routable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic

import structlog

from switchyard.errors import YardError
from switchyard.log_pace import LogPace
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.placement.apply_decisions import apply_decisions
from switchyard.service.placement.evaluation import evaluate_changed
from switchyard.service.placement.route_budget import REST_FACTOR, RouteBudget
from switchyard.service.reserve.token_queue import TokenReservations, TokenWaiter
from switchyard.service.reserve.token_reservations import (
    reconcile_tokens,
    split_off_token_waiters,
    take_tokens_of_waiters,
)
from switchyard.service.upkeep.give_places import enforce_limits, give_free_places
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.service.upkeep.move_jobs import JobMover, take_back_unleased
from switchyard.service.upkeep.probation_care import ProbationCare
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.service.upkeep.sample_clusters import ClusterSampling
from switchyard.service.upkeep.silent_agents import lose_silent_attempts, lose_silent_tasks
from switchyard.service.upkeep.waiting_jobs import (
    end_backoffs,
    expire_jobs,
    expire_pilots,
    release_concurrency_groups,
    report_late_jobs,
    settle_dependencies,
)
from switchyard.store.jobs import jobs

ENFORCE_EVERY_S = 5.0
# Pending jobs are routed at least this often, in case every wake-up was lost.
ROUTE_PAUSE_S_MAX = 10.0
# until the next round after one that moved jobs: more may move, as the tasks of an array do
NEXT_MOVE_S = 0.25
FOLLOWER_LOOK_S = 1.0  # of a server that does not lead: whether the leader's term is over
CLEAN_S_MAX = 600.0  # between two clean-ups; sooner where a retention period is shorter than days
CLEAN_AFTER_JUMP_S = 3600.0  # after the clock jumped: nothing is removed before somebody can notice a wrong clock

log = structlog.get_logger()
PENDING_PAGE_MAX = 5000  # pending jobs read in one query


def no_pause(took_s: float) -> float:  # noqa: ARG001 - the form of a pause
    return 0.0


def rest(took_s: float) -> float:
    """The pause of a chore that may take a fifth of the time."""
    return REST_FACTOR * took_s


@dataclass
class Chore:
    """Something that the leader does now and then. A round skips it until it is due.

    `go` returns how many it changed; `pause_s`: how long it is not due then, by the time it took; `counted`: the word
    for its count in the log, or none. `is_clean_up`: it removes what is old by a clock, which may be wrong.
    """

    name: str
    go: Callable[[], int]
    pause_s: Callable[[float], float] = no_pause
    counted: str = ""
    is_clean_up: bool = False
    due_at: float = 0.0


class LeaderRound:
    """The chores of one server, with what they remember from one round to the next."""

    def __init__(
        self,
        context: Context,
        leadership: Leadership,
        *,
        terms: RetentionTerms | None = None,
        enforce_every_s: float = ENFORCE_EVERY_S,
        further: Sequence[Chore] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._leadership, self._clock = leadership, clock
        self._began = 0.0
        self._move_after_s = float("inf")  # until the next round, used once: another server may lead by then
        reservations, self._retention = TokenReservations(), RetentionChore(terms or RetentionTerms())
        self._is_clean = True
        self.routing = Routing(context, leadership, reservations, clock)
        mover, lessees, sampling = JobMover(), LesseeRefresh(), ClusterSampling()
        probation = ProbationCare()
        tokens = TokenCare(context, leadership, reservations)

        def chore(work: Callable[[Context, Leadership], int], counted: str = "") -> Chore:
            return Chore(work.__name__.replace("_", " "), lambda: work(context, leadership), counted=counted)

        self.chores = (
            chore(take_back_unleased, "moved"),
            Chore("refresh lessees", lambda: lessees.look(context, leadership), rest, "moved"),
            Chore("probation", lambda: probation.go(context, leadership), counted="moved"),
            chore(lose_silent_attempts, "lost"),
            chore(lose_silent_tasks, "lost"),
            chore(end_backoffs),
            chore(settle_dependencies),
            chore(expire_jobs),
            chore(expire_pilots),
            chore(report_late_jobs),
            chore(release_concurrency_groups),
            *further,
            Chore("reconcile tokens", tokens.go),
            Chore("route pending", self.routing.go, counted="routed"),
            # Not at every wake-up: limits change rarely, and counting takes time.
            Chore(
                "enforce limits",
                lambda: enforce_limits(context, leadership, reservations),
                lambda _: enforce_every_s,
                "promoted",
            ),
            Chore("give places", lambda: give_free_places(context, leadership, reservations), counted="promoted"),
            # Last of those that place jobs: pending jobs have priority over jobs that already have a cluster.
            Chore("move jobs", lambda: self._move(mover.look(context, leadership)), rest, "moved"),
            Chore("sample clusters", lambda: sampling.go(context, leadership)),
            Chore("remove old data", lambda: self._clean(context), self._clean_pause_s, is_clean_up=True),
        )

    def go(self) -> dict[str, int]:
        """Do what is due, as the leader. Returns how many each chore changed, by its name."""
        self._began = self._clock()
        changed: dict[str, int] = {}
        counts: dict[str, int] = {}
        for chore in self.chores:
            began = self._clock()
            if began < chore.due_at:
                continue
            count = changed[chore.name] = chore.go()
            over = self._clock()
            chore.due_at = over + chore.pause_s(over - began)
            if chore.counted and count:
                counts[chore.counted] = counts.get(chore.counted, 0) + count
        if counts:
            log.info("upkeep", **counts)
        return changed

    def delay_clean_up(self) -> None:
        """The clock has jumped."""
        for chore in self.chores:
            if chore.is_clean_up:
                chore.due_at = self._clock() + CLEAN_AFTER_JUMP_S

    def pause_s(self, pause_s: float) -> float:
        """How long to wait for a wake-up until the next round: at most `pause_s`."""
        if self._leadership.epoch is None:
            return min(pause_s, FOLLOWER_LOOK_S)
        pause_s, self._move_after_s = min(pause_s, self._move_after_s), float("inf")
        return self.routing.pause_s(pause_s)

    def _move(self, moved: int) -> int:
        """If jobs moved, the next round comes early: more may move, as the tasks of an array do."""
        if moved:
            self._move_after_s = max(NEXT_MOVE_S, rest(self._clock() - self._began))
        return moved

    def _clean(self, context: Context) -> int:
        self._is_clean = not self._retention.go(context, self._leadership)
        if self._retention.removed:
            log.info("removed", **self._retention.removed)
        return sum(self._retention.removed.values())

    def _clean_pause_s(self, took_s: float) -> float:  # noqa: ARG002 - the form of a pause
        return clean_pause_s(self._retention.terms) if self._is_clean else 0.0


class Routing:
    """Routes pending jobs if something may have changed for them, for at most a fifth of the time."""

    def __init__(
        self, context: Context, leadership: Leadership, reservations: TokenReservations, clock: Callable[[], float]
    ) -> None:
        self._context, self._leadership, self._reservations, self._clock = context, leadership, reservations, clock
        self._budget = RouteBudget(clock)
        self._versions: tuple[int, int] | None = None  # of the snapshots at the last routing
        self._rest_until = self._look_at = 0.0
        self.is_pending_new = True  # a job came to wait, or a pending job may have become eligible

    def pause_s(self, pause_s: float) -> float:
        now = self._clock()
        if self.is_pending_new:
            pause_s = min(pause_s, max(0.01, self._rest_until - now))
        if self._budget.is_left:
            pause_s = min(pause_s, max(0.01, self._budget.rest_until - now))
        return pause_s

    def go(self) -> int:
        """Returns how many jobs got a place."""
        context, began = self._context, self._clock()
        versions = context.snapshots.versions
        is_changed = self.is_pending_new or versions != self._versions
        # Leases of tokens expire without a notice.
        is_news = began >= self._look_at or (
            began >= self._rest_until and bool(is_changed or context.tokens.counts.waiting)
        )
        if not is_news and (not self._budget.is_left or began < max(self._rest_until, self._budget.rest_until)):
            return 0
        if is_news:
            # First: a change from here on needs another round.
            self.is_pending_new, self._versions = False, versions
        self._budget.begin(is_news=is_news)
        try:
            routed = route_pending(context, self._leadership, self._reservations, self._budget)
        except YardError:
            self.is_pending_new = True
            raise
        self._budget.end()
        over = self._clock()
        # Users whose jobs took long have a pause of their own, which delays nobody else.
        took = max(0.0, over - began - self._budget.heavy_s)
        self._rest_until, self._look_at = over + rest(took), over + ROUTE_PAUSE_S_MAX
        return routed


class TokenCare:
    """Reconciles token pools with live jobs. If the pools are unreachable, the other chores still run."""

    def __init__(self, context: Context, leadership: Leadership, reservations: TokenReservations) -> None:
        self._context, self._leadership, self._reservations = context, leadership, reservations
        self._fault_pace = LogPace()

    def go(self) -> int:
        term = self._leadership.epoch
        if term is None:  # the server is stopping and has handed over the lead
            return 0
        try:
            reconcile_tokens(self._context, self._reservations, term=term)
        except YardError as exc:
            if self._fault_pace.note(exc.inner):
                log.warning("token pools", error=exc.inner)
        return 0


def clean_pause_s(terms: RetentionTerms) -> float:
    return CLEAN_S_MAX if terms.shortest_us is None else min(CLEAN_S_MAX, terms.shortest_us / 10_000_000)


def route_pending(
    context: Context, leadership: Leadership, tokens: TokenReservations | None = None, budget: RouteBudget | None = None
) -> int:
    """Route every PENDING job that the budget admits. Returns how many jobs left that state.

    Jobs that need tokens come last, together, so that the tokens go out in fair order.
    """
    tokens = tokens or TokenReservations()
    decided_count, after = 0, ""
    waiters: list[tuple[TokenWaiter, Eligibility]] = []
    while True:
        with context.database.read() as tx:
            rows = jobs.job_list_routable(tx, after=after, limit=PENDING_PAGE_MAX)
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
        world = context.snapshots.world
        holding: frozenset[str] = frozenset()
        if not rows:
            eligibilities = take_tokens_of_waiters(context, tokens, waiters)
            holding = frozenset(job_id for job_id, _ in eligibilities)
        else:
            after = rows[-1].id
            changed = evaluate_changed(context, world, rows, specs, budget=budget)
            eligibilities = split_off_token_waiters(context, rows, changed, waiters)
        for first in range(0, len(eligibilities), ROUND_MAX):
            page = dict(eligibilities[first : first + ROUND_MAX])
            decided_count += _route_round(context, leadership, world, page, holding=holding)
        if not rows:
            return decided_count


def _route_round(
    context: Context,
    leadership: Leadership,
    world: World,
    eligibilities: dict[str, Eligibility],
    *,
    holding: Collection[str],
) -> int:
    ids = list(eligibilities)

    def apply(batch: Batch) -> int:
        return apply_decisions(
            context, batch, world, eligibilities=eligibilities, locked=jobs.job_lock(batch.tx, ids), holding=holding
        )

    return leadership.commit(context, apply, locks=ids)
