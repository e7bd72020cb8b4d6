"""The ids of nodes and signals as an execution stores them: which a compiled workflow may not have.

A node inside another one has the id of the outer node in front: `n0-0-n1`. So an id that looks like such a joined id
could be that of two nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.compile.references import all_nodes, branch_arms, reference_of
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph

ID_CHARS_MAX = 200  # of a node in its workflow, and of a signal
NODE_ID_BYTES_MAX = 1500  # of a node with all ids in front of it: an index of PostgreSQL takes 2,700
JOINT_BYTES = 6  # between the id of a node and that of a node inside it: the number of an attempt
_JOINT = re.compile(r"-\d+-")


def run_id_mistakes(closure: Any) -> Iterator[str]:
    """What is wrong with the ids of a compiled workflow and its sub-workflows."""
    for compiled in (closure.primary, *closure.sub_workflows):
        template = compiled.template
        ids = {node.id for node in all_nodes(template)}
        for node in all_nodes(template):
            yield from _text_mistakes("node id", node.id)
            for kind in ("approve", "signal"):
                if node.gate_node.HasField(kind):
                    mistake = signal_id_mistake(getattr(node.gate_node, kind).signal_id)
                    yield from [f"node {node.id[:80]}: {mistake}"] if mistake else []
            for joint in _JOINT.finditer(node.id):
                if node.id[: joint.start()] in ids:
                    outer = node.id[: joint.start()][:80]
                    yield f"node id [{node.id[:80]}] could be that of a node inside node [{outer}]"


def longest_node_id(graph: ExecutionGraph) -> int:
    """The bytes of the longest id that a node of an execution can have, with the ids of the nodes around it."""
    uses = {sub_id: set(_used(sub.template)) for sub_id, sub in graph.subs.items()}
    longest: dict[EntityId, int] = {}
    for sub_id in TopologicalSorter(uses).static_order():  # compiled: none contains itself
        longest[sub_id] = _longest(graph.subs[sub_id].template, longest)
    return _longest(graph.primary.template, longest)


def _longest(template: Any, subs: Mapping[EntityId, int]) -> int:
    failure = [template.failure_node] if template.HasField("failure_node") else []
    return max((_node_bytes(node, subs) for node in (*template.nodes, *failure)), default=0)


def _node_bytes(node: Any, subs: Mapping[EntityId, int]) -> int:
    reference = reference_of(node)
    inner = subs.get(reference, 0) if reference is not None else 0
    for arm in branch_arms(node.branch_node):
        inner = max(inner, _node_bytes(arm, subs))
    return len(node.id.encode()) + (inner + JOINT_BYTES if inner else 0)


def _used(template: Any) -> Iterator[EntityId]:
    for node in all_nodes(template):
        reference = reference_of(node)
        if reference is not None and reference.kind is EntityKind.WORKFLOW:
            yield reference


def signal_id_mistake(signal_id: str) -> str:
    """Why no signal can have this id. Empty: one can."""
    return next(_text_mistakes("signal id", signal_id), "") if signal_id else "missing signal_id"


def _text_mistakes(what: str, text: str) -> Iterator[str]:
    if len(text) > ID_CHARS_MAX or not text.isprintable():
        shown = "".join(char if char.isprintable() else "?" for char in text[:80])
        yield f"{what} [{shown}]: at most {ID_CHARS_MAX} characters, and none that cannot be printed"
