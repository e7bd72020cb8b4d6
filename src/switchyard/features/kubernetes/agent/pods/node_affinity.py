"""A job's constraint on nodes as the node affinity of its pod. Pure.

Properties are labels of nodes (nodes.py says under which names), hosts are the label `kubernetes.io/hostname`. The
scheduler takes a list of terms of which one must hold, each a list of expressions which must all hold. So a constraint
is brought into that form; one that needs too many terms is refused. Ranks have no meaning for Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_names import is_label_key, is_label_value
from switchyard.model.job.image_compatibility import architecture_of
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.constraint import Constraint, read_constraint

TERMS_MAX = 100
HOST_LABEL, ARCH_LABEL, OS_LABEL = "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os"
# Architectures as Go names them, which Kubernetes does, too.
GO_ARCHITECTURES = ("amd64", "arm64", "386", "arm", "ppc64le", "s390x", "riscv64", "loong64")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LabelExpression:
    """A condition on one label of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def manifest(self) -> Manifest:
        row: Manifest = {"key": self.key, "operator": self.operator}
        return {**row, "values": list(self.values)} if self.values else row


Term = tuple[LabelExpression, ...]
OPPOSITES = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


def node_affinity(spec: JobSpec, devices: Sequence[Mapping[str, tuple[str, ...]]] = ()) -> Manifest:
    """The affinity of a job's pods; empty: every node will do. Raises PolicyRefused if the scheduler cannot be told.

    `devices`: for each of them labels, of which a node must have one with one of its values.
    """
    attributes = (spec.demand or {}).get("attributes") or {}
    words = (attributes.get("system") or {}).get("constraints")
    constraint = read_constraint(words, where="attributes.system.constraints")
    if constraint is None and not devices:
        return {}
    parts = [] if constraint is None else [_terms(constraint, is_negated=False)]
    for labels in devices:
        parts.append([(LabelExpression(label, "In", values),) for label, values in labels.items()])
    terms = _all_of(parts, constraint)
    if not terms:
        raise PolicyRefused(f"No node can be what its constraint says ({constraint}).")
    if any(not term for term in terms):
        return {}
    rows = [{"matchExpressions": [part.manifest() for part in term]} for term in terms]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": rows}}}


def merge_affinity(pod: Manifest, further: Manifest) -> None:
    """Add fields to a pod's spec. Its affinity keeps what it has."""
    affinity = {**pod.get("affinity", {}), **further.get("affinity", {})}
    pod.update(further)
    if affinity:
        pod["affinity"] = affinity


def _terms(constraint: Constraint, *, is_negated: bool) -> list[Term]:
    """The constraint, or its opposite, as terms of which one must hold. One empty term: it always holds."""
    if constraint.operator == "ranks":
        raise PolicyRefused("Its constraint names ranks, and nodes of Kubernetes have none: name properties or hosts.")
    if constraint.operator == "not":
        if not constraint.parts:
            return [()] if is_negated else []
        return _terms(constraint.parts[0], is_negated=not is_negated)
    if constraint.operator in ("and", "or"):
        parts = [_terms(part, is_negated=is_negated) for part in constraint.parts]
        is_and = (constraint.operator == "and") is not is_negated
        if not parts:  # an empty one allows every node
            return [] if is_negated else [()]
        return _all_of(parts, constraint) if is_and else _bounded([term for part in parts for term in part], constraint)
    expressions = _expressions(constraint)
    if not is_negated:
        return [tuple(expressions)]
    return [(LabelExpression(part.key, OPPOSITES[part.operator], part.values),) for part in expressions]


def _all_of(parts: Sequence[Sequence[Term]], constraint: Constraint | None) -> list[Term]:
    terms: list[Term] = [()]
    for part in parts:
        terms = _bounded([(*left, *right) for left, right in product(terms, part)], constraint)
    return terms


def _bounded(terms: list[Term], constraint: Constraint | None) -> list[Term]:
    if len(terms) > TERMS_MAX:
        raise PolicyRefused(f"Its constraint ({constraint}) is too complicated for Kubernetes' scheduler.")
    return terms


def _expressions(constraint: Constraint) -> list[LabelExpression]:
    if constraint.operator == "hostlist":
        return [LabelExpression(HOST_LABEL, "In", tuple(sorted(constraint.names)))]
    return [_property(name) for name in sorted(constraint.names)]


def _property(name: str) -> LabelExpression:
    if name.startswith("^"):
        part = _property(name[1:])
        return LabelExpression(part.key, OPPOSITES[part.operator], part.values)
    key, equals, value = name.partition("=")
    if key in ("arch", "os"):
        label = ARCH_LABEL if key == "arch" else OS_LABEL
        if not equals:
            return LabelExpression(label, "Exists")
        names = (
            [go for go in GO_ARCHITECTURES if architecture_of(go) == architecture_of(value)] if key == "arch" else []
        )
        return LabelExpression(label, "In", (names[0] if names else value,))
    if not is_label_key(key) or not is_label_value(value):
        raise PolicyRefused(f"The property {name[:80]!r} cannot be a label of a node, so no node here has it.")
    return LabelExpression(key, "In", (value,)) if equals else LabelExpression(key, "Exists")
