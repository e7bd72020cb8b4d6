"""Jobspecs from a file to a real instance: the command runs as often, and on as much, as the jobspec asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.accounts import AllowList
from switchyard.errors import PolicyRefused
from switchyard.features.flux.agent.backend import FluxBackend
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.jobspec.jobspec import from_jobspec
from tests.agent.builders import a_lease, end_of
from tests.agent.flux.builders import a_flux_setting
from tests.flux_bed import FluxInstance

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux")]

COMMAND = ["sh", "-c", "echo $FLUX_TASK_RANK"]
CORE = {"type": "core", "count": 1}
SLOT: dict[str, Any] = {"type": "slot", "label": "s", "count": 2, "with": [CORE]}
NODE: dict[str, Any] = {"type": "node", "count": 1}
RANGE = {"min": 1, "max": 4, "operator": "+", "operand": 1}


@pytest.fixture
def backend(instance: FluxInstance, tmp_path: Path) -> Iterator[FluxBackend]:
    made = FluxBackend(a_flux_setting(tmp_path, instance, allow=AllowList(options=["--setopt"])))
    yield made
    made.close()
    instance.cancel_all()


def listed(*resources: dict[str, Any], total: int | None = None) -> dict[str, Any]:
    count = {"per_slot": 1} if total is None else {"total": total}
    task = {"command": COMMAND, "slot": "s", "count": count}
    return {"version": 9999, "resources": list(resources), "tasks": [task], "attributes": {}}


def named(groups: dict[str, Any], group: str) -> dict[str, Any]:
    return {"version": 1, "resources": groups, "task": {"command": COMMAND, "resources": group}}


def lease_of(form: dict[str, Any]) -> Lease:
    """A lease of the job that `yard submit -f` would make."""
    plain = from_jobspec(form).plain
    resources = {name: plain[name] for name in ("tasks", "nodes", "cores", "gpus") if name in plain}
    native = Native(**plain["native"]) if "native" in plain else None
    return a_lease(*plain["command"], resources=resources, demand=plain.get("demand"), native=native)


def test_a_jobspec_runs_as_asked_on_no_more_than_was_matched(backend: FluxBackend, instance: FluxInstance) -> None:
    cores = instance.spec.cores
    cases: list[tuple[dict[str, Any], int, int]] = [  # jobspec, tasks, cores in all
        (listed({**NODE, "count": 2, "with": [SLOT]}, total=3), 3, 4),
        (listed({**SLOT, "count": 1, "with": [{**CORE, "count": RANGE}]}), 1, 1),
        (listed({**SLOT, "count": RANGE}), 1, 1),
        (listed({**SLOT, "count": "2,4", "with": [{**CORE, "count": "2-8:2:*"}]}), 2, 4),
        (listed({**SLOT, "with": [NODE]}), 2, 2 * cores),
        (named({"b": {"type": "core", "count": 4}}, "b"), 1, 4),
        (named({"a": NODE, "b": {"type": "core", "count": 4}}, "a"), 1, 1),
        (named({"a": {**NODE, "replicas": 2, "with": [{**CORE, "count": 2}]}}, "a"), 2, 4),
    ]
    handles = [backend.submit(lease_of(form)) for form, _, _ in cases]
    for handle, (form, tasks, total) in zip(handles, cases, strict=True):
        ended = end_of(backend, handle)
        assert ended.seen is ObservedState.SUCCEEDED, (form, ended)
        text = backend.output(handle, "stdout", offset=0, size=1000).data.decode()
        assert sorted(text.split()) == [str(rank) for rank in range(tasks)], form
        allotted = instance.flux("jobs", "-a", "-n", "-o", "{ncores}", handle.partition("/")[0])
        assert int(allotted) == total, form


def test_a_jobspec_that_flux_cannot_run_is_refused_before_it_gets_there(
    backend: FluxBackend, instance: FluxInstance
) -> None:
    before = instance.flux("jobs", "-a", "-n", "-o", "{id}")
    lease = lease_of(listed({**SLOT, "with": [{**NODE, "count": 2}]}))
    with pytest.raises(PolicyRefused, match="one task on several nodes"):
        backend.submit(lease)
    quote = backend.quote(spec_of(lease))
    assert (quote.can, "one task on several nodes" in quote.reason) == (False, True)
    assert backend.held() == []
    assert instance.flux("jobs", "-a", "-n", "-o", "{id}") == before


def test_the_exit_code_of_a_job_shell_is_not_the_commands(backend: FluxBackend, tmp_path: Path) -> None:
    start = tmp_path / "start.lua"
    start.write_text("os.exit(1)\n", encoding="utf-8")
    lease = a_lease(*COMMAND, native=Native(options=[f"--setopt=initrc={start}"]))
    ended = end_of(backend, backend.submit(lease))
    assert (ended.seen, ended.exit_code, ended.cause) == (ObservedState.FAILED, None, Cause.CLUSTER)
    assert "before the command began" in ended.reason
    failed = end_of(backend, backend.submit(a_lease("sh", "-c", "exit 1")))
    assert (failed.exit_code, failed.cause) == (1, Cause.JOB)
