"""What Slurm's commands print, read: rows as 22.05, 24.11 and 26.05 print them, and rows that nobody expects."""

from __future__ import annotations

import pytest

from switchyard.features.slurm.agent.commands.parse import (
    SlurmJobRow,
    array_job_of,
    handle_of,
    read_backlog,
    read_config,
    read_ids,
    read_pairs,
    read_sacct,
    read_sbatch,
    read_size,
    read_squeue,
    read_time,
    read_wait_status,
    split_handle,
)
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts
from switchyard.model.cluster.allocation import GivenResources


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("17\n", "17"),
        ("17;alpha\n", "17"),
        ("*** Welcome, 4711 users ***\n17\nsbatch: lua: to the default partition\n", "17"),
        ("2 days until maintenance\n 17 \n", "17"),
        ("Submitted batch job 17\n", None),
        ("", None),
    ],
)
def test_the_number_is_found_among_a_sites_own_words(text: str, number: str | None) -> None:
    assert read_sbatch(text) == number


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("7", ["7"]),
        ("7_3", ["7_3"]),
        ("7_[1-3,9%2]", ["7_1", "7_2", "7_3", "7_9"]),
        ("7_[0-8:4]", ["7_0", "7_4", "7_8"]),
        ("7_[5]", ["7_5"]),
        ("12+0", ["12"]),
        ("7_[1-3,...]", []),
        ("N/A", []),
        ("", []),
    ],
)
def test_ids_of_jobs_and_of_tasks(text: str, ids: list[str]) -> None:
    assert read_ids(text) == ids


def test_a_huge_range_of_tasks_is_bounded() -> None:
    assert len(read_ids("7_[0-3999999]")) == 100_000


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        *[("1792", (7, 0)), ("9", (0, 9)), ("0", (0, 0)), ("7:0", (7, 0)), ("0:9", (0, 9)), ("0:53", (0, 53))],
        *[("N/A", (0, 0)), ("", (0, 0)), ("x:1", (0, 0))],
    ],
)
def test_exit_codes_in_both_forms(text: str, ending: tuple[int, int]) -> None:
    assert read_wait_status(text) == ending


@pytest.mark.parametrize(
    ("text", "at_s"), [("1794732423", 1794732423), ("N/A", None), ("NONE", None), ("Unknown", None), ("0", None)]
)
def test_times(text: str, at_s: int | None) -> None:
    assert read_time(text) == at_s


