"""A user of flytekit, unmodified, in a process of its own: stops, recovers, lists and signals executions.

    python flytekit_operations.py '{"endpoint": "127.0.0.1:8089", "insecure": true}' PROJECT FILE

`chain`, `long`, `asks` and `small` are registered as v1. FILE is what `chain` writes to. Prints JSON. Knows nothing of
Switchyard.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from flyteidl.admin import execution_pb2
from flytekit.configuration import Config, PlatformConfig
from flytekit.exceptions.base import FlyteException
from flytekit.models import filters
from flytekit.models.core.execution import NodeExecutionPhase, WorkflowExecutionPhase
from flytekit.models.core.identifier import WorkflowExecutionIdentifier
from flytekit.remote import FlyteRemote

DOMAIN = "development"
POLL_S = 0.2
NAMES = {"chain": "ops.chain", "long": "long", "asks": "asks", "small": "small"}


def main(platform: str, project: str, file: str) -> None:
    remote = FlyteRemote(Config(platform=PlatformConfig(**json.loads(platform))), project, DOMAIN)
    stories = (recover, stop, archive, lists, signal, fetch)
    json.dump({story.__name__: story(remote, file) for story in stories}, sys.stdout)


def recover(remote: Any, file: str) -> Any:
    """A workflow of many kinds of nodes, of which one task fails; then the same again."""
    first = start(remote, "chain", "broken", file=file)
    assert phase(remote, first) == "FAILED", first
    notes = Path(file)
    before = sorted(notes.read_text().split())
    notes.write_text("")
    Path(f"{file}.well").touch()
    again = remote.client.recover_execution(first.id, name="mended")
    mended = remote.fetch_execution(name=again.name)
    over = phase(remote, mended)
    return {
        "before": before,
        "phase": over,
        "ran": sorted(notes.read_text().split()),
        "nodes": nodes(remote, again.name),
        "synced": sorted(remote.sync_execution(mended, sync_nodes=True).node_executions),
        "outputs": outputs(remote, again.name),
        "mode": remote.client.get_execution(again).spec.metadata.mode,
        "same again": remote.client.recover_execution(first.id, name="mended").name,
        "of none": failure(lambda: remote.client.recover_execution(_id(remote, "none"), name="x")),
    }


def stop(remote: Any, _file: str) -> Any:
    """While its nodes run, and at once, while they start."""
    running = start(remote, "long", "stopped")
    until(lambda: "RUNNING" in nodes(remote, "stopped").values())
    remote.terminate(running, "enough")
    told = phase(remote, running)
    early = [start(remote, "long", f"early-{number}") for number in range(4)]
    for number, execution in enumerate(early):
        until(lambda number=number: number == 0 or nodes(remote, f"early-{number}"))
        remote.terminate(execution, "at once")
    closure = remote.client.get_execution(running.id).closure
    return {
        "phase": told,
        "cause": [closure.abort_metadata.cause, closure.abort_metadata.principal],
        "nodes": nodes(remote, "stopped"),
        "early": [phase(remote, execution) for execution in early],
        "again": failure(lambda: remote.terminate(running, "once more")),
        "recover": failure(lambda: remote.client.recover_execution(start(remote, "long", "live").id, name="y")),
        "live": remote.terminate(remote.fetch_execution(name="live"), "over"),
    }


def archive(remote: Any, _file: str) -> Any:
    request = execution_pb2.ExecutionUpdateRequest(id=_id(remote, "stopped").to_flyte_idl(), state=1)
    remote.client._stub.UpdateExecution(request)
    hidden = names(remote)
    shown = names(remote, filters.ValueIn("state", ["0", "1"]))
    request.state = 0
    remote.client._stub.UpdateExecution(request)
    return {
        "hidden": "stopped" not in hidden,
        "shown": "stopped" in shown,
        "back": "stopped" in names(remote),
        "none": failure(lambda: remote.client._stub.UpdateExecution(_update(remote, "none"))),
    }


def lists(remote: Any, _file: str) -> Any:
    small = start(remote, "small", "small")
    assert phase(remote, small) == "SUCCEEDED"
    pages: list[str] = []
    token = ""
    while True:
        page, token = remote.client.list_executions_paginated(remote.default_project, DOMAIN, limit=3, token=token)
        pages += [one.id.name for one in page]
        if not token:
            break
    return {
        "failed": names(remote, filters.Equal("phase", "FAILED")),
        "recovered": names(remote, filters.Equal("mode", "5")),
        "of a plan": names(remote, filters.Equal("launch_plan.name", "ops.chain")),
        "of a task": names(remote, filters.Equal("task.name", "ops.chain")),
        "of a workflow": names(remote, filters.Equal("workflow.name", "small")),
        "on the cluster": names(remote, filters.Equal("cluster", "c1"), filters.Equal("name", "small")),
        "short": names(remote, filters.LessThan("duration", "3600"), filters.Contains("name", ["small"])),
        "long": names(remote, filters.GreaterThan("duration", "1h"), filters.Contains("name", ["small"])),
        "pages": sorted(pages) == names(remote),
        "bad field": failure(lambda: names(remote, filters.Equal("colour", "red"))),
        "bad mode": failure(lambda: names(remote, filters.Equal("mode", "by-hand"))),
        "recent": [one.id.name for one in remote.recent_executions(limit=1)],
    }


def signal(remote: Any, _file: str) -> Any:
    """Before its gate, of the wrong type, twice, and after the end."""
    start(remote, "asks", "asked")
    until(lambda: [one.id.signal_id for one in remote.list_signals("asked")] == ["go"])
    early = failure(lambda: remote.set_input("number", "asked", 3))
    remote.approve("go", "asked")
    until(lambda: len(remote.list_signals("asked")) == 2)
    wrong = failure(lambda: remote.set_input("number", "asked", "three"))
    remote.set_input("number", "asked", 3)
    twice = failure(lambda: remote.set_input("number", "asked", 4))
    over = phase(remote, remote.fetch_execution(name="asked"))
    return {
        "early": early,
        "wrong": wrong,
        "twice": twice[:2],
        "phase": over,
        "outputs": outputs(remote, "asked"),
        "late": failure(lambda: remote.set_input("number", "asked", 5)),
    }


def fetch(remote: Any, _file: str) -> Any:
    """By addresses of Flyte's: outputs of an execution and of a node, and one output alone."""
    here = f"flyte://v1/{remote.default_project}/{DOMAIN}/mended"
    return {
        "all": sorted(remote.get(f"{here}/end-node/o").literals),
        "one": remote.get(f"{here}/n0/o/o0").scalar.primitive.integer,
        "input": remote.get(f"{here}/n0/i/word").scalar.primitive.string_value,
        "none": remote.get(f"{here}/n9/o"),
        "odd": failure(lambda: remote.client.get_data("flyte://v1/x")),
    }


