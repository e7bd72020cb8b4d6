"""When schedules are due: fields, words, time zones, and the two days of a year on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from switchyard.features.flyte.workflow.lists.cron import CronTimes, cron_mistake, next_of_rate, split_zone

BERLIN = ZoneInfo("Europe/Berlin")


def times(text: str, after: str, count: int, zone: ZoneInfo | None = None) -> list[str]:
    moment: datetime | None = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        assert moment is not None
        moment = CronTimes.of(text).next_after(moment, zone or UTC)
        found.append(moment.strftime("%m-%d %H:%M") if moment is not None else "never")
    return found


@pytest.mark.parametrize(
    ("text", "after", "found"),
    [
        ("0 3 * * *", "2026-11-17T02:59:59", ["11-17 03:00", "11-18 03:00"]),
        ("0 3 * * *", "2026-11-17T03:00:00", ["11-18 03:00"]),
        ("*/20 * * * *", "2026-11-17T23:30:00", ["11-17 23:40", "11-18 00:00"]),
        ("5/25 1-3 * * *", "2026-11-17T00:00:00", ["11-17 01:05", "11-17 01:30", "11-17 01:55", "11-17 02:05"]),
        ("0 0 1 jan *", "2026-11-17T00:00:00", ["01-01 00:00"]),
        ("0 0 13 * fri", "2026-11-10T00:00:00", ["11-13 00:00", "11-20 00:00"]),  # either day is enough
        ("0 0 * * 7", "2026-11-17T00:00:00", ["11-22 00:00"]),
        ("0 0 29 2 *", "2026-11-17T00:00:00", ["02-29 00:00"]),
        ("0 0 30 2 *", "2026-11-17T00:00:00", ["never"]),
        ("@hourly", "2026-11-17T00:10:00", ["11-17 01:00"]),
        ("weeks", "2026-11-17T00:10:00", ["11-22 00:00"]),
    ],
)
def test_the_next_times(text: str, after: str, found: list[str]) -> None:
    assert cron_mistake(text) == ""
    assert times(text, after, len(found)) == found


def test_a_time_zone_moves_with_summer() -> None:
    assert times("0 3 * * *", "2026-06-01T12:00:00", 1, BERLIN) == ["06-02 01:00"]
    assert times("0 3 * * *", "2026-12-01T12:00:00", 1, BERLIN) == ["12-02 02:00"]


def test_a_time_that_the_clock_leaves_out_comes_later_and_one_that_comes_twice_counts_once() -> None:
    # On 2026-03-29 the hour from 02:00 is left out; on 2026-10-25 it comes twice.
    assert times("30 2 * * *", "2026-03-28T12:00:00", 2, BERLIN) == ["03-29 01:30", "03-30 00:30"]
    assert times("30 2 * * *", "2026-10-24T12:00:00", 2, BERLIN) == ["10-25 00:30", "10-26 01:30"]


def test_a_schedule_of_every_hour_goes_on_through_both_changes() -> None:
    assert times("0 * * * *", "2026-03-28T23:30:00", 4, BERLIN) == [
        "03-29 00:00",
        "03-29 01:00",
        "03-29 02:00",
        "03-29 03:00",
    ]
    assert times("0 * * * *", "2026-10-24T22:30:00", 4, BERLIN) == [
        "10-24 23:00",
        "10-25 00:00",
        "10-25 01:00",
        "10-25 02:00",
    ]


def test_a_zone_may_stand_before_the_schedule() -> None:
    assert split_zone("CRON_TZ=Europe/Berlin 0 3 * * *") == ("Europe/Berlin", "0 3 * * *")
    assert cron_mistake("CRON_TZ=Europe/Berlin 0 3 * * *") == ""
    assert cron_mistake("TZ=Europe/Berlin 0 3 * *") != ""


def test_a_rate_counts_from_the_activation() -> None:
    assert [next_of_rate(100, 60, after) for after in (0, 100, 159, 160, 161)] == [40, 160, 160, 220, 220]
