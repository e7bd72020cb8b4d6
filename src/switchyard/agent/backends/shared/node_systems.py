"""Keeps the systems of a cluster's nodes up to date. Knows no batch system: a function asks the nodes.

A node is asked when it begins to take jobs: at the agent's start, when it is new, when it comes back after a reboot,
and when an operator opens it again after a change. Kernels, drivers and libraries change while a node is away.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from switchyard.agent.log import line
from switchyard.agent.private_files import replace_file
from switchyard.errors import YardError
from switchyard.model.graph import Graph
from switchyard.model.graph.attach import attach_subsystems
from switchyard.model.job.image_compatibility import SYSTEM_SUBSYSTEM

NODE_RETRY_S = 600.0  # for nodes that did not answer, such as busy ones: each question is a job that waits for a core
PARALLEL_NODES = 8  # asked at once: a node answers in a second or two, and each question costs a program and a job
AGAIN_S = 86_400.0  # all nodes, for what was changed while they ran

log = logging.getLogger(__name__)

# Returns what to attach to each node that answered, and why the others did not.
AskNodes = Callable[[Sequence[str]], tuple[dict[str, list[Any]], dict[str, str]]]


class NodeSystems:
    """`note_up` belongs to one thread, `attached_to` to any; the nodes are asked on a thread of their own."""

    def __init__(self, file: Path, ask: AskNodes, *, retry_s: float = NODE_RETRY_S) -> None:
        self._file = file
        self._ask = ask
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._attach: dict[str, list[Any]] = _read(file)
        self._up: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}  # node → when to ask it, by the steady clock
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="node-systems", daemon=True)
        self._thread.start()

    def note_up(self, nodes: Collection[str]) -> None:
        """Take the names of all nodes that take jobs now."""
        up = frozenset(nodes)
        if up == self._up:
            return
        now = time.monotonic()
        with self._lock:
            self._due.update(dict.fromkeys(up - self._up, now))
            self._up = up
        self._wake.set()

    def attached_to(self, graph: Graph) -> Graph:
        """The graph with the systems that are known."""
        with self._lock:
            attach = dict(self._attach)
        hosts = frozenset(graph.host_names)
        known = {node: attached for node, attached in attach.items() if node in hosts}
        return attach_subsystems(graph, {SYSTEM_SUBSYSTEM: {"attach": known}}, where="systems") if known else graph

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                due = {node: at for node, at in self._due.items() if at <= now and node in self._up}
            if due and not self._is_closed:
                try:
                    self._take(due)
                except Exception:  # the nodes keep what is known of them, and are asked again
                    log.exception(line("defect", thread="node-systems"))
                    self._store({}, due)

    def _pause_s(self) -> float | None:
        with self._lock:
            times = [at for node, at in self._due.items() if node in self._up]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take(self, due: dict[str, float]) -> None:
        try:
            answers, silent = self._ask(sorted(due))
        except YardError as exc:
            answers, silent = {}, dict.fromkeys(due, exc.detail)
        for node, why in silent.items():
            log.info(line("node-system-unknown", node=node, why=why))
        self._store(answers, due)

    def _store(self, answers: dict[str, list[Any]], due: dict[str, float]) -> None:
        """Keep the answers, and say when each node is asked again."""
        now = time.monotonic()
        with self._lock:
            self._attach |= answers
            for node, at in due.items():
                if self._due[node] == at:  # else it went away and came back meanwhile
                    self._due[node] = now + (AGAIN_S if node in answers else self._retry_s)
            attach = dict(self._attach)
        with contextlib.suppress(OSError):  # a full disk: the next start asks again
            replace_file(self._file, msgspec.json.encode(attach), is_durable=False)


def _read(file: Path) -> dict[str, list[Any]]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[Any]])
    except (OSError, msgspec.DecodeError):
        return {}


def ask_each_node(
    nodes: Sequence[str], ask: Callable[[str], list[Any] | str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """What to attach to each of these nodes that answered, and why the other nodes did not.

    `ask`: returns what to attach to one node, or why it is not known.
    """
    with ThreadPoolExecutor(PARALLEL_NODES) as pool:
        answers = dict(zip(nodes, pool.map(ask, nodes), strict=True))
    attach = {node: answer for node, answer in answers.items() if not isinstance(answer, str)}
    return attach, {node: answer for node, answer in answers.items() if isinstance(answer, str)}


def own_program(argv: Sequence[str]) -> list[str]:
    """The path of `yard`, which the nodes see under the same path."""
    return [str(Path(argv[0]).absolute())]
