"""What Slurm gave to a job, from TRES and from scontrol, as real controllers print them."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands import allocations
from switchyard.features.slurm.agent.commands.allocations import ASKED_MAX, GpuDetails, read_job_gpus
from switchyard.features.slurm.agent.commands.command_runner import CommandResult
from switchyard.features.slurm.agent.commands.parse import read_sacct
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts, status_of
from switchyard.features.slurm.agent.commands.tres import read_tres
from switchyard.features.slurm.agent.nodes.cluster import find_types_of_hosts
from switchyard.features.slurm.agent.nodes.nodes import read_nodes
from switchyard.model.cluster.allocation import GivenResources

MIB = 2**20
# `scontrol -o show job -d` of 22.05, without most of the fields that are not read.
SHOWN = (
    "JobId=1 JobName=yard-x UserId=root(0) GroupId=root(0) JobState=RUNNING Reason=None NodeList=zetan1 NumCPUs=1 "
    "TRES=cpu=1,mem=64M,node=1,billing=1 CoreSpec=* JOB_GRES=gpu:a100:1   Nodes=zetan1 CPU_IDs=0 Mem=64 "
    "GRES=gpu:a100:1(IDX:0) MinCPUsNode=1 MinMemoryCPU=64M Comment={comment} TresPerNode=gres:gpu:a100:1 \n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cpu=1,mem=64M,node=1,billing=1", GivenResources(cores=1, memory_bytes=64 * MIB)),
        (
            "cpu=4,mem=1.50G,node=2,gres/gpu=2,gres/gpu:a100=2",
            GivenResources(cores=4, memory_bytes=1536 * MIB, gpus=2, gpu_types=("a100",)),
        ),
        (
            "cpu=1,node=1,gres/gpu=1,gres/gpu:a100=1,gres/gpu:v100=0",
            GivenResources(cores=1, gpus=1, gpu_types=("a100",)),
        ),
        ("gres/gpu=2", GivenResources(gpus=2)),
        ("cpu=x,mem=16?", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_trackable_resources(text: str, told: GivenResources | None) -> None:
    assert read_tres(text) == told


@pytest.mark.parametrize(
    ("gres", "on_nodes", "told"),
    [
        (
            "gpu:a100:1",
            "Nodes=n1 CPU_IDs=0 Mem=64 GRES=gpu:a100:1(IDX:0)",
            GivenResources(gpus=1, gpu_types=("a100",), gpu_ids="0"),
        ),
        ("gpu:a100:1", "Nodes=n1 CPU_IDs=0 Mem=64 GRES=", GivenResources(gpus=1, gpu_types=("a100",))),  # it has ended
        (
            "gpu:2",
            "Nodes=n1 CPU_IDs=0-1 Mem=64 GRES=gpu:v100:2(IDX:0,3)",
            GivenResources(gpus=2, gpu_types=("v100",), gpu_ids="0,3"),
        ),
        (
            "gpu:a100:4",
            "Nodes=n[1-2] CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1)  Nodes=n3 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1)",
            GivenResources(gpus=4, gpu_types=("a100",)),
        ),
        ("nic:2,gpu:l4:1", "Nodes=n1 CPU_IDs=0 Mem=64 GRES=", GivenResources(gpus=1, gpu_types=("l4",))),
        ("(null)", "Nodes=n1 CPU_IDs=0 Mem=64 GRES=", GivenResources()),
    ],
)
def test_devices_in_the_details_of_a_job(gres: str, on_nodes: str, told: GivenResources) -> None:
    line = f"JobId=7 JobName=yard-x JobState=RUNNING JOB_GRES={gres}   {on_nodes} MinCPUsNode=1 Comment=(null) \n"
    assert read_job_gpus(line, "yard-x") == told


def test_words_of_users_and_jobs_of_others_tell_nothing() -> None:
    forged = SHOWN.format(
        comment="JOB_GRES=gpu:h100:8 Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:h100:8(IDX:0-7) JobName=yard-y"
    )
    assert read_job_gpus(forged, "yard-x") == GivenResources(gpus=1, gpu_types=("a100",), gpu_ids="0")
    assert read_job_gpus(forged, "yard-y") == GivenResources()  # the number was given to another job
    assert read_job_gpus("slurm_load_jobs error: Invalid job id specified\n", "yard-x") == GivenResources()


def facts(**changes: Any) -> SlurmJobFacts:
    base = {"state": "RUNNING", "started_s": 100, "nodes": "n1", "allocated": GivenResources(cores=1)}
    return SlurmJobFacts(**{**base, **changes})


class Controller:
    """Answers to scontrol, and counts the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    def call(self, words: list[str]) -> CommandResult:
        if self.is_away:
            raise Unavailable("Slurm does not answer.")
        self.asked.append(words[-1])
        text = f"JobId={words[-1]} JobName=yard-x JobState=RUNNING JOB_GRES=gpu:a100:2   Nodes=n1 CPU_IDs=0 Mem=1 GRES="
        return (
            CommandResult(0, text.encode(), "")
            if words[-1] != "9"
            else CommandResult(1, b"", "Invalid job id specified")
        )