def start(remote: Any, word: str, name: str, **inputs: Any) -> Any:
    plan = remote.fetch_launch_plan(name=NAMES[word], version="v1")
    return remote.execute(plan, inputs=inputs, execution_name=name)


def phase(remote: Any, execution: Any) -> str:
    def now() -> str:
        return str(WorkflowExecutionPhase.enum_to_string(remote.client.get_execution(execution.id).closure.phase))

    until(lambda: now() in ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT"))
    return now()


def nodes(remote: Any, name: str) -> dict[str, str]:
    """The phases of the nodes at the top, by id."""
    found, _ = remote.client.list_node_executions(_id(remote, name), limit=100)
    return {one.id.node_id: NodeExecutionPhase.enum_to_string(one.closure.phase) for one in found}


def outputs(remote: Any, name: str) -> dict[str, int]:
    data = remote.client.get_execution_data(_id(remote, name)).full_outputs.to_flyte_idl()
    return {word: value.scalar.primitive.integer for word, value in data.literals.items()}


def names(remote: Any, *conditions: Any) -> list[str]:
    found, _ = remote.client.list_executions_paginated(
        remote.default_project, DOMAIN, limit=100, filters=list(conditions) or None
    )
    return sorted(one.id.name for one in found)


def _id(remote: Any, name: str) -> Any:
    return WorkflowExecutionIdentifier(remote.default_project, DOMAIN, name)


def _update(remote: Any, name: str) -> Any:
    return execution_pb2.ExecutionUpdateRequest(id=_id(remote, name).to_flyte_idl(), state=1)


def failure(work: Callable[[], Any]) -> list[str]:
    """What flytekit raises, and the server's code."""
    try:
        work()
    except FlyteException as exc:
        cause: Any = exc.__cause__
        return [type(exc).__name__, cause.code().name, cause.details()]
    except grpc.RpcError as exc:
        return [type(exc).__name__, exc.code().name, exc.details()]
    return ["nothing", "", ""]


def until(is_true: Callable[[], Any]) -> None:
    """The test that started this process ends it if it takes too long."""
    while not is_true():
        time.sleep(POLL_S)  # between two looks


if __name__ == "__main__":
    main(*sys.argv[1:])
