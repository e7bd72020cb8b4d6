"""The jobs of the demo and their expected ends. It knows no processes and no screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.job.job import Job, State

# The resources that each cluster claims. Jobs are real processes; GPUs and memory need not be real.
CLUSTERS: dict[str, dict[str, Any]] = {
    "alpha": {"nodes": 1, "each": {"core": 2, "memory": "4GiB"}},
    "beta": {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}},
    "gamma": {"nodes": 1, "each": {"core": 8, "memory": "32GiB", "gpu": 2}},
}
EVERYWHERE = frozenset(CLUSTERS)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job and its expected end. `output` must be part of its output, `reason` part of its reason."""

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


def find_faults(expected: DemoJob, job: Job, output: str) -> list[str]:
    """Return the differences between the job and its expected end."""
    faults = []
    if job.state is not expected.state:
        faults.append(f"is {job.state.value}, not {expected.state.value} ({job.reason or 'no reason given'})")
    elif job.state is not State.REJECTED and job.cluster not in expected.clusters:
        faults.append(f"ran on {job.cluster}, not on {' or '.join(sorted(expected.clusters))}")
    if expected.exit_code is not None and job.exit_code != expected.exit_code:
        faults.append(f"exited with {job.exit_code}, not {expected.exit_code}")
    if expected.output not in output:
        faults.append(f"wrote {output[:60]!r}, without {expected.output!r}")
    if expected.reason not in job.reason:
        faults.append(f"has the reason {job.reason!r}, without {expected.reason!r}")
    return [f"{expected.name} {fault}" for fault in faults]
