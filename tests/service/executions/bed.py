"""Executions on a rig: registered, created and driven without a server; the test ends their jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from flyteidl.admin import execution_pb2
from flyteidl.core import identifier_pb2, literals_pb2, tasks_pb2, workflow_pb2
from msgspec import structs

from switchyard.features.flyte.server.workflows_section import WorkflowsSection
from switchyard.features.flyte.service.entities import registration
from switchyard.features.flyte.service.executions.calls import creation, reads
from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver
from switchyard.features.flyte.service.executions.nodes.child_executions import child_name
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.store.tables.executions_tables import executions
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.server.config.config import config_type
from switchyard.server.config.limits_section import LimitsSection
from switchyard.service.cluster import clusters
from switchyard.service.core.rights import Actor
from switchyard.store.files import file_outputs
from tests.builders import a_graph
from tests.service.entities.requests import DOMAIN, PROJECT, an_id, plan_request, task_request, workflow_request
from tests.service.files.trees import a_tree
from tests.service.rig import ADMIN, Rig, RigAgent, running
from tests.workflow.builders import INT, bindings, interface, list_of, plan_node, task_node

SUBMIT = (Role.SUBMIT, GrantTarget.PROJECT, PROJECT)

ROUNDS_MAX = 500  # of the driver, until it has nothing to do


def outputs_file(value: int) -> dict[str, bytes]:
    """The file that the task `add` leaves."""
    literals = literals_pb2.LiteralMap()
    literals.literals["o0"].scalar.primitive.integer = value
    return {"outputs.pb": literals.SerializeToString()}


class ExecutionBed:
    """A rig with one cluster, a task `add` and a driver."""

    def __init__(self, rig: Rig, *, cluster: str = "c1", tasks: Sequence[str] = ("add",)) -> None:
        self.rig = rig
        self.driver = ExecutionDriver(rig.submits)
        self.agents: dict[str, RigAgent] = {}
        if cluster:
            self.add_cluster(cluster)
        for task in tasks:
            self.task(task)

    def add_cluster(self, name: str, **fields: Any) -> RigAgent:
        self.agents[name] = self.rig.cluster(name, **{"graph": a_graph(count=64), **fields})
        return self.agents[name]

    def task(self, name: str, *, metadata: Any = None, **requests: str) -> None:
        """Register a task. `requests`: what it asks for, in Flyte's words."""
        request = task_request(name, args=[name])
        request.spec.template.metadata.MergeFrom(metadata or tasks_pb2.TaskMetadata())
        for word, value in requests.items():
            request.spec.template.container.resources.requests.add(
                name=tasks_pb2.Resources.ResourceName.Value(word), value=value
            )
        registration.create_task(self.rig.context, ADMIN, request)

    def flow(self, name: str, nodes: list[Any]) -> None:
        """Register a workflow with its launch plan."""
        registration.create_workflow(self.rig.context, ADMIN, workflow_request(name, nodes=nodes))
        registration.create_launch_plan(self.rig.context, ADMIN, plan_request(name, workflow=name))

    def wide(self, name: str, count: int) -> None:
        """A workflow of nodes that all can start at once."""
        self.flow(name, [task_node(f"n{number}", a=number, b=1) for number in range(count)])

    def maps(self, name: str, values: list[int], *, kind: Any = INT, bound: int = 1, **metadata: Any) -> None:
        """A workflow with a map over these values. `metadata`: of its task."""
        request = task_request(f"{name}-task", args=[name])
        template = request.spec.template
        template.interface.CopyFrom(interface({"a": list_of(kind), "b": INT}, {"o0": list_of(kind)}))
        template.metadata.MergeFrom(tasks_pb2.TaskMetadata(**metadata))
        registration.create_task(self.rig.context, ADMIN, request)
        made = workflow_pb2.Node(id="n0", inputs=bindings({"a": values, "b": bound}))
        made.array_node.bound_inputs.append("b")
        made.array_node.node.CopyFrom(task_node("inner", f"{name}-task"))
        self.flow(name, [made])

    def launches(self, name: str, plans: list[str]) -> None:
        """A workflow of nodes that each start an execution of a launch plan."""
        self.flow(name, [plan_node(f"n{number}", plan) for number, plan in enumerate(plans)])

    def nested(self, name: str, *, width: int, depth: int) -> None:
        """A launch plan that starts others, which start others, and so on: `width` to the power of `depth` in all."""
        self.wide(f"{name}-0", 1)
        for level in range(1, depth + 1):
            self.launches(name if level == depth else f"{name}-{level}", [f"{name}-{level - 1}"] * width)

    def live_executions(self) -> list[str]:
        with self.rig.context.database.read() as tx:
            query = sa.select(executions.c.name).where(executions.c.ended_us.is_(None))
            return sorted(tx.execute(query).scalars())

    def take_names(self, name: str, nodes: list[str]) -> None:
        """Somebody has executions with the names of those that these nodes would start."""
        parent = self.row(name)
        for node in nodes:
            self.create("inner", child_name(parent.id, node))

    def create(self, plan: str, name: str, *, actor: Actor = ADMIN, **spec: Any) -> ExecutionKey:
        request = execution_pb2.ExecutionCreateRequest(
            project=PROJECT,
            domain=DOMAIN,
            name=name,
            spec=execution_pb2.ExecutionSpec(launch_plan=an_id(identifier_pb2.LAUNCH_PLAN, plan), **spec),
        )
        return creation.create_execution(self.rig.context, actor, request)

    def drive(self) -> int:
        """Drive until nothing is due. Returns how many rounds it took."""
        for number in range(ROUNDS_MAX):
            if not self.driver.go(self.rig.context, self.rig.leader):
                return number
        raise AssertionError("the driver goes on for ever")

    def row(self, name: str) -> ExecutionRow:
        return reads.get_execution(self.rig.context, ADMIN, ExecutionKey(PROJECT, DOMAIN, name)).row

    def phase(self, name: str) -> str:
        return self.row(name).phase

    def nodes(self, name: str) -> dict[str, str]:
        """The phases of its nodes."""
        with self.rig.context.database.read() as tx:
            return {node.node_id: node.phase for node in execution_nodes.node_list(tx, self.row(name).id)}

    def attempts(self, name: str, node_id: str = "n0") -> list[Any]:
        return reads.list_attempts(self.rig.context, ADMIN, ExecutionKey(PROJECT, DOMAIN, name), node_id)

    def lease(self, cluster: str = "c1", want: int = 100) -> list[Lease]:
        return self.agents[cluster].lease(want)

    def succeed(self, lease: Lease, value: int = 7, *, cluster: str = "c1") -> None:
        """The task has run and left its output."""
        tree = a_tree({"flyte-io": {"out": outputs_file(value)}})
        self.rig.context.files.store.put_many(tree.objects.items())
        self._end(lease, ObservedState.SUCCEEDED, tree.root, cluster=cluster, exit_code=0)

    def leave(self, lease: Lease, files: dict[str, bytes]) -> None:
        """The task has run and left these files."""
        tree = a_tree({"flyte-io": {"out": files}})
        self.rig.context.files.store.put_many(tree.objects.items())
        self._end(lease, ObservedState.SUCCEEDED, tree.root, cluster="c1", exit_code=0)

    def crash(self, lease: Lease, *, cluster: str = "c1", signal: int = 9) -> None:
        """The task was killed. It left nothing."""
        tree = a_tree({})
        self.rig.context.files.store.put_many(tree.objects.items())
        self._end(lease, ObservedState.FAILED, tree.root, cluster=cluster, exit_code=None, signal=signal)

    def run_elements(self, *, files: Callable[[int], dict[str, bytes]] | None = None) -> list[int]:
        """Drive maps, and end all elements that start. Returns the elements that ran."""
        ran: list[int] = []
        while True:
            self.drive()
            leases = self.lease(want=1000)
            if not leases:
                return ran
            for lease in leases:
                self.end_elements(lease, files or outputs_file)
                ran += range(lease.lo or 0, (lease.hi or 0) + 1)

    def end_elements(self, lease: Lease, files: Callable[[int], dict[str, bytes]]) -> None:
        """All elements of a leased range have run. `files`: what each left, by its index."""
        for index in range(lease.lo or 0, (lease.hi or 0) + 1):
            tree = a_tree({"flyte-io": {"out": files(index)}})
            self.rig.context.files.store.put_many(tree.objects.items())
            one = structs.replace(lease, fence=lease.fence + index - (lease.lo or 0))
            self._end(one, ObservedState.SUCCEEDED, tree.root, cluster="c1", task=index, exit_code=0)

    def _end(
        self, lease: Lease, seen: ObservedState, root: bytes, *, cluster: str, task: int | None = None, **fields: Any
    ) -> None:
        agent, held = self.agents[cluster], AttemptRef(lease.job, lease.fence)
        row = {
            **{"job_id": lease.job, "fence": lease.fence, "task": task, "cluster_id": agent.cluster_id},
            **{"state": "ready", "root": root, "files": 1, "size": 1, "missing": "[]", "skipped": "[]"},
            **{"error": "", "at_us": self.rig.clock()},
        }
        agent.report(held, ObservedState.RUNNING)
        self.rig.committer.call(lambda batch: file_outputs.output_put(batch.tx, row))
        agent.report(held, seen, **fields)

    def run_all(self, cluster: str = "c1") -> int:
        """Drive and end jobs until no job is left. Returns how many ran."""
        count = 0
        while True:
            self.drive()
            leases = self.lease(cluster)
            if not leases:
                return count
            for lease in leases:
                self.succeed(lease, cluster=cluster)
            count += len(leases)


def limited(store_url: str, folder: Any, workflows: WorkflowsSection | None = None, **limits: Any) -> Any:
    kind: Any = config_type()
    config = kind(limits=LimitsSection(**limits), workflows=workflows or WorkflowsSection())
    return running(store_url, folder, config=config)


def a_user(rig: Rig, name: str = "ann") -> Any:
    return rig.user(name, SUBMIT, (Role.SUBMIT, GrantTarget.CLUSTER, "c1"))


def wait_for_room(rig: Rig) -> None:
    """Time passes: pauses end, and the server counts the jobs of its users again."""
    rig.clock.wait(5)
    rig.context.usage.refresh(rig.context.database, rig.committer)


def cordon(rig: Rig, name: str, is_cordoned: bool) -> None:
    clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(is_cordoned=is_cordoned))
    rig.context.snapshots.refresh(force=True)
