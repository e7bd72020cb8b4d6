"""Compiles a workflow with its sub-workflows, as Flyte's server does: checks everything, adds start, end and edges.

Two things that Flyte lets pass are mistakes here: an unknown id among the upstream nodes, and two nodes with one id. So
is a branch that waits for itself, and sub-workflows that contain each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from flyteidl.core import compiler_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.connections import END, START, Connections, EdgeRoom, TooManyEdges
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id, to_message
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.references import all_nodes, branch_arms, reference_of, references
from switchyard.features.flyte.workflow.compile.signature import Signature, Types, of_array, of_interface
from switchyard.features.flyte.workflow.values.bindings import BindingChecker, show_type
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.limits import EDGES_MAX
from switchyard.features.flyte.workflow.values.literals import type_of_primitive, type_of_scalar


@dataclass(frozen=True)
class WorkflowSource:
    """The uncompiled workflow. `known`: the signatures of the tasks and launch plans that it may refer to."""

    template: Any
    sub_workflows: tuple[Any, ...]
    known: Mapping[EntityId, Signature]


def count_nodes(template: Any, sub_workflows: tuple[Any, ...]) -> int:
    return sum(1 for one in (template, *sub_workflows) for _ in all_nodes(one))


def compile_workflow(source: WorkflowSource) -> tuple[Any | None, Mistakes]:
    """Return the compiled closure, or None and all mistakes. Tasks in it have only their ids.

    The templates are not changed.
    """
    mistakes, caster, edges = Mistakes(), Caster(), EdgeRoom()
    subs = _by_id(source.sub_workflows, mistakes)
    own_id = read_id(source.template.id, EntityKind.WORKFLOW)
    known = {**source.known, **{sub_id: of_interface(sub.interface) for sub_id, sub in subs.items()}}
    _check_nesting(own_id, source.template, subs, mistakes)
    closure = compiler_pb2.CompiledWorkflowClosure()
    for sub_id, sub in {own_id: source.template, **subs}.items():
        template = type(sub)()
        template.CopyFrom(sub)
        within = "" if sub is source.template else f"{sub_id.name}/"
        compiler = TemplateCompiler(template, known, caster=caster, mistakes=mistakes, edges=edges, within=within)
        compiled = compiler.compile()
        if compiled is not None:
            (closure.primary if sub is source.template else closure.sub_workflows.add()).CopyFrom(compiled)
    if mistakes:
        return None, mistakes
    tasks = sorted(one for one in references([source.template, *subs.values()]) if one.kind is EntityKind.TASK)
    for task in tasks:
        closure.tasks.add().template.id.CopyFrom(to_message(task))
    return closure, mistakes


def _by_id(sub_workflows: tuple[Any, ...], mistakes: Mistakes) -> dict[EntityId, Any]:
    by_id: dict[EntityId, Any] = {}
    for sub in sub_workflows:
        sub_id = read_id(sub.id, EntityKind.WORKFLOW)
        if sub_id in by_id:
            mistakes.add("DuplicateIDFound", START, f"The sub-workflow [{sub_id}] comes twice.")
        by_id[sub_id] = sub
    return by_id


def _check_nesting(own_id: EntityId, template: Any, subs: Mapping[EntityId, Any], mistakes: Mistakes) -> None:
    """Report sub-workflows that contain themselves: such a workflow would never end."""
    if own_id in subs:
        mistakes.add("DuplicateIDFound", START, f"The workflow [{own_id}] is its own sub-workflow.")
        return
    uses = {one_id: _used(one, subs) for one_id, one in {own_id: template, **subs}.items()}
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as exc:
        names = " > ".join(one.name for one in exc.args[1])
        mistakes.add("CycleDetected", START, f"These workflows contain each other: {names}.")


def _used(template: Any, subs: Mapping[EntityId, Any]) -> set[EntityId]:
    return {one for node in all_nodes(template) if (one := reference_of(node)) is not None and one in subs}


class TemplateCompiler:
    """Checks one template and builds its compiled form. `known`: the signatures of everything that nodes may run.

    The template is changed: promises name the start node, nodes in branches get the names of their branches.
    """

    def __init__(
        self,
        template: Any,
        known: Mapping[EntityId, Signature],
        *,
        caster: Caster,
        mistakes: Mistakes,
        edges: EdgeRoom,
        within: str = "",
    ) -> None:
        self._template = template
        self._own = of_interface(template.interface)
        self._caster = caster
        self._mistakes = mistakes
        self._within = within  # before the ids of nodes in mistakes
        self._nodes: dict[str, Any] = {}  # at the top
        self._ids: set[str] = {START, END}  # of all nodes
        self._edges = Connections(edges)
        self._signatures = NodeSignatures(
            nodes=self._nodes,
            entities=known,
            start=self._own.inputs,
            start_id=START,
            caster=caster,
            mistakes=mistakes,
            within=within,
        )
        self._bindings = BindingChecker(self._signatures.outputs_of, caster, mistakes)

    def compile(self) -> Any | None:
        """Return the compiled workflow. It counts only if there are no mistakes."""
        try:
            return self._compile()
        except TooManyEdges:
            text = (
                f"Its nodes wait for more than {EDGES_MAX} others in all. Put nodes between them that gather outputs."
            )
            self._report("TooManyEdges", START, text)
            return None

    def _compile(self) -> Any | None:
        template = self._template
        if not template.nodes:
            self._report("NoNodesFound", START, f"Can't find any nodes in workflow [{template.id.name}].")
            return None
        self._check_interface(template.interface)
        for node in template.nodes:
            if self._take_id(node):
                self._nodes[node.id] = node
        failure = template.failure_node if template.HasField("failure_node") else None
        has_failure = failure is not None and self._take_id(failure)
        for node in self._nodes.values():
            self._check_node(node)
        if has_failure:
            self._check_failure_node(failure)
        outputs = Signature(inputs=self._own.outputs, required=frozenset(self._own.outputs))
        self._edges.add(END, self._bindings.check(self._where(END), template.outputs, outputs).upstream)
        self._edges.close_ends(self._nodes)
        self._edges.check(self._nodes, self._mistakes, self._where(START))
        return self._result()

    def _result(self) -> Any:
        ends = [workflow_pb2.Node(id=START), workflow_pb2.Node(id=END, inputs=self._template.outputs)]
        nodes = [*ends, *self._template.nodes]
        compiled = compiler_pb2.CompiledWorkflow(connections=self._edges.as_message())
        compiled.template.CopyFrom(self._template)
        compiled.template.interface.inputs.SetInParent()
        compiled.template.interface.outputs.SetInParent()
        del compiled.template.nodes[:]
        compiled.template.nodes.extend(nodes)
        return compiled

    def _check_interface(self, interface: Any) -> None:
        for variables in (interface.inputs.variables, interface.outputs.variables):
            for name, variable in variables.items():
                if variable.type.WhichOneof("type") is None:
                    self._report("ValueRequired", START, f"Variable [{name}] has no type.")

    def _take_id(self, node: Any) -> bool:
        """Take the id of a node, and name its arms after it. False: it cannot be used. Flyte drops such nodes."""
        if not node.id:
            self._report("ValueRequired", node.id, "A node has no id.")
            return False
        if node.id in self._ids:
            self._report("DuplicateNodeId", node.id, f"There is more than one node with the id [{node.id}].")
            return False
        self._ids.add(node.id)
        if node.WhichOneof("target") == "branch_node":
            for arm in branch_arms(node.branch_node):
                arm.id = f"{node.id}-{arm.id}"
                self._take_id(arm)
        return True

    def _check_node(self, node: Any) -> None:
        """Check a node at the top, and add its edges in both directions."""
        self._signatures.check_target(node)
        bound = self._bindings.check(self._where(node.id), node.inputs, self._signatures.inputs(node))
        self._edges.add(node.id, bound.upstream | self._explicit_upstream(node))
        if node.WhichOneof("target") == "branch_node":
            self._check_branch(node, bound.types, top=node.id)

    def _check_failure_node(self, node: Any) -> None:
        self._signatures.check_target(node)
        bound = self._bindings.check(self._where(node.id), node.inputs, self._signatures.inputs(node))
        self._explicit_upstream(node)
        self._edges.add_upstream(node.id, bound.upstream)
        if node.WhichOneof("target") == "branch_node":
            self._check_branch(node, bound.types, top=node.id)

    def _explicit_upstream(self, node: Any) -> set[str]:
        """The nodes that a node names as upstream. Flyte takes any text for one, and then never starts the node."""
        given = sorted(set(node.upstream_node_ids))
        del node.upstream_node_ids[:]
        node.upstream_node_ids.extend(given)
        known = {other for other in given if other in self._nodes or other == START}
        for other in given:
            if other not in known:
                self._report("NodeReferenceNotFound", node.id, f"Referenced upstream node [{other}] not found.")
        return known

    def _check_branch(self, node: Any, types: Types, *, top: str) -> None:
        """Check conditions and arms. `top`: the branch that is no arm itself."""
        block = node.branch_node.if_else
        inputs = frozenset(binding.var for binding in node.inputs)
        where = self._where(node.id)
        conditions = ConditionChecker(where, inputs, types, caster=self._caster, mistakes=self._mistakes)
        for case in (block.case, *block.other):
            conditions.check(case)
        if any(not case.HasField("then_node") for case in block.other):
            self._report("ValueRequired", node.id, "A case of the branch has no node.")
        if block.WhichOneof("default") is None:
            self._report("BranchNodeHasNoDefault", node.id, "The branch has neither an else node nor an error.")
        self._signatures.outputs(node)  # reports arms that differ
        for arm in branch_arms(node.branch_node):
            self._check_arm(arm, top=top)

    def _check_arm(self, arm: Any, *, top: str) -> None:
        """An arm has edges to what it waits for, and none from there: it may never run."""
        self._signatures.check_target(arm)
        bound = self._bindings.check(self._where(arm.id), arm.inputs, self._signatures.inputs(arm))
        upstream = bound.upstream | self._explicit_upstream(arm)
        self._edges.add_upstream(arm.id, upstream)
        self._edges.waits_in_branch[top] |= upstream
        if arm.WhichOneof("target") == "branch_node":
            self._check_branch(arm, bound.types, top=top)

    def _report(self, code: str, node_id: str, text: str) -> None:
        self._mistakes.add(code, self._where(node_id), text)

    def _where(self, node_id: str) -> str:
        return f"{self._within}{node_id}"


class ConditionChecker:
    """Checks the conditions of one branch. `inputs`: its inputs by name; `types`: those whose type is known."""

    def __init__(self, node: str, inputs: frozenset[str], types: Types, *, caster: Caster, mistakes: Mistakes) -> None:
        self._node = node
        self._inputs = inputs
        self._types = types
        self._caster = caster
        self._mistakes = mistakes

    def check(self, case: Any) -> None:
        """Check the condition of one case."""
        if not case.HasField("condition"):
            self._mistakes.add("BranchNodeHasNoCondition", self._node, "One of the cases has no condition.")
            return
        self._expression(case.condition)

    def _expression(self, expression: Any) -> None:
        case = expression.WhichOneof("expr")
        if case == "comparison":
            left = self._operand(expression.comparison, "left_value")
            right = self._operand(expression.comparison, "right_value")
            if left is not None and right is not None and not self._comparable(left, right):
                text = f"A condition compares {show_type(left)} with {show_type(right)}."
                self._mistakes.add("MismatchingTypes", self._node, text)
        elif case == "conjunction":
            self._expression(expression.conjunction.left_expression)
            self._expression(expression.conjunction.right_expression)
        else:
            self._mistakes.add("ValueRequired", self._node, "A condition is empty.")

    def _comparable(self, left: Any, right: Any) -> bool:
        return self._caster.can_cast(left, right) or self._caster.can_cast(right, left)

    def _operand(self, comparison: Any, side: str) -> Any | None:
        """The type of one side. None: it is not known."""
        operand = getattr(comparison, side)
        case = operand.WhichOneof("val")
        if case == "primitive":
            return type_of_primitive(operand.primitive)
        if case == "scalar":
            return type_of_scalar(operand.scalar)
        if case == "var":
            if operand.var not in self._inputs:
                text = f"Variable [{operand.var}] not found on node [{self._node}]."
                self._mistakes.add("VariableNameNotFound", self._node, text)
            return self._types.get(operand.var)
        self._mistakes.add("ValueRequired", self._node, f"A comparison has no {side}.")
        return None


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
