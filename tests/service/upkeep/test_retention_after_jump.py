"""After a jump of the clock nothing is removed for an hour, also by a server that was started meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.rig import Rig, running
from tests.service.upkeep.cleaned import DAY_US, JOBS, clean, run_one

JUMP_US = 40 * DAY_US


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "while-no-server-ran"])
def test_a_restart_does_not_forget_that_the_clock_jumped(
    rig: Rig, store_url: str, tmp_path: Path, is_noticed: bool
) -> None:
    job = run_one(rig.cluster("alpha"), key="k1")
    rig.clock.at_us += JUMP_US
    if is_noticed:
        rig.context.snapshots.follow_jump(JUMP_US)
        assert rig.leader.take(rig.context)
    rig.close()
    rig.clock.wait(20)
    with running(store_url, tmp_path, clock=rig.clock) as again:
        assert again.leader.take(again.context)
        again.clock.wait(3_500)
        assert again.leader.take(again.context)
        assert not clean(again, JOBS).removed
        assert again.submit(key="k1").id == job, "the key is still known"
        again.clock.wait(200)
        assert again.leader.take(again.context)
        removed = clean(again, JOBS).removed
        assert (removed["jobs"], removed["keys"]) == (1, 1)


def test_a_short_stop_does_not_pause_retention(rig: Rig, store_url: str, tmp_path: Path) -> None:
    run_one(rig.cluster("alpha"))
    rig.clock.wait(JUMP_US / 1_000_000)
    assert rig.leader.take(rig.context)
    rig.close()
    rig.clock.wait(60)
    with running(store_url, tmp_path, clock=rig.clock) as again:
        assert again.leader.take(again.context)
        assert clean(again, JOBS).removed["jobs"] == 1
