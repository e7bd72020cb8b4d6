"""The known cases of another scheduler's matching, as our graphs and demands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand
from switchyard.match.nextgen_jobspec import demand_of_nextgen
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph

DATA = json.loads((Path(__file__).parents[1] / "data/rainbow_satisfy.json").read_text(encoding="utf-8"))


def forms_of(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our compact form of a case's graph and subsystems as the JGF it stands for."""
    vertices = DATA["graphs"][case["graph"]]
    nodes = {
        name: {
            "metadata": {"type": row[0], "size": row[2] if len(row) > 2 else 1, "unit": row[3] if len(row) > 3 else ""}
        }
        for name, row in vertices.items()
    }
    edges = [
        {"source": row[1], "target": name, "relation": "contains"}
        for name, row in vertices.items()
        if row[1] is not None
    ]
    subsystems = {
        name: {
            "graph": {
                "nodes": {vertex: {"metadata": fields} for vertex, fields in found["vertices"].items()},
                "edges": [{"source": source, "target": target} for source, target in found["edges"]],
            }
        }
        for name, key in case.get("subsystems", {}).items()
        for found in [DATA["subsystems"][key]]
    }
    return {"graph": {"nodes": nodes, "edges": edges}}, subsystems


def graph_of(case: dict[str, Any]) -> Graph:
    return compile_graph(*forms_of(case), where=case["graph"])


def demand_of_case(case: dict[str, Any]) -> Demand:
    is_dictionary = isinstance(case["jobspec"]["resources"], dict)
    return (demand_of_nextgen if is_dictionary else demand_of_jobspec)(case["jobspec"])
