"""The output of a gang: that of its first pod, and at its end those of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import Status
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob, record_end
from switchyard.features.kubernetes.agent.pods.logs import LogCollector
from switchyard.features.kubernetes.agent.pods.pod_output import PodOutput
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.kubernetes.api_peer import ApiPeer, says
from tests.agent.kubernetes.objects import a_pod, terminated
from tests.processes import PATIENCE_S, until


def an_ended_job(folder: Path, **resources: Any) -> SubmittedJob:
    store, job = SubmissionStore(folder), SubmittedJob(a_lease(resources=resources), namespace="physics", uid="j")
    store.add(job)
    store.end(job.name, {1: Status(seen=ObservedState.SUCCEEDED, exit_code=0)})
    found = SubmissionStore(folder).get(job.name)  # as after a restart
    assert found is not None
    return found


@pytest.fixture
def output(tmp_path: Path) -> PodOutput:
    peer = ApiPeer(tmp_path, says(200))
    peer.close()
    return PodOutput(LogCollector(peer.api(), tmp_path / "output"))


@pytest.mark.parametrize("resources", [{"tasks": 4}, {"tasks": 8, "nodes": 4}])
def test_pods_that_never_ran_are_left_out(tmp_path: Path, resources: dict[str, int], output: PodOutput) -> None:
    job = an_ended_job(tmp_path / "jobs", **resources)
    for suffix, text in (("", "first\n"), (".1", "second\n"), (".3", "fourth\n")):
        (tmp_path / "output" / f"{job.name}{suffix}.out").write_text(text)
    whole = b"first\n\n--- output of pod 1 ---\nsecond\n\n--- output of pod 3 ---\nfourth\n"
    piece = output.read(job, 1, offset=0, size=1000)
    assert (piece.data, piece.total) == (whole, len(whole))
    assert b"".join(output.read(job, 1, offset=at, size=5).data for at in range(0, len(whole), 5)) == whole
    output.drop(job, 1)
    assert list((tmp_path / "output").iterdir()) == []


def test_the_folder_is_never_read_as_a_whole(
    tmp_path: Path, output: PodOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = an_ended_job(tmp_path / "jobs")
    (tmp_path / "output" / f"{job.name}.out").write_text("only\n")
    monkeypatch.setattr(Path, "glob", None)
    assert output.read(job, 1, offset=0, size=100).data == b"only\n"


def test_two_pods_of_one_task_have_an_output_each(tmp_path: Path) -> None:
    """Kubernetes made a second pod for a task, and both ran."""
    peer = ApiPeer(tmp_path, lambda handler: handler.reply(200, f"2026-05-04T12:00:00Z {handler.path[:50]}\n".encode()))
    logs = LogCollector(peer.api(), tmp_path / "output")
    logs.start()
    job = SubmittedJob(replace(a_lease(fence=7), lo=0, hi=1), namespace="physics", uid="j")
    pods = [a_pod("Succeeded", terminated(0), index=0, created=9), a_pod("Failed", terminated(143), index=0, created=5)]
    surplus = a_pod("Pending", node="", index=0, created=7, is_held=True)
    output = PodOutput(logs)
    until(lambda: output.finish(job, 7, [surplus, *pods], []) is not None, PATIENCE_S, "the output is taken")
    ended = replace(job, ends={7: record_end(Status(seen=ObservedState.SUCCEEDED, exit_code=0))})
    data = output.read(ended, 7, offset=0, size=10_000).data.decode()
    first, second = data.split("\n--- output of pod 2 that Kubernetes made for it ---\n")
    assert (pods[0].metadata.name in first, pods[1].metadata.name in second) == (True, True), data
    output.drop(ended, 7)
    assert list((tmp_path / "output").iterdir()) == []
    logs.stop()
    peer.close()
