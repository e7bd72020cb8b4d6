"""A user of flytekit, unmodified, in a process of its own: runs the cases of modules that are registered, all at once.

    python flytekit_runs.py '{"endpoint": "127.0.0.1:8089", "insecure": true}' PROJECT VERSION MODULE…

Each module is a file of its folder with a list CASES. Prints a list of results as JSON. Knows nothing of Switchyard.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import fsspec  # type: ignore[import-untyped]
import msgspec
from flyteidl.core import literals_pb2
from flytekit.configuration import Config, PlatformConfig
from flytekit.exceptions.base import FlyteException
from flytekit.exceptions.system import FlyteSystemUnavailableException
from flytekit.models.core.execution import NodeExecutionPhase, WorkflowExecutionPhase
from flytekit.remote import FlyteRemote
from google.protobuf import json_format
from pytimeparse import parse as parse_duration

DOMAIN = "development"
POLL_S = 0.3
AWAY_S = 120.0  # a server that is killed is back long before
DONE = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")
T = TypeVar("T")


def main(platform: str, project: str, version: str, *modules: str) -> None:
    sys.path.insert(0, ".")
    remote = FlyteRemote(Config(platform=PlatformConfig(**json.loads(platform))), project, DOMAIN)
    started = []
    for name in modules:
        module = importlib.import_module(name)
        for case in module.CASES:
            plan = getattr(module, case["run"]).name
            # What is run again shares the cache with other cases, so those come one after the other.
            begun = None if "again" in case else start(remote, plan, version, case)
            started.append((name, case, plan, begun))
    results = []
    for name, case, plan, begun in started:
        found = outcome(remote, case, begun or start(remote, plan, version, case))
        if "again" in case:
            second = outcome(remote, case, start(remote, plan, version, case))
            found["again"] = "equal" if second["outputs"] == found["outputs"] else "differs"
        results.append({"module": name, "case": case, **found})
    json.dump(results, sys.stdout)


def patiently(call: Callable[[], T]) -> T:
    """The answer of a call, once the server is there. flytekit itself tries four times, without a pause."""
    end = time.monotonic() + AWAY_S
    while True:
        try:
            return call()
        except FlyteSystemUnavailableException:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)  # between two looks


def start(remote: Any, name: str, version: str, case: dict[str, Any]) -> tuple[Any, str]:
    """The execution of a case, or why it was refused."""
    plan = patiently(lambda: remote.fetch_launch_plan(name=name, version=case.get("version", version)))
    values = {word: value_of(value, plan.interface.inputs[word].type) for word, value in case["inputs"].items()}
    own_name = "f" + uuid.uuid4().hex[:19]  # as flytekit would: the same one in each try
    options = {"execution_name": own_name, **case.get("options", {})}
    try:
        return patiently(lambda: remote.execute(plan, inputs=values, **options)), ""
    except FlyteException as exc:
        return None, f"{type(exc).__name__}: {exc}"


def outcome(remote: Any, case: dict[str, Any], begun: tuple[Any, str]) -> dict[str, Any]:
    execution, refusal = begun
    if execution is None:
        return {"error": refusal, "phase": "REFUSED"}
    give(remote, execution.id.name, case.get("signals", {}))
    return result(remote, execution)


def give(remote: Any, name: str, signals: dict[str, Any]) -> None:
    """Give each signal its value as soon as its gate waits: true and false approve and reject."""
    left = dict(signals)
    if not left:
        return
    execution = remote.fetch_execution(name=name)
    while left and not remote.sync_execution(execution).is_done:
        waiting = {one.id.signal_id for one in remote.list_signals(name)}
        signal_id = next((one for one in left if one in waiting), None)
        if signal_id is None:
            time.sleep(POLL_S)  # between two looks
            continue
        value = left.pop(signal_id)
        if isinstance(value, bool):
            (remote.approve if value else remote.reject)(signal_id, name)
        else:
            remote.set_input(signal_id, name, value["value"] if isinstance(value, dict) else value)


def value_of(value: Any, kind: Any) -> Any:
    """A value of the kind that the input is of."""
    plain = json_format.MessageToDict(kind.to_flyte_idl())
    if plain.get("simple") == "DATETIME":
        return datetime.datetime.fromisoformat(value)
    return datetime.timedelta(seconds=parse_duration(value) or 0) if plain.get("simple") == "DURATION" else value


def result(remote: Any, execution: Any) -> dict[str, Any]:
    while True:
        closure = patiently(lambda: remote.client.get_execution(execution.id)).closure
        phase = WorkflowExecutionPhase.enum_to_string(closure.phase)
        if phase in DONE:
            break
        time.sleep(POLL_S)  # between two looks
    return patiently(lambda: ended(remote, execution, closure, phase))


def ended(remote: Any, execution: Any, closure: Any, phase: str) -> dict[str, Any]:
    synced = remote.sync_execution(execution, sync_nodes=True)
    data = remote.client.get_execution_data(execution.id)
    outputs = data.full_outputs.to_flyte_idl().literals
    nodes = dict(leaves(synced.node_executions))
    return {
        "phase": phase,
        "error": closure.error.message if closure.error else "",
        "kind": closure.error.kind if closure.error else 0,
        "outputs": {name: plain_of(literal) for name, literal in outputs.items()} if phase == "SUCCEEDED" else None,
        "nodes": nodes,
        "children": children(synced.node_executions),
        "cluster": execution_cluster(remote, execution),
    }


def execution_cluster(remote: Any, execution: Any) -> str:
    spec = remote.client.get_execution(execution.id).spec.to_flyte_idl()
    return str(spec.metadata.system_metadata.execution_cluster)


def leaves(nodes: Any) -> Any:
    """The nodes that run tasks: phase, name of the task and the number of attempts, by id."""
    for node_id, node in (nodes or {}).items():
        inner = node.workflow_executions or node.subworkflow_node_executions
        if node.subworkflow_node_executions:
            yield from leaves(node.subworkflow_node_executions)
        elif not inner:
            tasks = [one.id.task_id.name.rpartition(".")[2] for one in node.task_executions or []]
            phase = NodeExecutionPhase.enum_to_string(node.closure.phase)
            yield node_id, [phase, tasks[0] if tasks else "", len(tasks)]


def children(nodes: Any) -> int:
    """How many nodes started an execution."""
    return sum(bool(node.workflow_executions) for node in (nodes or {}).values())


def plain_of(literal: Any) -> Any:
    """A literal in plain form: JSON's values, ISO times in UTC, durations in seconds."""
    case = literal.WhichOneof("value")
    if case == "collection":
        return [plain_of(one) for one in literal.collection.literals]
    if case == "map":
        return {key: plain_of(one) for key, one in literal.map.literals.items()}
    scalar = literal.scalar
    kind = scalar.WhichOneof("value")
    if kind == "union":
        return plain_of(scalar.union.value)
    if kind == "none_type":
        return None
    if kind == "binary":
        return msgspec.msgpack.decode(scalar.binary.value)
    if kind == "blob":
        with fsspec.open(scalar.blob.uri) as file:
            return {"file": file.read().decode()}
    assert kind == "primitive", kind
    return primitive_of(scalar.primitive)


def primitive_of(primitive: literals_pb2.Primitive) -> Any:
    word = primitive.WhichOneof("value")
    if word == "datetime":
        return primitive.datetime.ToDatetime(tzinfo=datetime.UTC).isoformat()
    if word == "duration":
        return primitive.duration.ToTimedelta().total_seconds()
    return getattr(primitive, word)


if __name__ == "__main__":
    main(*sys.argv[1:])
