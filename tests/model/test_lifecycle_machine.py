"""Any sequence of assigning, leasing, reporting, cancelling and losing: what must hold whatever happens."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import (
    ALLOWED_TRANSITIONS,
    FINAL_STATES,
    LifecycleState,
    ObservedState,
    ReportAnswer,
    Transition,
    apply_report,
    assign,
    cancel,
    mark_lost,
    unassign,
)


class LifeMachine(RuleBasedStateMachine):
    """One job. `leases` are the fences under which agents believe to hold it; `ended` is its final state."""

    @initialize(on_lost=st.sampled_from(OnLost))
    def begin(self, on_lost: OnLost) -> None:
        self.life = LifecycleState(State.PENDING, attempt=0, fence=0, is_leased=False, on_lost=on_lost)
        self.leases: set[int] = set()
        self.assigned: list[int] = []
        self.ended: State | None = None

    def take(self, step: Transition | None) -> None:
        if step is None:
            return
        before, after = self.life, step.life
        assert after.fence >= before.fence
        assert after.attempt >= before.attempt
        assert after.cancel_requested >= before.cancel_requested
        assert after.state is before.state or after.state in ALLOWED_TRANSITIONS[before.state]
        assert step.event
        # As the store has it: a final job is held by nobody.
        self.life = replace(after, is_leased=after.is_leased and after.state not in FINAL_STATES)
        if after.state in FINAL_STATES:
            self.ended = self.ended or after.state

    @precondition(lambda self: self.life.state is State.PENDING)
    @rule()
    def assign(self) -> None:
        self.take(assign(self.life))
        self.assigned.append(self.life.fence)

    @precondition(lambda self: self.life.state is State.ASSIGNED and not self.life.is_leased)
    @rule()
    def lease(self) -> None:
        self.life = replace(self.life, is_leased=True)
        self.leases.add(self.life.fence)

    @rule(seen=st.sampled_from(ObservedState), away=st.integers(-3, 3))
    def report(self, seen: ObservedState, away: int) -> None:
        fence, before = max(0, self.life.fence + away), self.life
        answer, step = apply_report(before, fence=fence, seen=seen)
        if fence < before.fence:
            assert (answer, step) == (ReportAnswer.STOP, None)
        if fence > before.fence or not before.is_leased or seen is ObservedState.UNKNOWN:
            assert step is None
        if step is not None:
            assert answer is ReportAnswer.TAKEN
        self.take(step)

    @rule(seen=st.sampled_from(ObservedState))
    def report_twice(self, seen: ObservedState) -> None:
        fence = self.life.fence
        self.take(apply_report(self.life, fence=fence, seen=seen)[1])
        after = self.life
        self.take(apply_report(self.life, fence=fence, seen=seen)[1])
        assert self.life == after, "the same report again changed something"

    @rule()
    def cancel(self) -> None:
        before = self.life
        self.take(cancel(before))
        if before.state not in FINAL_STATES:
            assert self.life.cancel_requested
            assert before.is_leased == (self.life.state is not State.CANCELLED)

    @rule(definite=st.booleans())
    def lose(self, definite: bool) -> None:
        before = self.life
        self.take(mark_lost(before, "silence", definite=definite))
        if not before.is_leased or (before.on_lost is OnLost.WAIT and not definite):
            assert self.life == before

    @rule()
    def unassign(self) -> None:
        before = self.life
        self.take(unassign(before, "its cluster went away"))
        if before.is_leased:
            assert self.life == before

    @invariant()
    def a_final_state_never_changes(self) -> None:
        if getattr(self, "ended", None) is not None:
            assert self.life.state is self.ended

    @invariant()
    def every_hand_over_has_a_fence_of_its_own(self) -> None:
        fences = getattr(self, "assigned", [])
        assert fences == sorted(set(fences))

    @invariant()
    def at_most_one_lease_is_alive(self) -> None:
        alive = [
            fence
            for fence in getattr(self, "leases", ())
            if apply_report(self.life, fence=fence, seen=ObservedState.RUNNING)[0] is not ReportAnswer.STOP
        ]
        assert len(alive) <= 1
        if alive:
            assert self.life.is_leased
            assert alive == [self.life.fence]

    @invariant()
    def only_an_assigned_job_is_held(self) -> None:
        if hasattr(self, "life") and self.life.is_leased:
            assert self.life.state in (State.ASSIGNED, State.SUBMITTED, State.RUNNING)


TestLife = LifeMachine.TestCase
TestLife.settings = settings(stateful_step_count=30)