def test_each_job_with_gpus_is_asked_for_once() -> None:
    controller = Controller()
    details = GpuDetails(controller, has_gpus=lambda handle: handle != "2/yard-x")  # type: ignore[arg-type]
    rows = {
        "1/yard-x": facts(),
        "2/yard-x": facts(),  # asks for none
        "3/yard-x": facts(state="PENDING", started_s=None, nodes=""),
        "4/yard-x": facts(allocated=GivenResources(cores=1, gpus=1, gpu_types=("a100",))),  # the TRES tell it
        "5/yard-x": facts(allocated=GivenResources(cores=1, gpus=1)),  # but not its type
        "9/yard-x": facts(state="COMPLETED", ended_s=200),  # the controller has forgotten it
    }
    given = GivenResources(cores=1, gpus=2, gpu_types=("a100",))
    for _ in range(2):
        assert {handle: row.allocated for handle, row in details.complete(rows).items()} == {
            "1/yard-x": given,
            "5/yard-x": given,
        }
    assert controller.asked == ["1", "5", "9"]


def test_a_round_asks_for_a_few_and_gives_up_with_the_first_failure() -> None:
    controller = Controller()
    details = GpuDetails(controller, has_gpus=lambda _: True)  # type: ignore[arg-type]
    rows = {f"{number}/yard-x": facts() for number in range(10, 10 + 2 * ASKED_MAX)}
    assert len(details.complete(rows)) == ASKED_MAX
    controller.is_away = True
    assert len(details.complete(rows)) == ASKED_MAX
    controller.is_away = False
    assert len(details.complete(rows)) == 2 * ASKED_MAX


def test_a_slow_controller_is_asked_for_one_job_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocations, "ROUND_S_MAX", 0.0)
    details = GpuDetails(Controller(), has_gpus=lambda _: True)  # type: ignore[arg-type]
    rows = {f"{number}/yard-x": facts() for number in range(10, 20)}
    assert [len(details.complete(rows)) for _ in range(2)] == [1, 2]


def test_a_running_job_without_gpus_is_not_told_until_its_end() -> None:
    assert status_of(facts(), now_s=150).usage is None
    running = status_of(facts(allocated=GivenResources(cores=1, gpus=1)), now_s=150).usage
    assert running is not None
    assert (running.nodes, running.elapsed_s) == ("n1", 0)
    ended = status_of(facts(state="COMPLETED", ended_s=160), now_s=170).usage
    assert ended is not None
    assert (ended.elapsed_s, ended.allocated) == (60, GivenResources(cores=1))


def test_accounts_tell_it_too() -> None:
    row = "1|yard-one|COMPLETED|0:0|1794732423|1794732424|n1|cpu=2,mem=128M,node=1,gres/gpu=1|\n"
    assert read_sacct(row, prefix="yard-")[0].facts.allocated == GivenResources(cores=2, memory_bytes=128 * MIB, gpus=1)


NODES = """\
NodeName=n1 CPUTot=8 RealMemory=16000 Gres=gpu:a100:2 State=IDLE Sockets=1 CoresPerSocket=8
NodeName=n2 CPUTot=8 RealMemory=16000 Gres=gpu:a100:1,gpu:v100:1 State=IDLE Sockets=1 CoresPerSocket=8
NodeName=n3 CPUTot=8 RealMemory=16000 Gres=gpu:2 ActiveFeatures=l4 State=IDLE Sockets=1 CoresPerSocket=8
"""


@pytest.mark.parametrize(
    ("hosts", "types"),
    [("n1", {"a100"}), ("n2", set()), ("n3", {"l4"}), ("n[1,3]", {"a100", "l4"}), ("n[1-2]", set()), ("n9", set())],
)
def test_nodes_with_one_type_tell_it(hosts: str, types: set[str]) -> None:
    assert find_types_of_hosts(read_nodes(NODES), hosts) == types
