"""Jobspecs and graphs for tests of matching, in few words."""

from __future__ import annotations

from typing import Any

from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph

Row = tuple[str, str | None, dict[str, Any]]  # type, parent, further metadata


def need(kind: str, count: int = 1, *holds: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "count": count, **({"with": list(holds)} if holds else {})}


def slot(count: int, *holds: dict[str, Any]) -> dict[str, Any]:
    return {**need("slot", count, *holds), "label": "s"}


def demand(*needs: dict[str, Any], constraints: Any = None) -> Demand:
    return demand_of_jobspec({"resources": list(needs), "attributes": {"system": {"constraints": constraints}}})


def tree_of(vertices: dict[str, Row]) -> Graph:
    """A JGF by id: type, parent, further metadata."""
    return compile_graph(
        {
            "graph": {
                "nodes": [{"id": name, "metadata": {"type": row[0], **row[2]}} for name, row in vertices.items()],
                "edges": [{"source": row[1], "target": name} for name, row in vertices.items() if row[1]],
            }
        },
        where="graph",
    )
