"""The kinds of failures that each backend tells, and that a server of an older version is told none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.agent.backends import Status
from switchyard.agent.journal.attempt import Attempt
from switchyard.agent.loop.attempt_reports import reports_of
from switchyard.agent.loop.clock import Stamp
from switchyard.features.flux.agent.follow.states import status_of as flux_status
from switchyard.features.kubernetes.agent.jobs.submitted_job import RecordedEnd, record_end
from switchyard.features.kubernetes.agent.pods.pod_status import read_pod
from switchyard.features.local.agent.jobdir import ExitRecord, JobDir
from switchyard.features.local.agent.local_status import ended_status
from switchyard.features.slurm.agent.commands.states import status_of as slurm_status
from switchyard.model.cluster.poll import Report
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.conftest import Starter
from tests.agent.flux.builders import facts_of
from tests.agent.flux.test_states import QUEUED, RUNNING, exception, finished, log_of
from tests.agent.kubernetes.objects import a_pod, terminated, waiting
from tests.agent.peer import Peer
from tests.agent.slurm.test_states import ended
from tests.agent.test_local import a_local, end_of

OOM, TIME, DISK = FailureKind.OUT_OF_MEMORY, FailureKind.TIME_LIMIT, FailureKind.DISK
START, NODE_LOST, IMAGE = FailureKind.START, FailureKind.NODE_LOST, FailureKind.IMAGE


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (ended("OUT_OF_MEMORY", signal=125), OOM),
        (ended("TIMEOUT", signal=15), TIME),
        (ended("NODE_FAIL", exit_code=1), NODE_LOST),
        (ended("BOOT_FAIL"), NODE_LOST),
        (ended("PREEMPTED", signal=15), FailureKind.PREEMPTED),
        (ended("LAUNCH_FAILED"), START),
        (ended("FAILED", signal=53), START),
        (ended("FAILED", nodes="", exit_code=1), START),
        (ended("DEADLINE"), FailureKind.OTHER),
        (ended("FAILED", exit_code=3), None),
        (ended("COMPLETED"), None),
    ],
)
def test_slurm_names_the_kind_by_its_state(facts: Any, kind: FailureKind | None) -> None:
    assert slurm_status(facts, now_s=1000.0).failure is kind


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ((*RUNNING, exception("timeout"), "clean"), TIME),
        ((*RUNNING, exception("preempt"), "clean"), FailureKind.PREEMPTED),
        ((*QUEUED, exception("prolog"), "clean"), START),
        ((*QUEUED, exception("exec"), "clean"), START),
        ((*RUNNING, exception("exec"), "clean"), FailureKind.CLUSTER),
        (finished(3 << 8), None),
    ],
)
def test_flux_names_the_kind_by_its_exception(steps: Any, kind: FailureKind | None) -> None:
    assert flux_status(facts_of(log_of(*steps)), now_s=1794706500.0).failure is kind


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        (a_pod("Failed", terminated(137, "OOMKilled")), OOM),
        (a_pod("Failed", terminated(137), reason="DeadlineExceeded"), TIME),
        (a_pod("Failed", terminated(137), reason="Evicted"), DISK),
        (a_pod("Pending", waiting("ErrImagePull", "not found")), IMAGE),
        (a_pod("Pending", waiting("CreateContainerConfigError", "no secret")), START),
        (a_pod("Failed", terminated(3)), None),
    ],
)
def test_kubernetes_names_the_kind_by_the_rule_for_the_pod(pod: Any, kind: FailureKind | None) -> None:
    assert read_pod(pod, []).rule.failure is kind


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"cause": "time-limit", "signal": 15}, TIME),
        ({"cause": "output-limit", "signal": 15}, DISK),
        ({"cause": "start", "code": 127}, START),
        ({"cause": "exit", "signal": 9, "memory_kills": "group"}, OOM),
        ({"cause": "exit", "signal": 9}, None),
        ({"cause": "exit", "code": 3}, None),
        ({"cause": "exit", "code": 137, "container": "2026-01-01|true"}, OOM),
    ],
)
def test_a_local_end_names_the_kind(tmp_path: Path, facts: dict[str, Any], kind: FailureKind | None) -> None:
    record = {"code": None, "signal": None, "reason": "", "left": 0, "at": Stamp("", 0), **facts}
    assert ended_status(JobDir(tmp_path), ExitRecord(**record), None).failure is kind


def test_a_local_job_that_gets_no_more_memory_is_out_of_memory(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    greedy = a_lease(sys.executable, "-I", "-S", "-c", "bytearray(2**30)", resources={"memory": "256MiB"})
    assert end_of(backend, backend.submit(greedy)).failure is OOM
    backend.close()


def test_a_recorded_end_keeps_its_kind_and_an_older_one_has_none() -> None:
    status = Status(seen=ObservedState.FAILED, failure=OOM)
    body = msgspec.json.encode(record_end(status))
    assert msgspec.json.decode(body, type=RecordedEnd).status().failure is OOM
    older = msgspec.json.decode(b'{"at_ns":1,"seen":"FAILED"}', type=RecordedEnd)
    assert older.status().failure is None


def test_a_report_names_the_kind_of_a_failure_alone() -> None:
    attempt = Attempt(a_lease("true"))
    (failed,) = reports_of(attempt, Status(seen=ObservedState.FAILED, failure=OOM))
    (ok,) = reports_of(attempt, Status(seen=ObservedState.SUCCEEDED, failure=OOM))
    assert (failed.report.failure, ok.report.failure) == (OOM, None)
    assert b"failure" not in msgspec.json.encode(ok.report)
    older = msgspec.structs.replace(failed.report, failure=None)
    assert msgspec.json.decode(msgspec.json.encode(older), type=Report) == older


def test_a_server_of_an_older_version_is_told_no_kinds(peer: Peer, agent: Starter) -> None:
    peer.takes_details = False
    agent(peer.url)
    first, last = (a_lease("sh", "-c", "echo MemoryError >&2; exit 1") for _ in range(2))
    peer.lease(first)
    assert peer.wait_end(first).failure is None
    peer.takes_details = True
    peer.wait_parked()
    peer.lease(last)
    assert peer.wait_end(last).failure == OOM
