"""The small job of the doctor: what it advises when the job cannot be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from switchyard.agent.backends import Status
from switchyard.agent.feature import agent_features
from switchyard.errors import Unavailable
from switchyard.features.doctor.agent.canary import run_canary
from switchyard.model.job.lifecycle import ObservedState


class DeafCluster:
    """Takes a job, never starts it, and hears no cancel."""

    def submit(self, _lease: Any) -> str:
        return "7/doctor"

    def refresh(self) -> None:
        pass

    def status(self, native_ids: Sequence[str]) -> dict[str, Status]:
        return dict.fromkeys(native_ids, Status(seen=ObservedState.SUBMITTED))

    def cancel(self, _native_ids: Sequence[str]) -> None:
        raise Unavailable("It does not answer.")

    def forget(self, _native_id: str) -> None:
        pass


@pytest.mark.parametrize("kind", ["slurm", "flux", "kubernetes"])
def test_a_small_job_that_hears_no_cancel_is_told_with_its_kinds_advice(kind: str) -> None:
    """Advice has braces of its own, as in `flux: {folder: /…}`."""
    cluster: Any = DeafCluster()
    advice = agent_features()[kind].canary_advice
    result = run_canary(cluster, owner="doctor", wait_s=0.0, advice=advice)
    assert (result.is_ok, "It does not answer." in result.detail) == (False, True)
    assert result.advice == (advice.output if advice.is_always else "Cancel it by hand: scancel 7")
