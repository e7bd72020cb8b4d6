"""Gates are lifted from one pod of a task, whatever the API server answers. The real cluster: tests/kubernetes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED
from switchyard.features.kubernetes.agent.jobs.start_gates import StartGates
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.namespaces.objects import ObjectMeta, OwnerReference, PodObject, PodObjectSpec
from switchyard.features.kubernetes.agent.namespaces.objects import SchedulingGate as Gate
from switchyard.features.kubernetes.agent.pods.labels import START_GATE
from tests.agent.builders import a_lease
from tests.agent.kubernetes.api_peer import ApiPeer, PeerHandler
from tests.processes import PATIENCE_S, until

NAME = re.compile(r"/pods/([^/?]+)")


class Bed:
    """An API server with pods. `faults`: for the next patches, `lost` (carried out, no answer) or `away` (no pod)."""

    def __init__(self, folder: Path) -> None:
        self.faults: list[str] = []
        self.lifted: list[str] = []
        self.absent: set[str] = set()
        self.may_patch = True
        self.peer = ApiPeer(folder, self._answer)
        api = self.peer.api(timeout_s=5)
        self.store = SubmissionStore(folder / "jobs")
        self.job = SubmittedJob(a_lease(), namespace="physics", uid="j")
        self.store.add(self.job)
        self.watcher = KubernetesWatcher(api, selector="a=b")
        self.gates = StartGates(api, self.store, self.watcher)
        self.gates.start()

    def pod(self, uid: str, *, gates: tuple[str, ...] = (START_GATE,)) -> PodObject:
        labels = {"batch.kubernetes.io/job-name": self.job.name}
        owners = [OwnerReference("Job", self.job.name, "j")]
        meta = ObjectMeta(name=f"pod-{uid}", namespace="physics", uid=uid, labels=labels, owner_references=owners)
        return PodObject(metadata=meta, spec=PodObjectSpec(scheduling_gates=[Gate(name) for name in gates]))

    def put(self, *uids: str, is_deleted: bool = False) -> None:
        for uid in uids:
            self.watcher.put_pod(self.pod(uid), is_deleted=is_deleted)

    @property
    def starts(self) -> dict[int, str]:
        return next(iter(self.store.all())).starts

    def await_idle(self) -> None:
        until(lambda: not self.gates._due and not self.gates._busy, PATIENCE_S, "all pods were looked at")

    def _answer(self, handler: PeerHandler) -> None:
        body = self.peer.requests[-1][3]
        if handler.command == "POST":
            handler.reply(201, json.dumps({"status": {"allowed": self.may_patch}}).encode())
            return
        name = (NAME.search(handler.path) or [""])[1]
        fault = self.faults.pop(0) if self.faults and handler.command == "PATCH" else ""
        if name in self.absent or fault == "away":
            self.absent.add(name)
            message = f'pods "{name}" not found'
            handler.reply(404, json.dumps({"reason": "NotFound", "message": message}).encode())
        elif handler.command == "PATCH":
            assert json.loads(body)[0]["path"] == "/metadata/uid"
            self.lifted.append(name)
            if fault == "lost":
                self.absent.add(name)  # it ran, and was removed
                handler.close_connection = True
                return
            handler.reply(200, json.dumps({"metadata": {"name": name, "uid": name[4:]}}).encode())


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    bed.gates.stop()
    bed.peer.close()


def test_one_pod_is_recorded_and_then_lifted(bed: Bed) -> None:
    bed.put("a")
    until(lambda: bed.lifted, PATIENCE_S, "a pod is lifted")
    bed.put("b", "a")
    bed.await_idle()
    assert (bed.lifted, bed.starts) == (["pod-a"], {0: "a"})


def test_a_pod_that_was_gone_before_its_first_patch_is_replaced(bed: Bed) -> None:
    bed.faults = ["away"]
    bed.put("a")
    until(lambda: bed.absent, PATIENCE_S, "the first pod is gone")
    bed.put("b")
    until(lambda: bed.lifted, PATIENCE_S, "the other one starts")
    assert (bed.lifted, bed.starts) == (["pod-b"], {0: "b"})


def test_a_pod_that_is_gone_after_a_lost_answer_is_not_replaced(bed: Bed) -> None:
    bed.faults = ["lost"]
    bed.put("a")
    until(lambda: bed.lifted, PATIENCE_S, "the patch is carried out")
    bed.put("b")
    bed.await_idle()
    assert (bed.lifted, bed.starts) == (["pod-a"], {0: "a"})


def test_a_pod_that_was_deleted_without_a_node_is_replaced(bed: Bed) -> None:
    """The Job controller removed the pod that was let start, and not the other one."""
    bed.put("a")
    until(lambda: bed.lifted, PATIENCE_S, "a pod is lifted")
    bed.put("b")
    bed.await_idle()
    bed.absent.add("pod-a")
    bed.watcher.put_pod(bed.pod("a", gates=()), is_deleted=True)
    until(lambda: len(bed.lifted) == 2, PATIENCE_S, "the other one starts")
    assert (bed.lifted, bed.starts) == (["pod-a", "pod-b"], {0: "b"})


def test_a_task_that_was_cancelled_does_not_start(bed: Bed) -> None:
    bed.store.stop(bed.job.name, {bed.job.lease.fence: CANCELLED})
    bed.put("a")
    bed.await_idle()
    assert (bed.lifted, bed.starts) == ([], {})


@pytest.mark.parametrize("may_patch", [True, False])
def test_pods_have_the_gate_if_the_agent_can_lift_it(bed: Bed, may_patch: bool) -> None:
    bed.may_patch = may_patch
    manifest = {"metadata": {"namespace": "physics"}, "spec": {"template": {"spec": {}}}}
    bed.gates.add_gate(manifest)
    gates = manifest["spec"]["template"]["spec"].get("schedulingGates")  # type: ignore[index]
    assert gates == ([{"name": START_GATE}] if may_patch else None)
    assert ("may not patch pods in physics" in bed.gates.missing_right) is not may_patch