@pytest.mark.parametrize(
    ("text", "size"), [("3224K", 3224 * 1024), ("1.50G", 3 * 2**29), ("0", 0), ("", None), ("16?", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    assert read_size(text) == size


QUEUE = """\
3_2|m4rk|COMPLETED|0|yard-arr|1794732424|1794732425|n1|0||root|None|
4|m4rk|COMPLETED|0|yard-old|1794732123|1794732124|n1|0||root|None|
1|m4rk|FAILED|1792|yard-one|1794732423|1794732424|n[1-2]|0||root|NonZeroExitCode|
2|m4rk|RUNNING|0:0|yard-two|1794732423|NONE|n1|3|cpu=2,node=1|root|None|
9|m4rk|PENDING|0:0|yard-big|N/A|N/A||0||root|(ReqNodeNotAvail, UnavailableNodes:n[1-2])|
7_[4-5%2]|m4rk|PENDING|0:0|yard-arr|N/A|N/A||0||root|Job|Array|TaskLimit|
8|m4rk|RUNNING|0:0|somebody's|1794732423|NONE|n1|0||eve|None|
10|m4rk|RUNNING|0:0|yard-of-eve
2|COMPLETED|0:0|yard-two|1794732423|1794732424|n1|0||root|None|
2|none|COMPLETED|0:0|yard-two|1794732423|1794732424|n1|0||root|None||1794732423|NONE|n1|0||eve|None|
a banner of the site
"""


def test_the_queue_in_one_answer() -> None:
    """And no row of it is one that eve wrote into her job's name, or that nobody asks for any more."""
    names = {"yard-arr", "yard-one", "yard-two", "yard-big", "yard-of-eve"}
    found = {each.handle: each.facts for each in read_squeue(QUEUE, names, mark="m4rk")}
    assert found == {
        "3_2/yard-arr": SlurmJobFacts(
            state="COMPLETED", started_s=1794732424, ended_s=1794732425, nodes="n1", reason="None"
        ),
        "1/yard-one": SlurmJobFacts(
            state="FAILED",
            exit_code=7,
            started_s=1794732423,
            ended_s=1794732424,
            nodes="n[1-2]",
            reason="NonZeroExitCode",
        ),
        "2/yard-two": SlurmJobFacts(
            state="RUNNING",
            started_s=1794732423,
            nodes="n1",
            reason="None",
            restarts=3,
            allocated=GivenResources(cores=2),
        ),
        "9/yard-big": SlurmJobFacts(state="PENDING", reason="(ReqNodeNotAvail, UnavailableNodes:n[1-2])"),
        "7_4/yard-arr": SlurmJobFacts(state="PENDING", reason="Job|Array|TaskLimit"),
        "7_5/yard-arr": SlurmJobFacts(state="PENDING", reason="Job|Array|TaskLimit"),
    }


ACCOUNTS = """\
1|yard-one|FAILED|7:0|1794732423|1794732424|n1|cpu=2,node=1|
1.batch|batch|FAILED|7:0|1794732423|1794732424|n1||3224K
1.extern|extern|COMPLETED|0:0|1794732423|1794732424|n1||0
2|a|b, c|COMPLETED|0:0|1794732423|1794732424|n1||
2.batch|batch|COMPLETED|0:0|1794732423|1794732424|n1||99G
1|yard-other|CANCELLED by 0|0:15|1794732500|1794732501|n2||
3_[4-5]|yard-arr|PENDING|0:0|Unknown|Unknown|None assigned||
"""


def test_accounts_with_what_the_steps_used() -> None:
    found = read_sacct(ACCOUNTS, prefix="yard-")
    assert [each.handle for each in found] == ["1/yard-one", "1/yard-other", "3_4/yard-arr", "3_5/yard-arr"]
    assert found[0].facts.memory_bytes_max == 3224 * 1024
    assert (found[0].facts.state, found[0].facts.exit_code, found[0].facts.elapsed_s) == ("FAILED", 7, 1)
    # The same number, given again: another name, so another job.
    assert (found[1].facts.state, found[1].facts.reason, found[1].facts.memory_bytes_max) == ("CANCELLED", "by 0", None)
    assert found[2] == SlurmJobRow("3_4", "yard-arr", SlurmJobFacts(state="PENDING"))


def test_a_line_of_scontrol() -> None:
    line = "NodeName=n1 Arch=x86_64  OS=Linux 6.1 #1 SMP @0  State=IDLE+DRAIN Reason=bad disk [root@x] CfgTRES=cpu=8"
    assert read_pairs(line) == {
        "NodeName": "n1",
        "Arch": "x86_64",
        "OS": "Linux 6.1 #1 SMP @0",
        "State": "IDLE+DRAIN",
        "Reason": "bad disk [root@x]",
        "CfgTRES": "cpu=8",
    }


def test_the_configuration() -> None:
    said = read_config("Configuration data as of now\nMaxArraySize            = 1001\nMinJobAge = 300 sec\n")
    assert (said["MaxArraySize"], said["MinJobAge"]) == ("1001", "300 sec")


def test_a_handle_is_number_and_name() -> None:
    assert handle_of("7_3", "yard-x-1-2") == "7_3/yard-x-1-2"
    assert split_handle("7_3/yard-x-1-2") == ("7_3", "yard-x-1-2")
    assert array_job_of("7_3") == "7"


def test_the_backlog_for_the_accounts() -> None:
    said = "Agent queue size:     3\nAgent count:          0\nDBD Agent queue size: 12\n\nJobs submitted: 0\n"
    assert read_backlog(said) == 12
    assert read_backlog("Agent queue size:     0\n") is None
    assert read_backlog("") is None
