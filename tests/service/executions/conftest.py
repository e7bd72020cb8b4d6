"""A turn of an execution ends by the clock. Where that is not the subject, a busy machine does not end it."""

from __future__ import annotations

import pytest

from switchyard.features.flyte.service.executions.driving import driver
from tests.processes import PATIENCE_S


@pytest.fixture(autouse=True)
def patient_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ROUND_S", PATIENCE_S)
    monkeypatch.setattr(driver, "TURN_S_MAX", PATIENCE_S)
