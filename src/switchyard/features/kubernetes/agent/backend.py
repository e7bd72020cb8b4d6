"""The backend for Kubernetes: an attempt is a Job, followed by watches. It knows no server or journal.

The name of a Job is the marker of its attempt, so submitting it twice starts it once. Ends are recorded in the agent's
folder once the output is taken; after that the Job may go.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from switchyard.agent.backends import (
    BackendQuote,
    OptionalCalls,
    OutputPiece,
    Setting,
    Status,
    Trouble,
    WorkFolder,
    marker_of,
)
from switchyard.agent.backends.shared.work_folders import WorkFolders
from switchyard.agent.loop.need import spec_of
from switchyard.agent.private_files import replace_file
from switchyard.agent.site.site_gifts import site_offer
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.api.api_probe import ApiProbe
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.attempt_status import AttemptStatuses
from switchyard.features.kubernetes.agent.jobs.gang_services import GangServices
from switchyard.features.kubernetes.agent.jobs.job_remover import JobRemover
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED
from switchyard.features.kubernetes.agent.jobs.job_submitter import AGENT_LABEL, JobSubmitter
from switchyard.features.kubernetes.agent.jobs.start_gates import StartGates
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of
from switchyard.features.kubernetes.agent.namespaces.cluster_resources import ClusterResources
from switchyard.features.kubernetes.agent.namespaces.site_access import open_api
from switchyard.features.kubernetes.agent.nodes.cluster import KubernetesCluster
from switchyard.features.kubernetes.agent.pods.command import leave_out
from switchyard.features.kubernetes.agent.pods.image_policy import kubernetes_image_offers
from switchyard.features.kubernetes.agent.pods.labels import selector
from switchyard.features.kubernetes.agent.pods.logs import LogCollector
from switchyard.features.kubernetes.agent.pods.manifest import can_share_job, job_manifest, namespace_of
from switchyard.features.kubernetes.agent.pods.pod_changes import refuse_malformed
from switchyard.features.kubernetes.agent.pods.pod_output import PodOutput
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import parse_bytes

RANGE_MAX = 1000  # tasks in one Job: a lease has no more
REFRESH_S = 0.5
# Changes come in bursts: after the first one, a watch waits this long for others.
BURST_S = 0.02


class KubernetesBackend(OptionalCalls):
    kind: ClassVar[str] = "kubernetes"
    is_submit_repeatable: ClassVar[bool] = True
    has_queue: ClassVar[bool] = True
    finds_graph: ClassVar[bool] = True
    submits_at_once: ClassVar[int] = 8
    jobs_max: ClassVar[int] = 5000

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._site = kubernetes_of(setting.site)
        folder = setting.directory / "kubernetes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._agent = _agent_name(folder / "agent")
        self._news = threading.Event()
        self._api = open_api(self._site, setting.agent_environment)
        self._cluster = KubernetesCluster(setting, self._api, on_change=self._news.set)
        self._namespaces = ClusterResources(
            self._api,
            self._site.cluster_resources,
            cluster=setting.cluster,
            namespace_of=self._site.namespace_of,
        )
        self._store = SubmissionStore(folder / "jobs")
        self._watcher = KubernetesWatcher(
            self._api,
            selector=f"{selector(setting.cluster)},{AGENT_LABEL}={self._agent}",
            namespace=self._site.fixed_namespace,
            on_change=self._news.set,
        )
        self._probe = ApiProbe(self._api, namespace=self._site.fixed_namespace)
        self._gates = StartGates(self._api, self._store, self._watcher, on_change=self._on_start_problem)
        self._cluster.add_note("start_gates_off", lambda: self._gates.missing_right)
        self._services = GangServices(self._api, self._site)
        self._submitter = JobSubmitter(
            self._api,
            self._store,
            self._watcher,
            agent=self._agent,
            cluster=setting.cluster,
            prepare=self._prepare,
        )
        self._remover = JobRemover(self._api, self._store, self._watcher, self._submitter)
        self._logs = LogCollector(
            self._api, folder / "output", bytes_max=parse_bytes(self._site.output_max), on_done=self._on_output
        )
        self._output = PodOutput(self._logs)
        self._statuses = AttemptStatuses(
            self._store,
            self._watcher,
            output=self._output,
            remover=self._remover,
            cluster=self._cluster,
            site=self._site,
            now_s=self._api.server_time,
            start_problem=self._gates.problem,
            usage_of=self._cluster.usage_of,
        )
        self._work = WorkFolders(setting.files_folder(setting.directory) / "work", is_for_others=True)
        self._probe.start()
        self._gates.start()
        self._watcher.start()
        self._logs.start()

    @property
    def range_max(self) -> int:
        return RANGE_MAX

    @property
    def namespaces(self) -> ClusterResources:
        return self._namespaces

    def describe(self) -> Graph:
        site = self._setting.site
        return replace(self._cluster.graph, images=kubernetes_image_offers(site), site=site_offer(site))

    def look(self) -> bool:
        return self._cluster.look()

    def state(self) -> Load:
        return self._cluster.load()

    def trouble(self) -> Trouble | None:
        return self._probe.contact.trouble()

    def quote(self, spec: JobSpec) -> BackendQuote:
        return self._cluster.quote(spec)

    def work_folder(self, lease: Lease) -> WorkFolder:
        self._refuse_files()
        return self._work.of(lease, None)

    def submit(self, lease: Lease) -> str:
        return self.submit_range([lease])[0]

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        known = [self._store.of_marker(marker) for marker in map(marker_of, leases)]
        if any(known) or len(leases) == 1 or not can_share_job(leases[0], self._setting.site):
            # A task that was submitted before belongs to the Job of that time.
            wanted = [lease.fence for lease in leases]
            return [
                job[0].native_id(lease.fence) if job is not None and job[0].uid else self._submit_again(lease, wanted)
                for job, lease in zip(known, leases, strict=True)
            ]
        job = self._hand_over(replace(leases[0], hi=leases[-1].hi))
        return [job.native_id(lease.fence) for lease in leases]

    def find(self, marker: str) -> str | None:
        known = self._store.of_marker(marker)
        if known is None or known[1] in known[0].forgotten:
            return None
        job, fence = known
        return job.native_id(fence) if self._submitter.find(job, fence) else None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        return self._statuses.of(native_ids)

    def cancel(self, native_ids: Collection[str]) -> None:
        """Record the orders and delete the Jobs. `refresh` deletes again what is not gone."""
        fences: dict[str, list[int]] = {}
        for native_id in native_ids:
            if (known := self._store.of_native(native_id)) is not None:
                fences.setdefault(known[0].name, []).append(known[1])
        for name, several in fences.items():
            if self._store.stop(name, dict.fromkeys(several, CANCELLED)):
                self._statuses.invalidate(name)
        self._remover.delete_now(fences)

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        """Kubernetes gives stdout and stderr as one stream."""
        known = self._store.of_native(native_id)
        if known is None or stream != "stdout":
            return OutputPiece(b"", 0)
        return self._output.read(*known, offset=offset, size=size)

    def refresh(self) -> float:
        self._remover.run_once()
        self._cluster.refresh()
        return REFRESH_S

    def watch(self, timeout_s: float) -> None:
        if self._news.wait(timeout_s):
            time.sleep(BURST_S)
        self._news.clear()

    def wake(self) -> None:
        self._news.set()

    def held(self) -> list[Lease]:
        return [
            lease
            for job in self._store.all()
            for forgotten in [frozenset(job.forgotten)]
            for lease in job.leases()
            if lease.fence not in forgotten
        ]

    def forget(self, native_id: str) -> None:
        """`native_id` may be a marker, of a job that was never created."""
        known = self._store.of_native(native_id) or self._store.of_marker(native_id)
        if known is None:
            return
        job, fence = known
        self._output.drop(job, fence)
        self._store.forget(job.name, fence)  # the record goes with the Job, at the next refresh

    def close(self) -> None:
        self._probe.stop()
        self._gates.stop()
        self._watcher.stop()
        self._logs.stop()
        self._cluster.close()
        self._api.close()
        self._news.set()

    def _hand_over(self, lease: Lease) -> SubmittedJob:
        new = SubmittedJob(lease, namespace=namespace_of(lease, self._setting.site))
        self._submitter.submit(new, self._manifest(lease))
        return new

    def _submit_again(self, lease: Lease, wanted: Collection[int]) -> str:
        """`wanted`: the fences of all tasks that are submitted now."""
        known = self._store.of_marker(marker_of(lease))
        if known is None:
            return self._hand_over(lease).native_id(lease.fence)
        self._submitter.submit_again(known[0].name, wanted, self._manifest_again)
        return known[0].native_id(lease.fence)

    def _manifest_again(self, job: SubmittedJob) -> dict[str, Any]:
        manifest = self._manifest(job.lease)
        if job.size > 1:
            main = manifest["spec"]["template"]["spec"]["containers"][0]
            main["command"] = leave_out(main["command"], [fence - job.lease.fence for fence in job.refuted])
        return manifest

    def _manifest(self, lease: Lease) -> dict[str, Any]:
        spec, site = spec_of(lease), self._setting.site
        if spec.files is not None:
            self._refuse_files()
        if why := site.allow.refusal(user=lease.owner, project=lease.project, queue=lease.queue or None, options=[]):
            raise PolicyRefused(why)
        with refuse_malformed(spec):
            manifest = job_manifest(
                lease,
                site,
                cluster=self._setting.cluster,
                work_root=str(self._work.root),
                labels=self._cluster.device_labels(spec),
            )
            why = self._cluster.refusal(manifest)
        if why:
            raise PolicyRefused(f"No node takes it: {why}.")
        for part in (manifest, manifest["spec"]["template"]):
            part["metadata"]["labels"][AGENT_LABEL] = self._agent
        return manifest

    def _prepare(self, manifest: dict[str, Any]) -> None:
        """Called before a Job is created, on a thread for calls of the API."""
        self._services.ensure(manifest)
        self._gates.add_gate(manifest)

    def _on_start_problem(self, name: str) -> None:
        self._statuses.invalidate(name)
        self._news.set()

    def _on_output(self, key: str) -> None:
        name, _, number = key.partition("~")[0].partition(".")  # of a task, or of a pod of a gang
        self._statuses.invalidate(name, int(number) if number else None)
        self._news.set()

    def _refuse_files(self) -> None:
        if self._site.files_volume is None or not self._setting.site.files.folder:
            raise PolicyRefused(
                "This cluster takes no jobs with files: its pods share no folder with the agent.",
                next_step="The site file can name one: `files: {folder: DIR}`, and in `kubernetes` the volume that has "
                "it in the cluster (`files_volume`).",
            )


def _agent_name(path: Path) -> str:
    """A name for the labels of this agent's Jobs, made at the first start."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        name = secrets.token_hex(6)
        replace_file(path, name.encode())
        return name
