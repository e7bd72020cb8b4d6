"""The agent's answers to the server's questions: from the backend, on their own thread, and bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.agent.backends import BackendQuote
from switchyard.agent.loop.need import (
    GUESS_CONFIDENCE,
    LIMITED_CONFIDENCE,
    UNLIMITED_LEFT_S_MIN,
    OccupiedResources,
    ResourceNeed,
    estimate_occupied,
    quote_of,
)
from switchyard.agent.loop.quote_answerer import INQUIRIES_MAX, QuoteAnswerer
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.cluster.poll import Room
from switchyard.model.cluster.quote import QUOTES_MAX, QuoteAsk, QuoteGiven
from switchyard.model.job.job import JobSpec
from tests.agent.builders import a_graph, a_setting

WHOLE = Room(8, 2, 100)


class Telling(FakeBackend):
    """Says what it is told to."""

    says: Callable[[], BackendQuote]

    def quote(self, spec: JobSpec) -> BackendQuote:
        return self.says()


@pytest.fixture
def backend(tmp_path: Path) -> Telling:
    return Telling(a_setting(tmp_path, a_graph(cores=4)))


def ask(number: int = 0) -> QuoteAsk:
    return QuoteAsk(f"{number:064x}", JobSpec(command=["true"]))


def fails(error: YardError) -> BackendQuote:
    raise error


@pytest.mark.parametrize(
    ("says", "given"),
    [
        (
            lambda: BackendQuote(can=True, eta_s=7, cost=1.5, valid_s=9, confidence=0.5, reason="x" * 1000),
            QuoteGiven(shape=ask().shape, can=True, eta_s=7, cost=1.5, valid_s=9, confidence=0.5, reason="x" * 300),
        ),
        (
            lambda: fails(PolicyRefused("no such account")),
            QuoteGiven(shape=ask().shape, can=False, reason="no such account", valid_s=5),
        ),
        (lambda: fails(Unavailable("slurmctld does not answer")), None),  # nobody knows: that is not a no
    ],
    ids=["a quote", "a refusal", "nobody knows"],
)
def test_what_the_backend_says_goes_up(
    backend: Telling, says: Callable[[], BackendQuote], given: QuoteGiven | None
) -> None:
    backend.says = says
    told: list[bool] = []
    quoting = QuoteAnswerer(backend, lambda: told.append(True))
    quoting.ask([ask()])
    quoting.run_once(0)
    assert quoting.take() == ([given] if given else [])
    assert bool(told) == (given is not None)
    assert quoting.take() == []


def test_of_too_many_questions_the_oldest_are_forgotten(backend: Telling) -> None:
    backend.says = lambda: BackendQuote(can=True)
    quoting = QuoteAnswerer(backend, lambda: None)
    quoting.ask(ask(number) for number in range(INQUIRIES_MAX + 10))
    quoting.run_once(0)
    first = quoting.take()
    assert (len(first), first[0].shape) == (QUOTES_MAX, ask(10).shape), "no more than a poll carries"
    rest = [each for _ in range(INQUIRIES_MAX // QUOTES_MAX) for each in quoting.take()]
    assert len(first) + len(rest) == INQUIRIES_MAX


@pytest.mark.parametrize(
    ("need", "free", "busy", "eta_s", "confidence"),
    [
        (ResourceNeed(4), Room(4, 0, 100), [], 0, 1.0),
        (
            ResourceNeed(8),
            Room(4, 0, 100),
            [OccupiedResources(ResourceNeed(2), 100), OccupiedResources(ResourceNeed(2), 9.2)],
            100,
            LIMITED_CONFIDENCE,
        ),
        (
            ResourceNeed(6),
            Room(4, 0, 100),
            [OccupiedResources(ResourceNeed(2), 100), OccupiedResources(ResourceNeed(2), 9.2)],
            10,
            LIMITED_CONFIDENCE,
        ),
        (
            ResourceNeed(6),
            Room(4, 0, 100),
            [OccupiedResources(ResourceNeed(4), 50, is_limited=False)],
            50,
            GUESS_CONFIDENCE,
        ),
        (
            ResourceNeed(1, gpus=1),
            Room(4, 0, 100),
            [OccupiedResources(ResourceNeed(1), 5), OccupiedResources(ResourceNeed(1, gpus=2), 70)],
            70,
            LIMITED_CONFIDENCE,
        ),
        (ResourceNeed(6), Room(4, 0, 100), [], None, 1.0),  # something else is in the way
    ],
)
def test_room_comes_as_what_runs_ends(
    need: ResourceNeed, free: Room, busy: list[OccupiedResources], eta_s: int | None, confidence: float
) -> None:
    found = quote_of(need, WHOLE, free, busy)
    assert (found.can, found.eta_s, found.confidence) == (True, eta_s, confidence)


def test_what_can_never_run_is_a_no() -> None:
    assert quote_of(ResourceNeed(9), WHOLE, WHOLE, []) == BackendQuote(
        can=False, reason="it needs more than there is here"
    )


@pytest.mark.parametrize(
    ("ran_s", "limit_s", "busy"),
    [
        (10, 60, OccupiedResources(ResourceNeed(1), 50)),
        (70, 60, OccupiedResources(ResourceNeed(1), 0)),
        (10, None, OccupiedResources(ResourceNeed(1), UNLIMITED_LEFT_S_MIN, is_limited=False)),
        (900, None, OccupiedResources(ResourceNeed(1), 900, is_limited=False)),
    ],
)
def test_how_long_something_runs_on(ran_s: float, limit_s: float | None, busy: OccupiedResources) -> None:
    assert estimate_occupied(ResourceNeed(1), ran_s=ran_s, limit_s=limit_s) == busy
