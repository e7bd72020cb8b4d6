"""The entities that a workflow refers to, and its nodes at every depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id


def all_nodes(template: Any) -> Iterator[Any]:
    """Every node of a template: in branches, in array nodes, and the failure node too."""
    for node in template.nodes:
        yield from with_inner_nodes(node)
    if template.HasField("failure_node"):
        yield from with_inner_nodes(template.failure_node)


def with_inner_nodes(node: Any) -> Iterator[Any]:
    yield node
    target = node.WhichOneof("target")
    if target == "branch_node":
        for arm in branch_arms(node.branch_node):
            yield from with_inner_nodes(arm)
    elif target == "array_node" and node.array_node.HasField("node"):
        yield from with_inner_nodes(node.array_node.node)


def branch_arms(branch: Any) -> Iterator[Any]:
    """The nodes of a branch, of which one will run."""
    block = branch.if_else
    for case in (block.case, *block.other):
        if case.HasField("then_node"):
            yield case.then_node
    if block.HasField("else_node"):
        yield block.else_node


def references(templates: Iterable[Any]) -> set[EntityId]:
    """The tasks and launch plans that the nodes name. Sub-workflows come with the request."""
    found: set[EntityId] = set()
    for template in templates:
        for node in all_nodes(template):
            reference = reference_of(node)
            if reference is not None and reference.kind is not EntityKind.WORKFLOW:
                found.add(reference)
    return found


def reference_of(node: Any) -> EntityId | None:
    """The entity that a node runs. None: it names none."""
    if node.HasField("task_node") and node.task_node.HasField("reference_id"):
        return read_id(node.task_node.reference_id, EntityKind.TASK)
    if node.HasField("workflow_node"):
        reference = node.workflow_node.WhichOneof("reference")
        if reference == "launchplan_ref":
            return read_id(node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)
        if reference == "sub_workflow_ref":
            return read_id(node.workflow_node.sub_workflow_ref, EntityKind.WORKFLOW)
    return None
