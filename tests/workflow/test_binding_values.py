"""Values of bindings: parts of data classes and dictionaries, and the bounds of a node and of a step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flyteidl.core import literals_pb2, types_pb2

from switchyard.features.flyte.workflow.tasks.task_cache import CacheAnswer
from switchyard.features.flyte.workflow.values import binding_values
from switchyard.features.flyte.workflow.values.binding_values import BindingFailed, resolve_bindings
from tests.workflow.builders import TEXT, a_template, sub_node, task_node
from tests.workflow.engine_runs import Run, graph_of, literals


def struct_of(values: dict[str, Any], *, is_msgpack: bool) -> Any:
    made = literals()
    value = made.literals["s"].scalar
    if is_msgpack:
        value.binary.value, value.binary.tag = msgspec.msgpack.encode(values), "msgpack"
    else:
        value.generic.update(values)
    return made


def a_part(var: str, *path: str | int) -> Any:
    steps = [{"int_value": key} if isinstance(key, int) else {"string_value": key} for key in path]
    reference = types_pb2.OutputReference(var="s", attr_path=steps)
    return literals_pb2.Binding(var=var, binding=literals_pb2.BindingData(promise=reference))


@pytest.mark.parametrize("is_msgpack", [True, False], ids=["msgpack", "struct"])
def test_many_parts_of_one_value_decode_it_once(is_msgpack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty inputs that are parts of one large value: the others of its values are read once, or not at all."""
    values = struct_of({"big": [0.5] * 5000, "small": {"x": [1, 2.5, "y"]}}, is_msgpack=is_msgpack)
    sizes: list[int] = []
    for name in ("decode_msgpack", "decode_struct_value"):
        decode = getattr(binding_values, name)

        def decode_and_note(one: Any, decode: Any = decode) -> Any:
            value, size = decode(one)
            sizes.append(size)
            return value, size

        monkeypatch.setattr(binding_values, name, decode_and_note)
    bindings = [a_part(f"i{number}", "small", "x", number % 3) for number in range(30)]
    made = resolve_bindings(bindings, lambda _node, var: values.literals[var])
    assert made.literals["i2"].scalar.primitive.string_value == "y"
    assert sum(sizes) < 400_000, "5,000 numbers take 200,000 bytes"
    with pytest.raises(BindingFailed, match="has no 'z'"):
        resolve_bindings([a_part("i", "small", "z")], lambda _node, var: values.literals[var])


def test_parts_are_counted_while_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of a list is a message of 15 bytes, in whatever few bytes it came."""
    monkeypatch.setattr(binding_values, "VALUES_BYTES_MAX", 1000)
    appended: list[int] = []
    literal_of = binding_values._literal_of
    monkeypatch.setattr(
        binding_values, "_literal_of", lambda *args, **more: appended.append(1) or literal_of(*args, **more)
    )
    values = struct_of({"nulls": [None] * 50_000}, is_msgpack=True)
    with pytest.raises(BindingFailed, match="the values have over"):
        resolve_bindings([a_part("i", "nulls")], lambda _node, var: values.literals[var])
    assert len(appended) < 200


@pytest.mark.parametrize("is_msgpack", [True, False], ids=["msgpack", "struct"])
def test_a_node_takes_parts_of_so_much_only(is_msgpack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding_values, "DECODED_BYTES_MAX", 100_000)
    values = struct_of({"big": [0.5] * 5000}, is_msgpack=is_msgpack)
    with pytest.raises(BindingFailed, match="would take over"):
        resolve_bindings([a_part("i", "big")], lambda _node, var: values.literals[var])


def test_a_step_begins_nodes_until_their_values_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten nodes that each copy the whole input: a step makes some of them, and the next ones the rest."""
    monkeypatch.setattr(binding_values, "STEP_BYTES_MAX", 2500)
    nodes = [task_node(f"n{number}", "say", text="@.x") for number in range(10)]
    run = Run(graph_of(a_template(*nodes, x=TEXT)), literals(x="y" * 1000))
    assert [len(run.step()) for _ in range(4)] == [3, 3, 3, 1]
    assert not run.is_due


def test_nodes_around_a_workflow_count_for_the_bytes_of_the_execution() -> None:
    """No job is refused for them: they begin in the server. Each of these copies the whole input."""
    inner = a_template(task_node("i0", "one"), name="inner", x=TEXT)
    nodes = [sub_node(f"n{number}", "inner", x="@.x") for number in range(10)]
    run = Run(graph_of(a_template(*nodes, x=TEXT), inner), literals(x="y" * 1000), bytes_left=3500)
    assert run.step() == [], "the jobs of the first three are taken back"
    assert run.error.code == "ExecutionTooLarge"
    assert "workflows.execution_bytes" in run.error.message
    assert sum(node.inputs.ByteSize() for node in run.nodes.values() if node.inputs is not None) < 3500


def test_outputs_of_inner_workflows_count_for_the_bytes_of_the_execution() -> None:
    inner = a_template(task_node("i0", "one"), name="inner", gives={"o": (TEXT, "@.x")}, x=TEXT)
    graph = graph_of(a_template(sub_node("n0", "inner", x="@.x"), x=TEXT), inner)
    run = Run(graph, literals(x="y" * 1000), bytes_left=1500)
    (started,) = run.step()
    run.bytes_left = 500  # without the input
    run.end(started.partition("#")[0])
    assert (run.error.code, run.nodes["n0"].outputs) == ("ExecutionTooLarge", None)


def test_outputs_of_the_cache_count_for_the_bytes_of_the_execution() -> None:
    run = Run(graph_of(a_template(task_node("n0", "one"))), bytes_left=500)
    run.step(answers={("n0", 0): CacheAnswer("CACHE_HIT", b"key", outputs=literals(o0="y" * 1000))})
    assert (run.error.code, run.nodes["n0"].outputs) == ("ExecutionTooLarge", None)


def test_a_node_without_values_runs_when_the_bytes_are_used_up() -> None:
    run = Run(graph_of(a_template(task_node("n0", "one"))), bytes_left=-1)
    assert len(run.step()) == 1
