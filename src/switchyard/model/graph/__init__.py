"""What a cluster has: one compact, hash-consed tree of resources, and the readers that make it from others' forms."""

from __future__ import annotations

from switchyard.model.graph.graph import Attached, FreeNodes, Graph, NodeKind, Shape, Value

__all__ = ["Attached", "FreeNodes", "Graph", "NodeKind", "Shape", "Value"]
