"""Compiling graphs, small ones here and large ones in a process of their own."""

from __future__ import annotations

import gzip
import json
import threading

import pytest

from switchyard.errors import Malformed, Unavailable, YardError
from switchyard.service.core.snapshots import graph_compiler
from switchyard.service.core.snapshots.graph_compiler import GraphCompiler

SHORT = b"nodes: 2\neach: {core: 4}\nhosts: n[0-1]\n"
IO = b'{"attach": {"n0": [{"type": "shm"}]}}'


def compiled(main: bytes, **subsystems: bytes) -> dict[str, int]:
    sizes = {"": len(main), **{name: len(body) for name, body in subsystems.items()}}
    packed = {name: gzip.compress(body) for name, body in subsystems.items()}
    return GraphCompiler().compile(gzip.compress(main), packed, sizes=sizes, where="cluster alpha").totals


def jgf(nodes: int) -> bytes:
    vertices = {"root": {"metadata": {"type": "cluster"}}}
    vertices |= {f"n{n}": {"metadata": {"type": "node", "name": f"n{n}"}} for n in range(nodes)}
    edges = [{"source": "root", "target": f"n{n}", "relation": "contains"} for n in range(nodes)]
    return json.dumps({"graph": {"nodes": vertices, "edges": edges}}).encode()


def test_small_and_large_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    small = compiled(SHORT, io=IO)
    monkeypatch.setattr(graph_compiler, "INLINE_BYTES", 0)
    monkeypatch.setattr(graph_compiler, "INLINE_TEXT_BYTES", 0)
    assert compiled(SHORT, io=IO) == small == {"cluster": 1, "core": 8, "node": 2}


def test_a_large_graph_is_compiled() -> None:
    body = jgf(20_000)
    assert len(body) > graph_compiler.INLINE_BYTES
    assert compiled(body)["node"] == 20_000


def test_refusal_from_the_other_process_names_the_place() -> None:
    body = jgf(20_000).replace(b'"target": "n19999"', b'"target": "nowhere"')
    with pytest.raises(Malformed, match="nowhere"):
        compiled(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"graph":' * 400_000,
        b"[" * 2_000_000,
        b'{"graph": {"nodes": ' + b"[" * 1_500_000,
        b"a: " * 500_000,
        b"\xff" * 2_000_000,
    ],
)
def test_what_is_nested_without_end_ends_only_that_process(body: bytes) -> None:
    with pytest.raises(Malformed):
        compiled(body)


def test_closing_ends_what_is_under_way() -> None:
    made = GraphCompiler()
    raised: list[BaseException] = []
    body = jgf(20_000)

    def work() -> None:
        try:
            made.compile(gzip.compress(body), {}, sizes={"": len(body)}, where="x")
        except YardError as exc:
            raised.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    made.close()
    thread.join(60)
    assert isinstance(raised[0], Unavailable)
