"""Executions on a rig: registered, created and driven without a server; the test ends their jobs."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import execution_pb2
from flyteidl.core import identifier_pb2, literals_pb2, tasks_pb2

from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import AttemptRef, Lease
from switchyard.service.core.rights import Actor
from switchyard.service.entities import registration
from switchyard.service.executions import creation, reads
from switchyard.service.executions.driver import ExecutionDriver
from switchyard.store import execution_nodes, file_outputs
from switchyard.store.executions import ExecutionKey, ExecutionRow
from tests.builders import a_graph
from tests.service.entities.requests import DOMAIN, PROJECT, an_id, plan_request, task_request, workflow_request
from tests.service.files.trees import a_tree
from tests.service.rig import ADMIN, Rig, RigAgent
from tests.workflow.builders import task_node

ROUNDS_MAX = 500  # of the driver, until it has nothing to do


class ExecutionBed:
    """A rig with one cluster, a task `add` and a driver."""

    def __init__(self, rig: Rig, *, cluster: str = "c1") -> None:
        self.rig = rig
        self.driver = ExecutionDriver(rig.submits)
        self.agents: dict[str, RigAgent] = {}
        if cluster:
            self.add_cluster(cluster)
        self.task("add")

    def add_cluster(self, name: str, **fields: Any) -> RigAgent:
        self.agents[name] = self.rig.cluster(name, **{"graph": a_graph(count=64), **fields})
        return self.agents[name]

    def task(self, name: str, **requests: str) -> None:
        """Register a task. `requests`: what it asks for, in Flyte's words."""
        request = task_request(name, args=[name])
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
        literals = literals_pb2.LiteralMap()
        literals.literals["o0"].scalar.primitive.integer = value
        tree = a_tree({"flyte-io": {"out": {"outputs.pb": literals.SerializeToString()}}})
        self.rig.context.files.store.put_many(tree.objects.items())
        self._end(lease, ObservedState.SUCCEEDED, tree.root, cluster=cluster, exit_code=0)

    def crash(self, lease: Lease, *, cluster: str = "c1", signal: int = 9) -> None:
        """The task was killed. It left nothing."""
        tree = a_tree({})
        self.rig.context.files.store.put_many(tree.objects.items())
        self._end(lease, ObservedState.FAILED, tree.root, cluster=cluster, exit_code=None, signal=signal)

    def _end(self, lease: Lease, seen: ObservedState, root: bytes, *, cluster: str, **fields: Any) -> None:
        agent, held = self.agents[cluster], AttemptRef(lease.job, lease.fence)
        row = {
            **{"job_id": lease.job, "fence": lease.fence, "task": None, "cluster_id": agent.cluster_id},
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
