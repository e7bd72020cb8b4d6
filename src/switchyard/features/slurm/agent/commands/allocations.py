"""What Slurm gave to a job: the TRES that squeue and sacct show, and the GPUs that only scontrol tells on many sites.

TRES have GPUs only where the site's `AccountingStorageTRES` names them, so GPUs that are missing there are not told.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import msgspec

from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import split_handle
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts
from switchyard.features.slurm.agent.commands.tres import COUNT_MAX
from switchyard.model.cluster.allocation import WORDS_CHARS_MAX, GivenResources, shown_types

ASKED_MAX = 16  # jobs in one round: each is a call of scontrol. The others come with the next round
ROUND_S_MAX = 2.0  # of calls in one round, for a slow controller: all jobs wait for the end of the round
_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*))?:([0-9]{1,9})(?=\(|,|\Z)")
_NAME = re.compile(r"JobId=.*?\sJobName=(\S+)\s")
_JOB_GRES = re.compile(r"\sJOB_GRES=(\S*)")
_ON_NODE = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_INDEX = re.compile(r"gpu:[^,()]*\(IDX:([0-9,-]+)\)")


NOTHING = GivenResources()


class GpuDetails:
    """Asks once for each job with GPUs that has begun. Used by one thread."""

    def __init__(self, caller: CommandRunner, *, has_gpus: Callable[[str], bool]) -> None:
        """`has_gpus`: whether the job of a handle asked for GPUs."""
        self._caller, self._has_gpus = caller, has_gpus
        self._told: dict[str, GivenResources] = {}  # by handle; an empty one: Slurm does not tell, or there are none

    def complete(self, rows: Mapping[str, SlurmJobFacts]) -> dict[str, SlurmJobFacts]:
        """Return the rows that change: those of begun jobs, with their GPUs."""
        self._told = {handle: told for handle, told in self._told.items() if handle in rows}
        begun = {handle: facts for handle, facts in rows.items() if facts.has_begun and _lacks_types(facts.allocated)}
        new = [handle for handle in begun if handle not in self._told]
        unknown = [handle for handle in new if self._has_gpus(handle)]
        self._told |= dict.fromkeys(set(new).difference(unknown), NOTHING)
        until = time.monotonic() + ROUND_S_MAX
        for handle in unknown[:ASKED_MAX]:
            try:
                self._told[handle] = self._ask(handle)
            except YardError:  # the next round asks again; a job that ends before is not told
                break
            if time.monotonic() > until:
                break
        return {
            handle: replace(facts, allocated=_with_gpus(facts.allocated, told))
            for handle, facts in begun.items()
            if (told := self._told.get(handle)) is not None and told.gpus is not None
        }

    def _ask(self, handle: str) -> GivenResources:
        native, name = split_handle(handle)
        result = self._caller.call(command_lines.show_job(native))
        return read_job_gpus(result.text, name) if result.code == 0 else GivenResources()


def _lacks_types(allocated: GivenResources | None) -> bool:
    return allocated is None or allocated.gpus is None or not allocated.gpu_types


def _with_gpus(allocated: GivenResources | None, told: GivenResources) -> GivenResources:
    return msgspec.structs.replace(
        allocated or GivenResources(), gpus=told.gpus, gpu_types=told.gpu_types, gpu_ids=told.gpu_ids
    )


@lru_cache(maxsize=1024)
def read_job_gpus(text: str, name: str) -> GivenResources:
    """The GPUs in a line of `scontrol -o show job -d`: `JOB_GRES=gpu:a100:2`, and their numbers if it has one node.

    Words of users, such as the comment, come behind what is read here.
    """
    lines = (row.partition(" MinCPUsNode=")[0] for row in text.splitlines())
    line = next((row for row in lines if (match := _NAME.match(row)) and match[1] == name), "")
    match = _JOB_GRES.search(line)
    counts = _GPUS.findall(match[1]) if match else []
    if not counts:
        return GivenResources()
    on_nodes = _ON_NODE.findall(line)
    told = [type_ for _, gres in on_nodes for type_, _ in _GPUS.findall(gres)]
    ids = _INDEX.findall(on_nodes[0][1]) if len(on_nodes) == 1 else []
    return GivenResources(
        gpus=min(sum(int(count) for _, count in counts), COUNT_MAX),
        gpu_types=shown_types({type_ for type_, _ in counts} | set(told)),
        gpu_ids=",".join(ids)[:WORDS_CHARS_MAX],
    )
