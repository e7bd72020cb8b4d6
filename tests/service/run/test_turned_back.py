"""A database that was turned back: event numbers that agents bring back show it, and no number can be made up."""

from __future__ import annotations

from switchyard.service.core.writes.event_watermark import (
    EventWatermark,
    begin_watermark,
    confirm_number,
    store_turn_back,
)
from switchyard.store.jobs.events import GAPS_MAX, counters_read, event_gaps, event_skip_numbers
from tests.service.rig import Rig


def a_watermark(rig: Rig) -> EventWatermark:
    made = EventWatermark()
    begin_watermark(made, rig.context.database, now_us=rig.clock())
    return made


def test_a_mark_comes_back_and_a_forged_one_counts_nothing(rig: Rig) -> None:
    rig.cluster("c")
    rig.submit()
    one, other = a_watermark(rig), a_watermark(rig)
    assert one.number > 0
    assert other.number_of(one.mark) == one.number, "the key is the database's, so every server has it"
    number, _, signature = one.mark.partition(".")
    for forged in (f"{int(number) + 1}.{signature}", f"{number}.", "9" * 40, "x.y", "", f"-1.{signature}"):
        assert other.number_of(forged) == 0, forged


def test_a_number_of_another_server_is_looked_up_and_a_lost_one_stops_the_work(rig: Rig) -> None:
    rig.cluster("c")
    behind = a_watermark(rig)
    rig.submit()
    ahead = a_watermark(rig)
    assert ahead.number > behind.number
    assert confirm_number(behind, rig.context.database, ahead.number)
    assert not confirm_number(behind, rig.context.database, ahead.number + 1), "it was committed, and is not known"
    assert "yard db recover" in behind.refusal().next_step
    rig.context.committer.call(lambda batch: store_turn_back(batch, behind))
    assert a_watermark(rig).is_turned_back, "a restart changes nothing"


def test_a_server_notices_that_its_own_commits_are_gone() -> None:
    watermark = EventWatermark()
    watermark.note_commit(5, 9)
    watermark.note_commit(12, 12)  # another server took those in between
    assert not watermark.is_turned_back
    watermark.note_commit(8, 8)
    assert watermark.lost_number == 12


def test_each_start_skips_numbers_and_what_was_in_between_is_unknown(rig: Rig) -> None:
    rig.cluster("c")
    first = a_watermark(rig).number
    rig.submit()
    last = rig.context.committer.watermark.number
    rig.clock.wait(10)
    second = a_watermark(rig)
    assert second.number == rig.clock()
    seen = {number: second.is_unknown(number) for number in (first, last, last + 1, second.number - 1, second.number)}
    assert list(seen.values()) == [False, False, True, True, False]
    rig.submit()
    assert confirm_number(second, rig.context.database, second.number + 1), "the job has this number"


def test_only_the_newest_gaps_are_kept(rig: Rig) -> None:
    with rig.context.database.write() as tx:
        for start in range(GAPS_MAX + 3):
            event_skip_numbers(tx, to=10 * start + 5)
        kept = sorted(event_gaps(counters_read(tx)))
    assert len(kept) == GAPS_MAX
    assert kept[-1][1] == 10 * (GAPS_MAX + 2) + 5
