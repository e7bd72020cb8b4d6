"""The clock of a server: it follows the database's, whatever its own machine's says, and notices a jump."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from switchyard.service.core.writes import clock as clock_module
from switchyard.service.core.writes.clock import JUMP_MIN_US, MEASURE_INTERVAL_US, Clock
from switchyard.store.engine.clock import database_us, steady_us, wall_us
from switchyard.store.engine.database import Database

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
START_US = 1_700_000_000 * SECOND_US


@dataclass
class Machine:
    """A steady clock, and a database whose clock is off and takes its time to answer."""

    steady: int = 50 * SECOND_US
    offset_us: int = START_US
    answer_us: int = 0
    jumps: list[int] = field(default_factory=list)

    def steady_us(self) -> int:
        return self.steady

    def database_us(self, _: Database) -> int:
        self.steady += self.answer_us
        at_us = self.steady + self.offset_us
        self.steady += self.answer_us
        return at_us

    def look(self, clock: Clock) -> int:
        self.steady += MEASURE_INTERVAL_US
        return clock.follow_database(self.jumps.append)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock_module, "database_us", made.database_us)
    return made


@pytest.fixture
def clock(machine: Machine, tmp_path: Path) -> Iterator[Clock]:
    database = Database(f"sqlite:///{tmp_path}/none.db")
    yield Clock(database, steady_us=machine.steady_us)
    database.close()


def test_it_is_the_databases_time_between_two_looks_too(clock: Clock, machine: Machine) -> None:
    machine.steady += HOUR_US
    assert clock() == machine.steady + START_US


def test_drift_is_followed_without_a_word(clock: Clock, machine: Machine) -> None:
    for _ in range(10):
        machine.offset_us += JUMP_MIN_US // 2
        assert machine.look(clock) == 0
        assert clock() == machine.steady + machine.offset_us
    assert machine.jumps == []


@pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US, 25 * SECOND_US, -25 * SECOND_US])
def test_a_jump_is_noticed_once_and_followed(clock: Clock, machine: Machine, by_us: int) -> None:
    machine.offset_us += by_us
    assert machine.look(clock) == by_us
    assert clock() == machine.steady + machine.offset_us
    assert machine.look(clock) == 0
    assert machine.jumps == [by_us]


def test_a_slow_answer_is_no_jump(clock: Clock, machine: Machine) -> None:
    machine.answer_us = 20 * SECOND_US
    assert machine.look(clock) == 0
    machine.answer_us = 0
    assert machine.look(clock) == 0
    assert clock() == machine.steady + START_US


def test_what_is_in_memory_is_shifted_so_that_nobody_looks_silent_in_between(clock: Clock, machine: Machine) -> None:
    seen: list[int] = []
    for by_us in (HOUR_US, -HOUR_US):
        before_us = machine.steady + machine.offset_us
        machine.offset_us += by_us
        machine.steady += MEASURE_INTERVAL_US
        clock.follow_database(lambda _: seen.append(clock()))
        # At the moment of the shift the earlier of the two times holds: what was seen is not long ago.
        assert seen[-1] - before_us <= min(0, by_us) + MEASURE_INTERVAL_US


def test_the_database_is_asked_at_most_so_often(clock: Clock, machine: Machine) -> None:
    machine.offset_us += HOUR_US
    assert clock.follow_database(machine.jumps.append) == 0
    machine.steady += MEASURE_INTERVAL_US
    assert clock.follow_database(machine.jumps.append) == HOUR_US


def test_the_clock_of_a_real_database(store_url: str) -> None:
    database = Database(store_url)
    try:
        clock = Clock(database)
        before_us, steady_before_us = wall_us(), steady_us()
        assert abs(clock() - before_us) < 60 * SECOND_US, "this test's database is on this machine"
        assert abs(database_us(database) - before_us) < 60 * SECOND_US
        assert clock.steady_us() >= steady_before_us
    finally:
        database.close()
