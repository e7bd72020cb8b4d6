"""An agent in a process of its own, whose wall clock a test may put off: runs one job and prints what it reported.

python -m tests.kubernetes.off_clock_agent '{"folder": …, "namespace": …, "kubernetes": {…}, "script": …}'
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.kubernetes.builders import KubernetesAgent, a_job

# libfaketime mistakes the monotonic time at which a sleep ends for a wall clock's. Waits for an event are true.
time.sleep = lambda seconds: threading.Event().wait(float(seconds))  # type: ignore[assignment]


def main(told: dict[str, Any]) -> None:
    folder, cluster = Path(told["folder"]), SimpleNamespace(kubeconfig="")
    agent = KubernetesAgent(folder, cluster, told["namespace"], kubernetes=told["kubernetes"])  # type: ignore[arg-type]
    try:
        begun_s = time.monotonic()
        agent.journal.take([a_job(folder, told["script"], image=told["image"])])
        agent.until(agent.ends, "the job ends")
        reports = [queued.timed for queued in agent.journal.queued()]
        print(
            json.dumps(
                {
                    "wall_s": time.time(),
                    "took_s": time.monotonic() - begun_s,
                    "ages_s": {timed.report.seen.value: timed.at.age_us / 1e6 for timed in reports},
                    "elapsed_s": reports[-1].report.usage.elapsed_s if reports[-1].report.usage else None,
                    "reason": reports[-1].report.reason,
                    "exit_code": reports[-1].report.exit_code,
                }
            )
        )
    finally:
        agent.kill()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
