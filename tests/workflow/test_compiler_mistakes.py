"""What the compiler refuses: each of Flyte's codes, what Flyte lets pass, and all mistakes at once."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import literals_pb2, types_pb2, workflow_pb2
from google.protobuf import json_format

from switchyard.errors import BadRequest
from switchyard.features.flyte.workflow.compile.compiler import count_nodes
from switchyard.features.flyte.workflow.values.casting import Caster
from tests.workflow.builders import (
    INT,
    TEXT,
    a_template,
    bindings,
    branch_node,
    compiled,
    enum,
    gate_node,
    list_of,
    plan_node,
    sub_node,
    tagged,
    task_node,
    union,
)

ONE = task_node("n0", "one")
SIGNAL = workflow_pb2.GateNode(signal=workflow_pb2.SignalCondition(signal_id="s", type=INT, output_variable_name="o0"))
APPROVE = workflow_pb2.GateNode(approve=workflow_pb2.ApproveCondition(signal_id="s"))
SLEEP = workflow_pb2.GateNode(sleep=workflow_pb2.SleepCondition())


def at_path(text: str, *steps: str) -> Any:
    node, _, var = text.partition(".")
    path = [types_pb2.PromiseAttribute(string_value=step) for step in steps]
    return literals_pb2.BindingData(promise=types_pb2.OutputReference(node_id=node, var=var, attr_path=path))


def without_condition() -> Any:
    node = branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "one"), x="@n0.o0")
    node.branch_node.if_else.case.ClearField("condition")
    return node


def repeated() -> Any:
    node = task_node("n0", a=1, b=2)
    node.inputs.extend(bindings({"a": 3}))
    return node


def with_failure_node(node: Any) -> Any:
    template = a_template(ONE)
    template.failure_node.CopyFrom(node)
    return template


INNER = a_template(task_node("n0", "one"), name="inner", gives={"o0": (INT, "@n0.o0")})
LOOP = a_template(sub_node("n0", "loop"), name="loop")
PING = a_template(sub_node("n0", "pong"), name="ping")
PONG = a_template(sub_node("n0", "ping"), name="pong")

# A name, the workflow, and its mistakes: code and node.
ROWS: list[tuple[str, Any, list[tuple[str, str]]]] = [
    ("no nodes", a_template(), [("NoNodesFound", "start-node")]),
    ("an unbound input", a_template(task_node("n0", a=1)), [("ParameterNotBound", "n0")]),
    ("an unbound output", a_template(ONE, gives={"o0": (INT, "@n0.o0")}), []),
    (
        "a binding without a value",
        a_template(task_node("n0", a=literals_pb2.BindingData(), b=1)),
        [("ParameterNotBound", "n0")],
    ),
    ("an input bound twice", a_template(repeated()), [("ParameterBoundMoreThanOnce", "n0")]),
    ("an unknown input", a_template(task_node("n0", "one", c=1)), [("VariableNameNotFound", "n0")]),
    ("an unknown output", a_template(ONE, task_node("n1", a="@n0.o7", b=1)), [("VariableNameNotFound", "n1")]),
    ("an unknown input of the workflow", a_template(task_node("n0", a="@.x", b=1)), [("VariableNameNotFound", "n0")]),
    ("a promise into nothing", a_template(task_node("n0", a="@n9.o0", b=1)), [("NodeReferenceNotFound", "n0")]),
    ("a promise of the end", a_template(task_node("n0", a="@end-node.o0", b=1)), [("NodeReferenceNotFound", "n0")]),
    ("an unknown task", a_template(task_node("n0", "nobody")), [("TaskReferenceNotFound", "n0")]),
    ("an unknown launch plan", a_template(plan_node("n0", "nobody")), [("WorkflowReferenceNotFound", "n0")]),
    ("an unknown sub-workflow", a_template(sub_node("n0", "nobody")), [("WorkflowReferenceNotFound", "n0")]),
    ("a text for a number", a_template(task_node("n0", a="x", b=1)), [("MismatchingTypes", "n0")]),
    ("a number for a float", a_template(ONE, gives={"o0": (TEXT, "@n0.o0")}), [("MismatchingTypes", "end-node")]),
    ("a promise of another type", a_template(ONE, task_node("n1", "say", text="@n0.o0")), [("MismatchingTypes", "n1")]),
    ("a list for a number", a_template(task_node("n0", a=[1], b=1)), [("MismatchingTypes", "n0")]),
    ("a list of other elements", a_template(task_node("n0", "total", many=["x", 1])), [("MismatchingTypes", "n0")]),
    ("no member of an enum", a_template(task_node("n0", "paint", colour="green")), [("IllegalEnumValue", "n0")]),
    (
        "a list for no variant",
        a_template(task_node("n0", "either", x=[1.5])),
        [("IncompatibleBindingUnionValue", "n0")],
    ),
    ("a list for two variants", a_template(task_node("n0", "either", x=[])), [("AmbiguousBindingUnionValue", "n0")]),
    (
        "a cycle without a way in",
        a_template(task_node("n0", a="@n1.o0", b=1), task_node("n1", a="@n0.o0", b=1)),
        [("UnreachableNodes", "start-node")],
    ),
    (
        "a cycle with a way in",
        a_template(task_node("n0", a="@n1.o0", b="@.x"), task_node("n1", a="@n0.o0", b=1), x=INT),
        [("CycleDetected", "start-node")],
    ),
    (
        "a node that waits for itself",
        a_template(task_node("n0", a="@n0.o0", b="@.x"), x=INT),
        [("CycleDetected", "start-node")],
    ),
    ("a node without a target", a_template(workflow_pb2.Node(id="n0")), [("ValueRequired", "n0")]),
    ("a task node without a task", a_template(workflow_pb2.Node(id="n0", task_node={})), [("ValueRequired", "n0")]),
    (
        "a workflow node without a workflow",
        a_template(workflow_pb2.Node(id="n0", workflow_node={})),
        [("ValueRequired", "n0")],
    ),
    ("a node without an id", a_template(ONE, task_node("", "one")), [("ValueRequired", "")]),
    ("two nodes with one id", a_template(ONE, task_node("n0", "one")), [("DuplicateNodeId", "n0")]),
    (
        "a node called as the start",
        a_template(ONE, task_node("start-node", "one")),
        [("DuplicateNodeId", "start-node")],
    ),
    (
        "an unknown upstream node",
        a_template(task_node("n0", "one", upstream=("n9",))),
        [("NodeReferenceNotFound", "n0")],
    ),
    (
        "an arm with the id of a node",
        a_template(
            ONE,
            task_node("n1-a", "one"),
            branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "one"), x="@n0.o0"),
        ),
        [("DuplicateNodeId", "n1-a")],
    ),
    (
        "a branch without a default",
        a_template(ONE, branch_node("n1", task_node("a", "one"), x="@n0.o0")),
        [("BranchNodeHasNoDefault", "n1")],
    ),
    (
        "a branch without cases",
        a_template(workflow_pb2.Node(id="n0", branch_node={})),
        [
            ("ValueRequired", "n0"),
            ("BranchNodeHasNoCondition", "n0"),
            ("BranchNodeHasNoDefault", "n0"),
        ],
    ),
    ("a case without a condition", a_template(ONE, without_condition()), [("BranchNodeHasNoCondition", "n1")]),
    (
        "a condition on something else",
        a_template(ONE, branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "one"), y="@n0.o0")),
        [("VariableNameNotFound", "n1")],
    ),
    (
        "a condition that compares a number with a text",
        a_template(
            ONE, branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "one"), x="@n0.o0", value="s")
        ),
        [("MismatchingTypes", "n1")],
    ),
    (
        "arms of different types",
        a_template(
            ONE, branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "say", text="t"), x="@n0.o0")
        ),
        [("MismatchingTypes", "n1-b")],
    ),
    (
        "an unknown task in an arm",
        a_template(ONE, branch_node("n1", task_node("a", "nobody"), otherwise=task_node("b", "one"), x="@n0.o0")),
        [("TaskReferenceNotFound", "n1-a")],
    ),
    (
        "an arm that waits for its own branch",
        a_template(
            ONE,
            branch_node("n1", task_node("a", a="@n2.o0", b=1), otherwise=task_node("b", "one"), x="@n0.o0"),
            task_node("n2", a="@n1.o0", b=1),
        ),
        [("CycleDetected", "start-node")],
    ),
    ("a gate without a condition", a_template(gate_node("n0", workflow_pb2.GateNode())), [("NoConditionFound", "n0")]),
    (
        "a signal without a type",
        a_template(gate_node("n0", workflow_pb2.GateNode(signal={"signal_id": "s", "output_variable_name": "o0"}))),
        [("ValueRequired", "n0")],
    ),
    (
        "a signal without an output",
        a_template(gate_node("n0", workflow_pb2.GateNode(signal={"signal_id": "s", "type": INT}))),
        [("ValueRequired", "n0")],
    ),
    ("a sleep with an input", a_template(gate_node("n0", SLEEP, x=1)), [("VariableNameNotFound", "n0")]),
    (
        "an approved value of another type",
        a_template(ONE, gate_node("n1", APPROVE, x="@n0.o0"), task_node("n2", "say", text="@n1.x")),
        [("MismatchingTypes", "n2")],
    ),
    (
        "a signal of another type",
        a_template(gate_node("n0", SIGNAL), task_node("n1", "say", text="@n0.o0")),
        [("MismatchingTypes", "n1")],
    ),
    (
        "gates that approve each other",
        a_template(gate_node("n0", APPROVE, x="@n1.x"), gate_node("n1", APPROVE, x="@n0.x")),
        [("UnreachableNodes", "start-node")],
    ),
    (
        "an array of an unknown task",
        a_template(workflow_pb2.Node(id="n0", array_node={"node": task_node("x", "nobody")})),
        [("TaskReferenceNotFound", "n0")],
    ),
    (
        "an array of a gate",
        a_template(workflow_pb2.Node(id="n0", array_node={"node": gate_node("x", SLEEP)})),
        [("ValueRequired", "n0")],
    ),
    ("an unknown task for failures", with_failure_node(task_node("fn0", "nobody")), [("TaskReferenceNotFound", "fn0")]),
    ("a failure node that is not bound", with_failure_node(task_node("fn0", a=1)), [("ParameterNotBound", "fn0")]),
    ("a failure node with a taken id", with_failure_node(task_node("n0", "one")), [("DuplicateNodeId", "n0")]),
    (
        "a launch plan without its required input",
        a_template(plan_node("n0", "plan", b=1)),
        [("ParameterNotBound", "n0")],
    ),
    ("an input without a type", a_template(ONE, x=types_pb2.LiteralType()), [("ValueRequired", "start-node")]),
]


@pytest.mark.parametrize(("template", "wanted"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_mistake_has_its_code_and_its_node(template: Any, wanted: list[tuple[str, str]]) -> None:
    before = template.SerializeToString(deterministic=True)
    closure, mistakes = compiled(template)
    assert [(mistake.code, mistake.where) for mistake in mistakes.first] == wanted, mistakes.as_text()
    assert (closure is None) == bool(wanted)
    assert template.SerializeToString(deterministic=True) == before


def test_all_codes_that_flyte_is_known_to_use_have_a_row() -> None:
    codes = {code for _, _, wanted in ROWS for code, _ in wanted}
    assert codes >= {
        *("ParameterNotBound", "ParameterBoundMoreThanOnce", "VariableNameNotFound", "NodeReferenceNotFound"),
        *("TaskReferenceNotFound", "WorkflowReferenceNotFound", "MismatchingTypes", "UnreachableNodes"),
        *("NoNodesFound", "BranchNodeHasNoDefault"),
    }


def test_an_output_that_is_not_bound_is_a_mistake_of_the_end() -> None:
    template = a_template(ONE, gives={"o0": (INT, "@n0.o0"), "o1": (INT, "@n0.o0")})
    del template.outputs[1:]
    _, mistakes = compiled(template)
    assert [(mistake.code, mistake.where) for mistake in mistakes.first] == [("ParameterNotBound", "end-node")]


@pytest.mark.parametrize(
    ("template", "subs", "wanted"),
    [
        (a_template(sub_node("n0", "loop")), (LOOP,), ("CycleDetected", "start-node")),
        (a_template(sub_node("n0", "ping")), (PING, PONG), ("CycleDetected", "start-node")),
        (a_template(sub_node("n0", "inner")), (INNER, INNER), ("DuplicateIDFound", "start-node")),
        (a_template(sub_node("n0", "wf")), (a_template(ONE),), ("DuplicateIDFound", "start-node")),
        (
            a_template(sub_node("n0", "bad")),
            (a_template(task_node("n0", a=1), name="bad"),),
            ("ParameterNotBound", "bad/n0"),
        ),
    ],
    ids=["in itself", "in each other", "twice", "the workflow itself", "with a mistake"],
)
def test_mistakes_of_sub_workflows(template: Any, subs: tuple[Any, ...], wanted: tuple[str, str]) -> None:
    closure, mistakes = compiled(template, *subs)
    assert closure is None
    assert wanted in [(mistake.code, mistake.where) for mistake in mistakes.first]


def test_all_mistakes_come_at_once() -> None:
    nodes = [
        task_node("a", a=1),
        task_node("b", "nobody"),
        task_node("c", a="x", b="@z.o0"),
        task_node("d", "one", e=1),
    ]
    _, mistakes = compiled(a_template(*nodes, *nodes, sub_node("f", "nobody"), gives={"o0": (TEXT, "@d.o0")}))
    text = mistakes.as_text()
    assert text.startswith("Collected Errors: 11\n")
    assert sorted(mistake.code for mistake in mistakes.first) == [
        *["DuplicateNodeId"] * 4,
        *["MismatchingTypes"] * 2,
        *["NodeReferenceNotFound", "ParameterNotBound", "TaskReferenceNotFound", "VariableNameNotFound"],
        "WorkflowReferenceNotFound",
    ]


def test_many_mistakes_are_counted_and_the_first_are_shown() -> None:
    _, mistakes = compiled(a_template(*(task_node(f"n{number}", a=1) for number in range(500))))
    assert mistakes.count == 500
    assert mistakes.as_text().endswith("and 450 more")


@pytest.mark.parametrize("is_in_subs", [False, True], ids=["one workflow", "two sub-workflows"])
def test_a_workflow_with_too_many_edges_is_refused(is_in_subs: bool) -> None:
    def dense(name: str, count: int) -> Any:
        """Each node waits for all nodes before it."""
        ids = [f"n{number}" for number in range(count)]
        return a_template(*(task_node(one, "one", upstream=tuple(ids[:at])) for at, one in enumerate(ids)), name=name)

    if is_in_subs:
        subs = dense("one-sub", 320), dense("other-sub", 320)
        closure, mistakes = compiled(a_template(sub_node("a", "one-sub"), sub_node("b", "other-sub")), *subs)
    else:
        closure, mistakes = compiled(dense("wf", 450))
    assert closure is None
    assert "wait for more than 100000 others in all" in mistakes.as_text()


def test_an_array_over_a_plain_task_takes_lists() -> None:
    array = workflow_pb2.ArrayNode(node=task_node("x", "add"), bound_inputs=["b"])
    array.is_original_sub_node_interface.value = True
    node = workflow_pb2.Node(id="n0", array_node=array, inputs=bindings({"a": [1, 2], "b": 3}))
    closure, mistakes = compiled(a_template(node, gives={"o0": (list_of(INT), "@n0.o0")}))
    assert closure is not None, mistakes.as_text()


def test_inputs_that_may_be_left_out() -> None:
    """One that may be None, and one of a launch plan with a default."""
    closure, mistakes = compiled(a_template(task_node("n0", "maybe"), plan_node("n1", "plan", a=1)))
    assert closure is not None, mistakes.as_text()


def test_a_field_of_a_data_class_has_its_own_type() -> None:
    point = types_pb2.LiteralType(simple=types_pb2.STRUCT)
    point.structure.dataclass_type["x"].CopyFrom(INT)
    fine = a_template(task_node("n0", a=at_path(".p", "x"), b=1), p=point)
    assert compiled(fine)[0] is not None
    _, mistakes = compiled(a_template(task_node("n0", a=at_path(".p", "z"), b=1), p=point))
    assert [mistake.code for mistake in mistakes.first] == ["FieldNotFound"]
    _, mistakes = compiled(a_template(task_node("n0", "say", text=at_path(".p", "x")), p=point))
    assert [mistake.code for mistake in mistakes.first] == ["MismatchingTypes"]


def test_a_chain_of_approvals_hands_the_type_on() -> None:
    gates = [
        gate_node(f"n{number}", APPROVE, x=f"@n{number - 1}.{'x' if number > 1 else 'o0'}") for number in range(1, 40)
    ]
    closure, mistakes = compiled(a_template(ONE, *gates, gives={"o0": (INT, "@n39.x")}))
    assert closure is not None, mistakes.as_text()


def test_a_chain_of_thousands_of_nodes_compiles_without_recursion() -> None:
    nodes = [ONE, *(task_node(f"n{number}", a=f"@n{number - 1}.o0", b=1) for number in range(1, 3000))]
    closure, mistakes = compiled(a_template(*nodes, gives={"o0": (INT, "@n2999.o0")}))
    assert closure is not None, mistakes.as_text()
    assert count_nodes(a_template(*nodes), ()) == 3000
    assert len(closure.primary.template.nodes) == 3002
    gates = [gate_node(f"n{number}", APPROVE, x=f"@n{number - 1}.x") for number in range(1, 3000)]
    assert compiled(a_template(gate_node("n0", APPROVE, x=1), *gates))[1].count == 0


def test_nodes_are_counted_in_branches_arrays_and_sub_workflows() -> None:
    branch = branch_node("n1", task_node("a", "one"), otherwise=task_node("b", "one"), x=1)
    array = workflow_pb2.Node(id="n2", array_node={"node": task_node("x", "one")})
    assert count_nodes(with_failure_node(task_node("fn0", "one")), ()) == 2
    assert count_nodes(a_template(ONE, branch, array), (INNER,)) == 7


def test_unions_made_to_take_for_ever_are_refused() -> None:
    """The same variants in another order: each is compared with half of the others."""
    first = union(*(enum(f"a{number}") for number in range(2000)))
    second = union(*(enum(f"a{number}") for number in reversed(range(2000))))
    with pytest.raises(BadRequest, match="too many steps"):
        Caster(100_000).can_cast(first, second)


def test_a_type_without_end_in_a_message_is_short() -> None:
    kind = union(*(tagged(INT, f"t{number}") for number in range(2000)))
    _, mistakes = compiled(a_template(ONE, task_node("n1", "say", text="@.x"), x=kind))
    assert len(mistakes.as_text()) < 500


def test_the_text_of_a_mistake_is_one_line() -> None:
    _, mistakes = compiled(a_template(task_node("n\n0\x1b", "nobody")))
    assert "\x1b" not in mistakes.as_text()
    assert len(mistakes.as_text().splitlines()) == 2


def test_sorted_upstream_nodes_of_arms_are_edges_of_theirs() -> None:
    arm = task_node("a", "one", upstream=("n2", "n0"))
    nodes = [ONE, branch_node("n1", arm, otherwise=task_node("b", "one"), x="@n0.o0"), task_node("n2", "one")]
    closure, mistakes = compiled(a_template(*nodes))
    assert closure is not None, mistakes.as_text()
    edges = json_format.MessageToDict(closure.primary.connections)
    assert edges["upstream"]["n1-a"]["ids"] == ["n0", "n2"]
    assert edges["downstream"]["n2"]["ids"] == ["end-node"], "a branch may not take the arm that waits"
