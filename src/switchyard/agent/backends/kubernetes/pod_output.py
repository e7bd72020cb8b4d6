"""The output of attempts, by the output of their pods. A gang has several pods: while it runs its output is that of the
first one; at its end those of the others follow, each under a line that names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.agent.backends import OutputPiece
from switchyard.agent.backends.kubernetes.logs import LogCollector, PodRef
from switchyard.agent.backends.kubernetes.objects import PodObject
from switchyard.agent.backends.kubernetes.submitted_job import SubmittedJob
from switchyard.agent.need import spec_of
from switchyard.model.pod_part import MAIN_CONTAINER


class PodOutput:
    """Used by several threads."""

    def __init__(self, logs: LogCollector) -> None:
        self._logs = logs

    def collect(self, job: SubmittedJob, fence: int, pods: Sequence[PodObject]) -> None:
        """Take the output of pods that run."""
        for pod in pods:
            if _has_begun(pod):
                self._logs.collect(_key(job, fence, pod), _ref(pod))

    def finish(self, job: SubmittedJob, fence: int, pods: Sequence[PodObject], gone: Sequence[PodObject]) -> str | None:
        """Take the rest of the output. None: it is being taken; else what is wrong with it, mostly nothing.

        Of `gone` pods there is no more.
        """
        # Kubernetes may have made two pods for one task. Their output has one file: that of the first that ran.
        sources: dict[str, PodRef | None] = {_key(job, fence, pod): None for pod in gone}
        sources |= {_key(job, fence, pod): _ref(pod) for pod in sorted(pods, key=_has_begun)}
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
        for rank in _further_ranks(job):
            if not self._logs.has(_file(job, fence, rank)):
                continue  # this pod never ran
            piece = self._logs.read(_file(job, fence, rank), offset=0, size=0)
            head = f"\n--- output of pod {rank} ---\n".encode()
            for part, part_total in ((head, len(head)), (b"", piece.total)):
                at = max(0, offset - total)
                wanted = min(size - len(data), part_total - at)
                if wanted > 0 and offset < total + part_total:
                    data += (
                        part[at : at + wanted] or self._logs.read(_file(job, fence, rank), offset=at, size=wanted).data
                    )
                total += part_total
        return OutputPiece(data, total)

    def drop(self, job: SubmittedJob, fence: int) -> None:
        for rank in _further_ranks(job):
            self._logs.drop(_file(job, fence, rank))
        self._logs.drop(_file(job, fence, 0))


def _further_ranks(job: SubmittedJob) -> range:
    """The ranks of a gang's pods but the first. By its spec: the folder has the outputs of thousands of jobs."""
    need = spec_of(job.lease).resources
    return range(1, (need.nodes or need.tasks) if job.size == 1 else 1)


def _file(job: SubmittedJob, fence: int, rank: int) -> str:
    """The name of the output file of a task, or of a pod of a gang."""
    number = fence - job.lease.fence if job.size > 1 else rank
    return f"{job.name}.{number}" if number or job.size > 1 else job.name


def _key(job: SubmittedJob, fence: int, pod: PodObject) -> str:
    return _file(job, fence, pod.index or 0)


def _has_begun(pod: PodObject) -> bool:
    return pod.main.running is not None or pod.main.terminated is not None


def _ref(pod: PodObject) -> PodRef:
    return PodRef(pod.metadata.namespace, pod.metadata.name, MAIN_CONTAINER)
