"""Finds the system of each node, by running `discover` on all nodes with srun. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from switchyard.agent.backends.shared.node_systems import ask_each_node
from switchyard.errors import Unavailable, YardError
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.option_grammars import build_option

ANSWER_S = 60.0  # a node without a free core does not answer
SRUN_WAIT_S = 20  # how long srun waits for a node
UNUSABLE_MARKS = frozenset(
    "*~#%$@!-"
)  # marks of sinfo's states: the node does not answer, is off, or is to be rebooted
USABLE_STATES = frozenset({"idle", "mixed", "allocated", "completing"})


def describe_systems(caller: CommandRunner, *, program: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The subsystem `system` of the nodes that answered, and why the other nodes did not.

    `program`: the path of `yard` on the nodes, such as on a shared file system.
    """
    nodes = _usable(caller.ask(["sinfo", "--noheader", "--Node", "-o", "%N %T"]))
    if not nodes:
        raise Unavailable("No node of this cluster is up.", next_step="See `sinfo`.")
    attach, silent = ask_slurm_nodes(caller, nodes, program=program)
    return {"attach": attach}, silent


def ask_slurm_nodes(
    caller: CommandRunner, nodes: Sequence[str], *, program: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """What to attach to each of these nodes that answered, and why the other nodes did not."""
    words = [*program, "agent", "discover", "--per-node", "-o", "json"]
    return ask_each_node(nodes, lambda node: _ask(caller, node, words))


def _usable(text: str) -> list[str]:
    """The usable nodes; sinfo lists a node once per partition."""
    rows = [row.split() for row in text.splitlines()]
    usable = [row[0] for row in rows if len(row) == 2 and row[1] in USABLE_STATES and not UNUSABLE_MARKS & set(row[1])]
    return sorted(set(usable))


def _ask(caller: CommandRunner, node: str, words: Sequence[str]) -> list[Any] | str:
    """What to attach to one node, or why it is not known."""
    fixed = ["--nodes=1", "--ntasks=1", "--time=2", "--export=ALL"]
    try:
        how = [build_option("--nodelist", node), build_option("--immediate", SRUN_WAIT_S), *fixed]
        result = caller.call(["srun", "--quiet", "--job-name=yard-discover", *how, *words], timeout_s=ANSWER_S)
        if result.code != 0:
            return result.err.strip().splitlines()[-1] if result.err.strip() else f"srun ended with {result.code}"
        # The machine's name may differ from the node's, so the answer is attached to the node that was asked.
        attached: dict[str, list[Any]] = json.loads(result.out)["attach"]
        return next(iter(attached.values()))
    except YardError as exc:
        return exc.detail
    except (ValueError, KeyError, TypeError, StopIteration):
        return "its answer cannot be read"
