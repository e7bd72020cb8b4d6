"""Which nodes Slurm keeps closed, why, and how an operator opens them: for the reason of a job that waits. Pure.

A controller that was killed gives its last numbers again. It drains each node that still knows such a number
("Duplicate jobid"), and a drained node never comes back by itself: jobs would wait for ever, and not know why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.agent.backends.slurm.nodes.nodes import SlurmNode

# A node in one of these states stays closed until somebody does something. The others pass by themselves.
STUCK_STATES = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVAL", "INVALID_REG"})
# Slurm's words for a job that waits for closed nodes.
NODE_REASON = re.compile(r"ReqNodeNotAvail|DOWN, DRAINED|NodeDown")
NAMES_MAX = 5
WORDS_MAX = 80  # of what Slurm says about one node


@dataclass(frozen=True, slots=True)
class ClosedNodes:
    """`text`: which nodes of a partition are closed, and what to do; empty: none. `is_all`: no node takes jobs."""

    text: str = ""
    is_all: bool = False

    def advice(self, reason: str) -> str:
        """What to tell a job that waits for this reason of Slurm's; empty: nothing more."""
        return self.text if self.is_all or NODE_REASON.search(reason) else ""


def find_closed_nodes(nodes: Sequence[SlurmNode], partition: str) -> ClosedNodes:
    """`partition`: of the job; empty: all nodes count."""
    own = [node for node in nodes if not partition or partition in node.partitions]
    closed = [node for node in own if node.states & STUCK_STATES]
    if not closed:
        return ClosedNodes()
    shown = ", ".join(f"{node.name} ({_words(node)})" for node in closed[:NAMES_MAX])
    names = ",".join(node.name for node in closed[:NAMES_MAX])
    more = f" and {len(closed) - NAMES_MAX} more" if len(closed) > NAMES_MAX else ""
    text = (
        f"Slurm keeps {len(closed)} of {len(own)} nodes closed: {shown}{more}. "
        f"An operator sees why with `sinfo -R`, and opens them with `scontrol update NodeName={names} State=RESUME`"
    )
    return ClosedNodes(text, is_all=not any(node.is_open for node in own))


def _words(node: SlurmNode) -> str:
    """The reason that Slurm or an operator gave; else the state."""
    return (node.reason or "+".join(sorted(node.states)).lower())[:WORDS_MAX]
