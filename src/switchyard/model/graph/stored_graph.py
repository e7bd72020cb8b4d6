"""A compact graph as this program wrote it before: read in pieces where it is large, and not searched for mistakes."""

from __future__ import annotations

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph.graph import Graph
from switchyard.model.wire.decode_pieces import PIECE_BYTES, PieceReader

_ANY = 2**62  # it was accepted once
_pieces = PieceReader(Graph, values_max=_ANY, rest_values_max=_ANY, is_checked=False)


def read_stored_graph(text: bytes) -> Graph:
    """Malformed: another version wrote it."""
    if len(text) <= PIECE_BYTES:
        try:
            return msgspec.json.decode(text, type=Graph)
        except msgspec.ValidationError as exc:
            raise Malformed(str(exc)) from exc
    graph: Graph = _pieces.read(text)
    return graph
