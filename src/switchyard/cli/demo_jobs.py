"""The jobs of the demo and how each must end. It knows requests and jobs, no processes and no screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.job import Job, State

# What each cluster pretends to have: jobs are real processes here, but GPUs and memory need not be.
CLUSTERS: dict[str, dict[str, Any]] = {
    "alpha": {"nodes": 1, "each": {"core": 2, "memory": "4GiB"}},
    "beta": {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}},
    "gamma": {"nodes": 1, "each": {"core": 8, "memory": "32GiB", "gpu": 2}},
}
EVERYWHERE = frozenset(CLUSTERS)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job and what must become of it. `output` must be in what it wrote, `reason` in its reason."""

    name: str
    command: tuple[str, ...]
    asks: Mapping[str, Any] = field(default_factory=dict)
    state: State = State.SUCCEEDED
    clusters: frozenset[str] = EVERYWHERE
    exit_code: int | None = None
    output: str = ""
    reason: str = ""
    cancel: bool = False


BIG_JOB = "big"  # fits one cluster alone
UNFITTING_JOB = "nowhere"  # fits none

JOBS = (
    DemoJob("hello", ("sh", "-c", "echo hello from $SWITCHYARD_CLUSTER"), output="hello from "),
    DemoJob("count", ("seq", "1", "1000"), output="\n1000\n"),
    DemoJob("nap-1", ("sleep", "1")),
    DemoJob("nap-2", ("sleep", "2")),
    DemoJob("nap-3", ("sleep", "3")),
    DemoJob("two-cores", ("sleep", "1"), {"cores": 2}),
    DemoJob("four-cores", ("sleep", "1"), {"cores": 4}, clusters=frozenset({"beta", "gamma"})),
    DemoJob("on-alpha", ("sleep", "1"), {"cluster": "alpha"}, clusters=frozenset({"alpha"})),
    DemoJob("gpus", ("sleep", "1"), {"gpus": 2}, clusters=frozenset({"gamma"})),
    DemoJob(BIG_JOB, ("sleep", "1"), {"cores": 8, "memory": "16GiB"}, clusters=frozenset({"gamma"})),
    DemoJob(UNFITTING_JOB, ("true",), {"cores": 64}, state=State.REJECTED),
    DemoJob("fails", ("sh", "-c", "echo no luck >&2; exit 3"), state=State.FAILED, exit_code=3),
    DemoJob("too-slow", ("sleep", "300"), {"time_limit": 2}, state=State.FAILED, reason="time limit"),
    DemoJob("cancelled", ("sleep", "300"), state=State.CANCELLED, cancel=True),
)


def find_faults(wanted: DemoJob, job: Job, output: str) -> list[str]:
    """In what the job differs from what it must be; nothing if all is well."""
    found = []
    if job.state is not wanted.state:
        found.append(f"is {job.state.value}, not {wanted.state.value} ({job.reason or 'no reason given'})")
    elif job.state is not State.REJECTED and job.cluster not in wanted.clusters:
        found.append(f"ran on {job.cluster}, not on {' or '.join(sorted(wanted.clusters))}")
    if wanted.exit_code is not None and job.exit_code != wanted.exit_code:
        found.append(f"exited with {job.exit_code}, not {wanted.exit_code}")
    if wanted.output not in output:
        found.append(f"wrote {output[:60]!r}, without {wanted.output!r}")
    if wanted.reason not in job.reason:
        found.append(f"has the reason {job.reason!r}, without {wanted.reason!r}")
    return [f"{wanted.name} {fault}" for fault in found]
