"""Compiles a workflow with its sub-workflows, as Flyte's server does: checks everything, adds start, end and edges.

Two things that Flyte lets pass are mistakes here: an unknown id among the upstream nodes, and two nodes with one id. So
is a branch that waits for itself, and sub-workflows that contain each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from flyteidl.core import compiler_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.connections import END, START, Connections, EdgeRoom, TooManyEdges
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id, to_message
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.node_signatures import NodeSignatures
from switchyard.features.flyte.workflow.compile.references import all_nodes, branch_arms, reference_of, references
from switchyard.features.flyte.workflow.compile.signature import Signature, Types, of_interface
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
        self._signatures = NodeSignatures(self._nodes, known, self._own.inputs, START, caster, mistakes, within)
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
