"""The words of every command of Slurm that we use. Pure: from values to lists of words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from switchyard.agent.backends.slurm.option_grammars import JOB, LICENSE, OPTION, build_option, check_word
from switchyard.agent.backends.slurm.parse import SACCT_FIELDS, SQUEUE_FIELDS
from switchyard.agent.need import spec_of
from switchyard.model.idset import IdSet
from switchyard.model.job import JobSpec, Native
from switchyard.model.names import printable_line
from switchyard.model.poll import Lease
from switchyard.model.quantity import ceil_fraction, parse_amount, parse_bytes, parse_duration_s

MB = 2**20
COMMENT_MAX = 200


def sbatch(
    lease: Lease, name: str, folder: str, *, partition: str, account: str, base: int, excluded: str = ""
) -> list[str]:
    """Hand over one attempt, or a range of an array's tasks. The script comes by stdin."""
    suffix = "" if lease.lo is None else ".%a"
    words = [
        "sbatch",
        "--parsable",
        build_option("--job-name", name),
        build_option("--comment", _comment(lease)),
        build_option("--chdir", folder),
        build_option("--output", f"{folder}/stdout{suffix}"),
        build_option("--error", f"{folder}/stderr{suffix}"),
        "--open-mode=append",
        "--no-requeue",  # what began here does not begin again by Slurm's own will
        "--export=ALL",  # of sbatch's own environment, which the agent keeps small
    ]
    if lease.lo is not None and lease.hi is not None:
        words.append(build_option("--array", f"{lease.lo - base}-{lease.hi - base}"))
    return words + resource_options(spec_of(lease), partition=partition, account=account, excluded=excluded)


def resource_options(spec: JobSpec, *, partition: str, account: str, excluded: str = "") -> list[str]:
    """What it needs and how it is to be treated. Cores, gpus, memory and storage are said per task.

    `excluded`: the nodes that it must not run on.
    """
    need, ask, native = spec.resources, spec.resources.asked, spec.native or Native()
    cores = ceil_fraction(parse_amount(ask.cores))
    words = [build_option("--ntasks", need.tasks), build_option("--cpus-per-task", cores)]
    if need.nodes is not None:
        words.append(build_option("--nodes", need.nodes))
    if memory := parse_bytes(ask.memory):
        words.append(build_option("--mem-per-cpu", f"{math.ceil(memory / cores / MB)}M"))
    if ask.gpus:
        words.append(_gpus(need.tasks, need.nodes, ask.gpus, native.gpu_type))
    if storage := parse_bytes(ask.ephemeral_storage):
        per_node = math.ceil(need.tasks / need.nodes) if need.nodes else 1
        words.append(build_option("--tmp", f"{math.ceil(storage * per_node / MB)}M"))
    if need.time_limit is not None:
        words.append(build_option("--time", _minutes(parse_duration_s(need.time_limit))))
    said = {
        "--partition": partition,
        "--account": native.account or account,
        "--qos": native.qos,
        "--reservation": native.reservation,
        "--constraint": native.constraint,
        "--exclude": excluded,
        "--licenses": ",".join(check_word(LICENSE, each) for each in native.licenses),
    }
    words += [build_option(option, value) for option, value in said.items() if value]
    if native.exclusive:
        words.append("--exclusive")
    return words + [check_word(OPTION, option) for option in native.options]


def sbatch_test_only(spec: JobSpec, *, partition: str, account: str, excluded: str) -> list[str]:
    return [
        "sbatch",
        "--test-only",
        "--job-name=yard-quote",
        *resource_options(spec, partition=partition, account=account, excluded=excluded),
    ]


def squeue(users: Sequence[str], *, mark: str, names: Iterable[str] = (), job: str = "") -> list[str]:
    """Every job of these users, ended ones too for as long as the controller remembers them; no user: our own.

    `job`: of one number alone the controller tells much faster than of all; if it knows none of that number, it fails.

    `mark` stands in each row: others may put line ends, and so whole rows, into the names of their jobs.
    """
    whose = build_option("--user", ",".join(users)) if users else "--me"
    words = ["squeue", "--noheader", "--all", "--states=all", whose]  # in hidden partitions, too
    named = ",".join(names)
    if named:
        words.append(build_option("--name", named))
    if job:
        words.append(build_option("--jobs", job))
    first, *others = SQUEUE_FIELDS
    return [*words, "-O", ",".join([f"{first}:|{mark}|", *(f"{field}:|" for field in others)])]


def squeue_depth() -> list[str]:
    """How long the whole queue is."""
    return ["squeue", "--noheader", "--states=PENDING,RUNNING", "-O", "State:|,JobArrayID:|"]


def sacct(jobs: Iterable[str]) -> list[str]:
    """What the accounts know of these jobs; `--duplicates`, since a number may have been given twice."""
    wanted = build_option("--jobs", ",".join(jobs))
    return ["sacct", "-nP", "--allusers", "--duplicates", wanted, "-o", ",".join(SACCT_FIELDS)]


def sacct_by_name(names: Iterable[str], *, user: str, days: int) -> list[str]:
    whose, since = (
        build_option("--user", user) if user else "--allusers",
        build_option("--starttime", f"now-{days}days"),
    )
    return ["sacct", "-nP", whose, build_option("--name", ",".join(names)), since, "-o", ",".join(SACCT_FIELDS)]


def sdiag() -> list[str]:
    """How many messages slurmctld has for slurmdbd, among much else."""
    return ["sdiag"]


def scancel(natives: Iterable[str]) -> list[str]:
    """Tasks of one array are one word: `7_[0-99]`, for which Slurm is asked once."""
    tasks: dict[str, list[int]] = {}
    for native in natives:
        job, _, task = native.partition("_")
        tasks.setdefault(job, []).extend([int(task)] if task else [])
    whole = (f"{job}_[{_spans(indexes)}]" if indexes else job for job, indexes in tasks.items())
    return ["scancel", *(check_word(JOB, job) for job in whole)]


def _spans(indexes: Iterable[int]) -> str:
    """`0-99,105`: without steps, which not every version of scancel takes."""
    return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in IdSet.of(indexes).spans())


def show_nodes() -> list[str]:
    return ["scontrol", "-o", "show", "nodes"]


def show_partitions() -> list[str]:
    return ["scontrol", "-o", "show", "partitions"]


def show_config() -> list[str]:
    return ["scontrol", "show", "config"]


def _comment(lease: Lease) -> str:
    """For people who look at the queue. Nothing of ours reads it."""
    return printable_line(f"{lease.name} ({lease.owner}, {lease.project})"[:COMMENT_MAX])


def _gpus(tasks: int, nodes: int | None, per_task: int, kind: str) -> str:
    """Per node where it is known how many tasks a node has: every site understands `--gres`."""
    kind = f"{kind}:" if kind else ""
    if tasks == 1:
        return build_option("--gres", f"gpu:{kind}{per_task}")
    if nodes is not None and tasks % nodes == 0:
        return build_option("--gres", f"gpu:{kind}{per_task * (tasks // nodes)}")
    return build_option("--gpus-per-task", f"{kind}{per_task}")


def _minutes(seconds: int) -> int:
    """Slurm counts whole minutes."""
    return max(1, math.ceil(seconds / 60))
