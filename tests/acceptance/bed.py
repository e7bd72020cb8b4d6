"""A test bed of real programs: a database, servers, agents, and a ledger in which each run of a job leaves a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from switchyard import Client
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from tests.processes import until

# Sorted by nothing but the order of arrival: an append of a short line is atomic.
LEDGER_LINE = 'echo "$SWITCHYARD_JOB_ID" >> "$LEDGER"'


class Ledger:
    """Counts how often each job's command really ran."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ledger"

    def command(self, then: str = "") -> list[str]:
        return ["/bin/sh", "-c", f"{LEDGER_LINE}; {then or ':'}"]

    @property
    def env(self) -> dict[str, str]:
        return {"LEDGER": str(self.file)}

    def runs(self) -> Counter[str]:
        return Counter(self.file.read_text().split()) if self.file.exists() else Counter()


def live(client: Client) -> list[Job]:
    return [job for job in client.jobs() if job.state not in FINAL_STATES]


def wait_all_final(client: Client, ids: Iterable[str], timeout_s: float) -> dict[str, Job]:
    """Wait until every job has its end."""
    wanted = set(ids)

    def ended() -> bool:
        return not any(job.id in wanted for job in live(client))

    until(ended, timeout_s, f"all of {len(wanted)} jobs have their end")
    return {job.id: job for job in client.jobs() if job.id in wanted}


def assert_each_ran_once(ledger: Ledger, jobs: dict[str, Job]) -> None:
    runs = ledger.runs()
    twice = {job: count for job, count in runs.items() if count > 1}
    never = [job for job in jobs if job not in runs]
    wrong = {job.id: (job.state, job.reason) for job in jobs.values() if job.state is not State.SUCCEEDED}
    assert (twice, never, wrong) == ({}, [], {}), f"of {len(jobs)} jobs"
    assert set(runs) == set(jobs), "a job ran that nobody knows of"
