"""A server that renders objects of namespaces for a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from switchyard.features.kubernetes.model.namespace_objects import ClusterObject, NamespaceReport, ResourceReport
from switchyard.features.kubernetes.service import namespace_status
from switchyard.features.kubernetes.service.render_namespaces import NamespaceRendering
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates, VariableSource
from switchyard.model.cluster.namespace_resources import NamespaceEntry
from switchyard.model.rules.scope import Scope
from switchyard.service.cluster import clusters, graphs
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.service.rules import attributes
from tests.builders import a_graph
from tests.service.rig import ADMIN, Rig, RigAgent

QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: project-quota, namespace: "{{ namespace }}"}
spec: {hard: {limits.cpu: "{{ projectQuotaCpu }}"}}
"""


NAMESPACE = 'apiVersion: v1\nkind: Namespace\nmetadata: {name: "{{ namespace }}"}\n'


class Town:
    """A rig with templates, and the chore that renders them."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder = rig, folder
        folder.mkdir()
        self.write("aa.yaml", NAMESPACE)
        self.write("ab.yaml", QUOTA)
        platform = {"projectQuotaCpu": VariableSource(value="4")}
        self.templates = ResourceTemplates(folder, platform, refresh_s=60)
        self.chore = NamespaceRendering(self.templates)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def render(self) -> int:
        """All that is due now; the number of changed namespaces."""
        self.rig.clock.wait(1)
        return self.chore.go(self.rig.context, self.rig.leader)

    def render_later(self) -> int:
        """After the files are due to be read again."""
        self.rig.clock.wait(9)
        assert self.rig.leader.take(self.rig.context)
        self.chore.read_us = 0
        return self.render()

    def entries(self) -> dict[str, NamespaceEntry]:
        return {entry.namespace: entry for entry in self.rig.context.snapshots.resources.entries}

    def quota(self, namespace: str, agent: RigAgent) -> str:
        objects = namespace_status.namespace_objects(self.rig.context, self.agent_entry(agent), namespace).objects
        assert isinstance(objects, msgspec.Raw)
        rendered = [each["object"] for each in msgspec.json.decode(objects)]
        (cpu,) = [each["spec"]["hard"]["limits.cpu"] for each in rendered if each["kind"] == "ResourceQuota"]
        return str(cpu)

    def agent_entry(self, agent: RigAgent) -> Any:
        return self.rig.context.snapshots.fleet.agents[agent.id]

    def kubernetes(self, name: str, *, is_private: bool = False) -> RigAgent:
        if is_private:
            clusters.cluster_create(self.rig.context, ADMIN, clusters.ClusterRequest(name, is_private=True))
        agent = self.rig.join(name, backend="kubernetes")
        graphs.store_agent_graph(self.rig.context, agent.id, a_graph(count=2))
        agent.sync()
        return agent

    def set_values(self, values: dict[str, str], **scope: str) -> None:
        attributes.put(
            self.rig.context,
            ADMIN,
            "cluster-resource-attribute",
            Scope(**scope),
            {"attributes": values},
            condition=WriteCondition(),
        )

    def report(self, agent: RigAgent, *reports: NamespaceReport) -> None:
        namespace_status.take_report(self.rig.context, self.agent_entry(agent), ResourceReport(list(reports)))

    def states(self, actor: Actor = ADMIN, *, limit: int = 100, **filters: Any) -> list[ClusterObject]:
        items: list[ClusterObject] = []
        after = ""
        while True:
            page = namespace_status.object_states(self.rig.context, actor, after=after, limit=limit, **filters)
            assert len(page.items) == limit or (page.next is None and len(page.items) < limit)
            items += page.items
            if page.next is None:
                return items
            after = page.next
