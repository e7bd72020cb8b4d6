"""What the nodes of one template take and give, by what they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.references import branch_arms, reference_of
from switchyard.features.flyte.workflow.compile.signature import Signature, Types, of_array
from switchyard.features.flyte.workflow.values.bindings import BindingChecker, show_type
from switchyard.features.flyte.workflow.values.casting import Caster

# Gates that hand on what they got from another gate, one behind the other. People approve a value once or twice.
GATES_DEEP_MAX = 50


@dataclass
class NodeSignatures:
    """Finds signatures, each once. `entities`: those of the entities that nodes run; `start`: the workflow's inputs."""

    nodes: Mapping[str, Any]  # at the top, by id
    entities: Mapping[EntityId, Signature]
    start: Types
    start_id: str
    caster: Caster
    mistakes: Mistakes
    within: str
    _outputs: dict[str, Types | None] = field(default_factory=dict)  # by node, arms of branches too
    _deep: int = 0

    def outputs_of(self, node_id: str) -> Types | None:
        """The outputs of a node at the top. KeyError: there is no such node. None: they are not known."""
        return self.start if node_id == self.start_id else self.outputs(self.nodes[node_id])

    def inputs(self, node: Any) -> Signature | None:
        """What may be bound to a node. None: whatever is bound, or it is not known."""
        target = node.WhichOneof("target")
        if target == "branch_node":
            return None
        if target == "gate_node":
            return None if node.gate_node.WhichOneof("condition") == "approve" else Signature()
        if target == "array_node":
            inner = self.inputs(node.array_node.node)
            return None if inner is None else of_array(inner, node.array_node)
        reference = reference_of(node)
        return None if reference is None else self.entities.get(reference)

    def outputs(self, node: Any) -> Types | None:
        if node.id not in self._outputs:
            self._outputs[node.id] = None  # while it is looked for: a gate that waits for itself
            outputs = self._find_outputs(node)
            if outputs is not None and node.output_aliases:
                aliases = {alias.alias: outputs[alias.var] for alias in node.output_aliases if alias.var in outputs}
                outputs = {**outputs, **aliases}
            self._outputs[node.id] = outputs
        return self._outputs[node.id]

    def _find_outputs(self, node: Any) -> Types | None:
        target = node.WhichOneof("target")
        if target == "branch_node":
            return self._branch_outputs(node)
        if target == "gate_node":
            return self._gate_outputs(node)
        signature = self.inputs(node)
        return None if signature is None else signature.outputs

    def _branch_outputs(self, node: Any) -> Types | None:
        """The outputs that all arms have."""
        found = [(arm.id, self.outputs(arm)) for arm in branch_arms(node.branch_node)]
        arms = [(arm_id, outputs) for arm_id, outputs in found if outputs is not None]
        if not arms or len(arms) < len(found):
            return None
        common = dict(arms[0][1])
        for arm_id, outputs in arms[1:]:
            common = {name: kind for name, kind in common.items() if name in outputs}
            for name, kind in common.items():
                other = outputs[name]
                if not (self.caster.can_cast(kind, other) and self.caster.can_cast(other, kind)):
                    text = f"Output [{name}] is {show_type(kind)} in one arm and {show_type(other)} in another."
                    self.mistakes.add("MismatchingTypes", f"{self.within}{arm_id}", text)
        return common

    def _gate_outputs(self, node: Any) -> Types | None:
        gate = node.gate_node
        condition = gate.WhichOneof("condition")
        if condition == "sleep":
            return {}
        if condition == "signal":
            return {gate.signal.output_variable_name: gate.signal.type}
        if condition != "approve" or self._deep >= GATES_DEEP_MAX:
            return None
        self._deep += 1
        try:  # the mistakes of its bindings are reported where the node is checked
            bound = BindingChecker(self.outputs_of, self.caster, Mistakes()).check(node.id, node.inputs, None)
        finally:
            self._deep -= 1
        is_known = len(bound.types) == len({binding.var for binding in node.inputs})
        return bound.types if is_known else None

    def check_target(self, node: Any) -> None:
        """Report a node that runs nothing, or something that is not there."""
        target = node.WhichOneof("target")
        if target == "array_node":
            self._check_array(node)
        elif target == "gate_node":
            self._check_gate(node)
        elif target == "branch_node":
            if not node.branch_node.if_else.case.HasField("then_node"):
                self._add("ValueRequired", node, "The branch has no first case.")
        elif target is None:
            self._add("ValueRequired", node, "Value required [Target].")
        else:
            self._check_reference(node, at=node)

    def _check_reference(self, node: Any, *, at: Any) -> None:
        """`at`: the node that the mistake is reported for."""
        reference = reference_of(node)
        if reference is None:
            self._add("ValueRequired", at, "The node names no task, workflow or launch plan.")
        elif reference not in self.entities:
            is_task = reference.kind is EntityKind.TASK
            code = "TaskReferenceNotFound" if is_task else "WorkflowReferenceNotFound"
            hint = " It must come with the request." if reference.kind is EntityKind.WORKFLOW else ""
            self._add(code, at, f"Referenced {reference.kind.words} [{reference}] not found.{hint}")

    def _check_array(self, node: Any) -> None:
        inner = node.array_node.node
        if inner.WhichOneof("target") not in ("task_node", "workflow_node"):
            self._add("ValueRequired", node, "An array node runs a task, a workflow or a launch plan.")
        else:
            self._check_reference(inner, at=node)

    def _check_gate(self, node: Any) -> None:
        condition = node.gate_node.WhichOneof("condition")
        signal = node.gate_node.signal
        if condition is None:
            self._add("NoConditionFound", node, "The gate has no condition.")
        elif condition == "signal" and signal.type.WhichOneof("type") is None:
            self._add("ValueRequired", node, "Value required [GateNode.Signal.Type].")
        elif condition == "signal" and not signal.output_variable_name:
            self._add("ValueRequired", node, "Value required [GateNode.Signal.OutputVariableName].")

    def _add(self, code: str, node: Any, text: str) -> None:
        self.mistakes.add(code, f"{self.within}{node.id}", text)
