"""The output of attempts, by the output of their pods. A gang has several pods: while it runs its output is that of the
first one; at its end those of the others follow, each under a line that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from switchyard.agent.backends import OutputPiece
from switchyard.agent.loop.need import spec_of
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.features.kubernetes.agent.pods.logs import LogCollector, PodRef
from switchyard.features.kubernetes.agent.pods.pod_facts import seconds
from switchyard.model.cluster.pod_part import MAIN_CONTAINER

PODS_PER_TASK_MAX = 3  # whose outputs are kept; there is more than one only if Kubernetes made a pod twice


class PodOutput:
    """Used by several threads."""

    def __init__(self, logs: LogCollector) -> None:
        self._logs = logs

    def collect(
        self,
        job: SubmittedJob,
        fence: int,
        pods: Sequence[PodObject],
        gone: Sequence[PodObject] = (),
        *,
        is_urgent: bool = False,
    ) -> None:
        """Take the output of pods that run. `is_urgent`: they are about to be deleted."""
        for key, pod in _keys(job, fence, [*pods, *gone]).items():
            if pod in pods:
                self._logs.collect(key, _ref(pod), is_urgent=is_urgent)

    def finish(self, job: SubmittedJob, fence: int, pods: Sequence[PodObject], gone: Sequence[PodObject]) -> str | None:
        """Take the rest of the output. None: it is being taken; else what is wrong with it, mostly nothing.

        Of `gone` pods there is no more.
        """
        sources: dict[str, PodRef | None] = {_file(job, fence, pod.index or 0): None for pod in gone}
        sources |= {_file(job, fence, pod.index or 0): _ref(pod) for pod in pods}
        sources |= {key: _ref(pod) if pod in pods else None for key, pod in _keys(job, fence, [*pods, *gone]).items()}
        problems = [self._logs.finish(key, pod) for key, pod in sources.items()]
        if any(problem is None for problem in problems):
            return None
        for key in sources:
            self._logs.release(key)
        return "; ".join(sorted({problem for problem in problems if problem}))

    def read(self, job: SubmittedJob, fence: int, *, offset: int, size: int) -> OutputPiece:
        first = self._logs.read(_file(job, fence, 0), offset=offset, size=size)
        if fence not in job.ends:
            return first
        data, total = first.data, first.total
        for key, title in self._further_files(job, fence):
            piece = self._logs.read(key, offset=0, size=0)
            head = f"\n--- output of {title} ---\n".encode()
            for part, part_total in ((head, len(head)), (b"", piece.total)):
                at = max(0, offset - total)
                wanted = min(size - len(data), part_total - at)
                if wanted > 0 and offset < total + part_total:
                    data += part[at : at + wanted] or self._logs.read(key, offset=at, size=wanted).data
                total += part_total
        return OutputPiece(data, total)

    def drop(self, job: SubmittedJob, fence: int) -> None:
        for key, _ in [*self._further_files(job, fence)]:
            self._logs.drop(key)
        self._logs.drop(_file(job, fence, 0))

    def _further_files(self, job: SubmittedJob, fence: int) -> Iterator[tuple[str, str]]:
        """The output files of an attempt but the first, and what they are the output of. A pod may never have run."""
        for rank in (0, *_further_ranks(job)):
            key = _file(job, fence, rank)
            if rank and self._logs.has(key):
                yield key, f"pod {rank}"
            for number in range(2, PODS_PER_TASK_MAX + 1):
                again = _repeated(key, number)
                if self._logs.has(again):
                    yield again, f"pod {number} that Kubernetes made for it" + (f" as pod {rank}" if rank else "")


def _further_ranks(job: SubmittedJob) -> range:
    """The ranks of a gang's pods but the first. By its spec: the folder has the outputs of thousands of jobs."""
    need = spec_of(job.lease).resources
    return range(1, (need.nodes or need.tasks) if job.size == 1 else 1)


def _file(job: SubmittedJob, fence: int, rank: int) -> str:
    """The name of the output file of a task, or of a pod of a gang."""
    number = fence - job.lease.fence if job.size > 1 else rank
    return f"{job.name}.{number}" if number or job.size > 1 else job.name


def _repeated(key: str, number: int) -> str:
    return f"{key}~{number}"


def _keys(job: SubmittedJob, fence: int, pods: Sequence[PodObject]) -> dict[str, PodObject]:
    """The pods that have begun, by the names of their output files. Kubernetes may have made several for one task."""
    keys: dict[str, PodObject] = {}
    for pod in sorted((pod for pod in pods if _has_begun(pod)), key=_age_key):
        first = _file(job, fence, pod.index or 0)
        names = (first, *(_repeated(first, number) for number in range(2, PODS_PER_TASK_MAX + 1)))
        if (key := next((name for name in names if name not in keys), None)) is not None:
            keys[key] = pod
    return keys


def _has_begun(pod: PodObject) -> bool:
    return pod.main.running is not None or pod.main.terminated is not None


def _age_key(pod: PodObject) -> tuple[float, str]:
    return seconds(pod.metadata.creation_timestamp) or 0.0, pod.metadata.name


def _ref(pod: PodObject) -> PodRef:
    return PodRef(pod.metadata.namespace, pod.metadata.name, MAIN_CONTAINER)
