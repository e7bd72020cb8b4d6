"""Compiles a workflow with its sub-workflows, as Flyte's server does: checks everything, adds start, end and edges.

Two things that Flyte lets pass are mistakes here: an unknown id among the upstream nodes, and two nodes with one id. So
is a branch that waits for itself, and sub-workflows that contain each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from flyteidl.core import compiler_pb2

from switchyard.features.flyte.workflow.compile.connections import START, EdgeRoom
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id, to_message
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.references import all_nodes, reference_of, references
from switchyard.features.flyte.workflow.compile.signature import Signature, of_interface
from switchyard.features.flyte.workflow.compile.template_compiler import TemplateCompiler
from switchyard.features.flyte.workflow.values.casting import Caster


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
