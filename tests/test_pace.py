"""Limits count the time of a quiet machine."""

from __future__ import annotations

import pytest

from tests import pace


def test_a_limit_lasts_longer_the_more_programs_share_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    load = [0.1]
    monkeypatch.setattr(pace.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(pace.os, "getloadavg", lambda: (load[0] * pace.CORES, 0.0, 0.0))
    limit = pace.Limit(10)
    clock[0] += 9
    assert not limit.is_over(), "on a quiet machine it is a limit by the clock"
    load[0] = 5.0
    clock[0] += 4
    assert not limit.is_over(), "four seconds of a fifth of a core"
    clock[0] += 2
    assert limit.is_over()
