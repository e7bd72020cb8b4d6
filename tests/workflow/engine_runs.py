"""An engine's run in memory: workflows of few tasks, and what happens to their jobs, told one step at a time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import literals_pb2, tasks_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.engine.engine import step
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, read_graph
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    DynamicWorkflow,
    ExecutionPhase,
    ExecutionState,
    NodeProgress,
    NodeTable,
)
from switchyard.features.flyte.workflow.tasks.task_cache import CacheAnswer
from switchyard.features.flyte.workflow.values.nesting import is_too_deep
from tests.workflow.builders import (
    ERROR,
    INT,
    NONE,
    TEXT,
    a_template,
    an_id,
    compiled,
    interface,
    list_of,
    scalar,
    task_node,
    union,
)

PATIENT = workflow_pb2.WorkflowMetadata.FAIL_AFTER_EXECUTABLE_NODES_COMPLETE
USER = AttemptFailure("USER:ValueError", "bad")
AGAIN = AttemptFailure("USER:Recoverable", "once more", is_recoverable=True)
SYSTEM = AttemptFailure("Interrupted", "killed", is_recoverable=True, is_system=True)
INTERFACES = {
    "add": interface({"a": INT, "b": INT}, {"o0": INT}),
    "one": interface({}, {"o0": INT}),
    "say": interface({"text": TEXT}, {"o0": TEXT}),
    "tidy": interface({"x": INT, "err": union(ERROR, NONE)}, {"o0": INT}),
    "total": interface({"many": list_of(INT)}, {"o0": INT}),
}


def graph_of(template: Any, *subs: Any, retries: int = 0) -> ExecutionGraph:
    closure, mistakes = compiled(template, *subs)
    assert closure is not None, mistakes.as_text()
    for task in closure.tasks:
        name = task.template.id.name
        task.template.CopyFrom(tasks_pb2.TaskTemplate(id=an_id(name), interface=INTERFACES[name]))
        task.template.metadata.retries.retries = retries
    return read_graph(closure)


def literals(**values: Any) -> Any:
    made = literals_pb2.LiteralMap()
    for name, value in values.items():
        made.literals[name].scalar.CopyFrom(scalar(value))
    return made


def nested(depth: int) -> Any:
    """Outputs with a number inside so many lists."""
    values = literals()
    value = values.literals["o0"]
    for _ in range(depth):
        value = value.collection.literals.add()
    value.scalar.primitive.integer = 1
    return values


DEEPEST = max(depth for depth in range(60) if not is_too_deep(nested(depth)))  # that a client can read back


def number(values: Any, name: str) -> int:
    return int(values.literals[name].scalar.primitive.integer)


@dataclass
class Run:
    """An execution whose steps are kept in memory, as a driver keeps them in the database."""

    graph: ExecutionGraph
    inputs: Any = field(default_factory=literals)
    parallel: int = 0
    phase: ExecutionPhase = ExecutionPhase.QUEUED
    nodes: dict[str, NodeProgress] = field(default_factory=dict)
    is_stopping: bool = False
    error: Any = None
    outputs: Any = None
    is_due: bool = True
    now_s: int = 0
    signals: dict[str, Any] = field(default_factory=dict)
    dynamics: dict[tuple[str, int], ExecutionGraph] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)  # scopes whose jobs were stopped
    asked: list[str] = field(default_factory=list)  # the signals that gates wait for
    bytes_left: int | None = None  # of the inputs and outputs that a step adds

    def step(
        self,
        *events: AttemptEnd,
        refusals: dict[tuple[str, int], AttemptFailure] | None = None,
        answers: dict[tuple[str, int], CacheAnswer] | None = None,
        full_plans: Collection[EntityId] = (),
    ) -> list[str]:
        """The jobs that are started, as `node#attempt`."""
        state = ExecutionState(
            self.phase,
            self.inputs,
            NodeTable(self.nodes.values()),
            self.is_stopping,
            self.error,
            max_parallelism=self.parallel,
            is_due=self.is_due,
            now_us=self.now_s * 1_000_000,
            signals=self.signals,
            dynamics=self.dynamics,
            bytes_left=self.bytes_left,
        )
        engine_step, again = (
            step(self.graph, state, events, refusals or {}, answers or {}, full_plans=full_plans) for _ in range(2)
        )
        assert again == engine_step, "the same state gives the same step"
        self.phase, self.is_stopping = engine_step.phase, engine_step.is_stopping
        self.error, self.outputs, self.is_due = engine_step.error or self.error, engine_step.outputs, engine_step.is_due
        self.dynamics |= {(node_id, attempt): made.graph for node_id, attempt, made in engine_step.dynamics}
        self.stopped += engine_step.stopped_scopes
        self.asked += [request.signal_id for request in engine_step.signals]
        self.nodes = {**self.nodes, **{node.node_id: node for node in engine_step.nodes}}
        return [f"{start.node_id}#{start.attempt}" for start in engine_step.starts]

    def end(self, node_id: str, value: Any = 1) -> list[str]:
        return self.step(AttemptEnd(node_id, self.nodes[node_id].attempts - 1, literals(o0=value)))

    def expand(self, node_id: str, graph: ExecutionGraph) -> list[str]:
        """The task of a node has made a workflow."""
        attempt = self.nodes[node_id].attempts - 1
        return self.step(AttemptEnd(node_id, attempt, dynamic=DynamicWorkflow(graph, None)))

    def fail(self, node_id: str, failure: AttemptFailure = USER) -> list[str]:
        return self.step(AttemptEnd(node_id, self.nodes[node_id].attempts - 1, failure=failure))

    def stop(self, node_id: str) -> list[str]:
        return self.step(AttemptEnd(node_id, self.nodes[node_id].attempts - 1))

    def phases(self) -> dict[str, str]:
        return {node_id: node.phase.value for node_id, node in self.nodes.items()}


def diamond(**options: Any) -> ExecutionGraph:
    template = a_template(
        task_node("n0", "one"),
        task_node("n1", "add", a="@n0.o0", b=10),
        task_node("n2", "add", a="@n0.o0", b="@.x"),
        task_node("n3", "add", a="@n1.o0", b="@n2.o0"),
        gives={"o": (INT, "@n3.o0"), "x": (INT, "@.x")},
        x=INT,
    )
    template.metadata.on_failure = options.pop("on_failure", 0)
    return graph_of(template, **options)
