"""What a cluster has: one compact, hash-consed tree of resources, and the readers that make it from others' forms."""

from __future__ import annotations

from switchyard.model.graph.graph import AttachedVertex, FieldValue, FreeNodes, Graph, NodeKind, Shape

__all__ = ["AttachedVertex", "FieldValue", "FreeNodes", "Graph", "NodeKind", "Shape"]
