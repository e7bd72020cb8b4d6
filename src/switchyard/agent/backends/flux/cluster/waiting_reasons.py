"""Why jobs wait in a queue of the instance: the queue is stopped, or some of its nodes take no jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.agent.backends.flux.cluster.resource_sets import FluxNode

Queues = Mapping[str, Mapping[str, Any]]  # name → Flux's answer about the queue; "": the only queue, without a name


def waiting_reasons(queues: Queues, nodes: Sequence[FluxNode]) -> dict[str, str]:
    """The reason for each queue that has one."""
    reasons = {name: _stop_reason(name, state) or _node_reason(name, nodes) for name, state in _known(queues).items()}
    return {name: f"waits at the cluster: {reason}" for name, reason in reasons.items() if reason}


def disabled_reason(name: str, queues: Queues) -> str:
    """Why a queue takes no jobs now; empty: it takes them, or is not known."""
    state = _known(queues).get(name, {})
    if state.get("enable") is not False:
        return ""
    return f"{_show(name)} takes no jobs{_suffix(state.get('disable_reason'))}"


def _known(queues: Queues) -> Queues:
    return queues or {"": {}}


def _stop_reason(name: str, state: Mapping[str, Any]) -> str:
    return "" if state.get("start") is not False else f"{_show(name)} is stopped{_suffix(state.get('stop_reason'))}"


def _node_reason(name: str, nodes: Sequence[FluxNode]) -> str:
    members = [node for node in nodes if not name or f"queue/{name}" in node.properties]
    drained = sum(1 for node in members if node.is_drained)
    down = sum(1 for node in members if node.is_down and not node.is_drained)
    if not drained and not down:
        return ""
    counts = [f"{count} {word}" for count, word in ((drained, "drained"), (down, "down")) if count]
    return f"{drained + down} of {len(members)} nodes of {_show(name)} take no jobs ({', '.join(counts)})"


def _show(name: str) -> str:
    return f"the queue {name}" if name else "the queue"


def _suffix(reason: object) -> str:
    return f": {reason}" if reason else ""
