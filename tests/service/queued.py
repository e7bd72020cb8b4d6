"""Services with a few queues, and ways to fill and empty them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.scope import Scope
from switchyard.server.config.config import read_config
from switchyard.server.config.platform_config import layout_of
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.service.rules import attributes
from switchyard.service.upkeep import give_places
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent, running

CONFIG = """\
queues:
  - {name: two, attributes: [few, slow], limits: {running: 2}, native: {alpha: part-2}}
  - {name: urgent, attributes: [fast], priority: 10}
  - {name: fair, attributes: [shared], limits: {running: 4}, weights: {b: 3}, ageing: 30s}
  - {name: each, attributes: [own], limits: {projects: {a: 1}}}
  - {name: spot, attributes: [cheap, few], interruptible: true}
domains: [development, {id: staging, tags: [few]}, {id: production, tags: [few, fast]}]
"""
ANY, FIRST = WriteCondition(if_match="*"), WriteCondition(if_none_match=True)
WIDE = a_graph(count=8, cores=64, gpus=0, memory_gib=64)


@contextmanager
def queued_rig(url: str, folder: Path) -> Iterator[Rig]:
    """A rig with these queues and two projects."""
    config = read_config(CONFIG, where="config")
    with running(url, folder, config=config) as rig:
        store_file_layout(rig.context, layout_of(config))
        rig.context.snapshots.refresh(force=True)
        for name in ("a", "b"):
            rig.project(name)
        yield rig


def a_job(*tags: str, **fields: Any) -> JobRequest:
    return a_request(tags=list(tags), **fields)


def give_tags(rig: Rig, scope: Scope, value: dict[str, Any]) -> None:
    attributes.put(rig.context, ADMIN, "execution-queue-attribute", scope, value, condition=FIRST)


def promote(rig: Rig) -> int:
    """Until there is nothing left to do; how much that was."""
    done = 0
    while changed := give_places.enforce_limits(rig.context, rig.leader) + give_places.give_free_places(
        rig.context, rig.leader
    ):
        done += changed
    return done


def states(rig: Rig, ids: Iterable[str]) -> list[str]:
    return [rig.row(job_id).state for job_id in ids]


def end(agent: RigAgent, lease: Lease, *, task: int | None = None) -> None:
    fence = lease.fence if task is None else lease.fence + task - (lease.lo or 0)
    agent.report(AttemptRef(lease.job, fence), ObservedState.SUCCEEDED, exit_code=0)
