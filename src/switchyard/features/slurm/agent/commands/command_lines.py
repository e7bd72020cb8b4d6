"""Builds the command lines of Slurm. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from switchyard.agent.loop.need import spec_of
from switchyard.errors import PolicyRefused
from switchyard.features.slurm.agent.commands.option_grammars import JOB, build_option, check_word
from switchyard.features.slurm.agent.commands.parse import SACCT_FIELDS, SQUEUE_FIELDS
from switchyard.model.cluster.hardware import GPU
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.native_grammars import GPU_TYPE, LICENSE, OPTION
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec, Native
from switchyard.model.jobspec.devices import Device, devices_of, typed_resources
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount, parse_bytes, parse_duration_s
from switchyard.model.rules.names import printable_line

GresTypes = Mapping[Device, str]
NO_TYPES: GresTypes = {}  # each as the job writes it
MB = 2**20
COMMENT_MAX = 200
REMOVAL_MINUTES = 5  # of a job that removes containers
REMOVAL_MB = 200
ALL_MEMORY = "--mem=0"  # of each node; `--exclusive` alone takes all CPUs, and of memory only the partition's default


def sbatch(
    lease: Lease,
    name: str,
    folder: str,
    *,
    partition: str,
    account: str,
    base: int,
    excluded: str = "",
    gres_types: GresTypes = NO_TYPES,
) -> list[str]:
    """Submit one attempt, or a range of an array's tasks. The script comes on stdin."""
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
        "--no-requeue",  # Slurm must not start a job again by itself
        "--export=ALL",  # all of sbatch's environment, which the agent keeps small
    ]
    if lease.lo is not None and lease.hi is not None:
        words.append(build_option("--array", f"{lease.lo - base}-{lease.hi - base}"))
    spec = spec_of(lease)
    return words + resource_options(
        spec, partition=partition, account=account, excluded=excluded, gres_types=gres_types
    )


def resource_options(
    spec: JobSpec, *, partition: str, account: str, excluded: str = "", gres_types: GresTypes = NO_TYPES
) -> list[str]:
    """Options for resources, partition and account. Cores, GPUs, memory and storage are given per task.

    `excluded`: nodes on which the job must not run. `gres_types`: the types of devices in the site's words.
    """
    need, ask, native = spec.resources, spec.resources.asked, spec.native or Native()
    cores = ceil_fraction(parse_amount(ask.cores))
    words = [build_option("--ntasks", need.tasks), build_option("--cpus-per-task", cores)]
    if need.nodes is not None:
        words.append(build_option("--nodes", need.nodes))
    if memory := parse_bytes(ask.memory):
        words.append(build_option("--mem-per-cpu", f"{math.ceil(memory / cores / MB)}M"))
    if devices := devices_of(typed_resources(spec)):
        words.append(_gres(need.tasks, need.nodes, devices, gres_types))
    if storage := parse_bytes(ask.ephemeral_storage):
        per_node = math.ceil(need.tasks / need.nodes) if need.nodes else 1
        words.append(build_option("--tmp", f"{math.ceil(storage * per_node / MB)}M"))
    if need.time_limit is not None:
        words.append(build_option("--time", _minutes(parse_duration_s(need.time_limit))))
    options = {
        "--partition": partition,
        "--account": native.account or account,
        "--qos": native.qos,
        "--reservation": native.reservation,
        "--constraint": native.constraint,
        "--exclude": excluded,
        "--licenses": ",".join(check_word(LICENSE, name) for name in native.licenses),
    }
    words += [build_option(option, value) for option, value in options.items() if value]
    if native.exclusive:
        words.append("--exclusive")
        if not memory and not any(option.startswith("--mem") for option in native.options):
            words.append(ALL_MEMORY)
    return words + [check_word(OPTION, option) for option in native.options]


def sbatch_on_node(lease: Lease, name: str, node: str, *, partition: str, account: str) -> list[str]:
    """Submit a small job to the node on which an attempt ran. The script comes on stdin."""
    native = spec_of(lease).native or Native()
    words = [
        "sbatch",
        "--parsable",
        build_option("--job-name", name),
        build_option("--comment", "removes containers that killed jobs left"),
        build_option("--chdir", "/"),
        build_option("--output", "/dev/null"),
        "--export=ALL",
        build_option("--ntasks", 1),
        build_option("--nodelist", node),
        build_option("--time", REMOVAL_MINUTES),
        build_option("--mem-per-cpu", f"{REMOVAL_MB}M"),
    ]
    options = {
        "--partition": partition,
        "--account": native.account or account,
        "--qos": native.qos,
        "--reservation": native.reservation,
    }
    words += [build_option(option, value) for option, value in options.items() if value]
    # The job may have named its partition among its own options, where the site allows that.
    return words + [check_word(OPTION, option) for option in native.options if option.partition("=")[0] in options]


def sbatch_test_only(spec: JobSpec, *, account: str, excluded: str, gres_types: GresTypes = NO_TYPES) -> list[str]:
    return [
        "sbatch",
        "--test-only",
        "--job-name=yard-quote",
        *resource_options(spec, partition="", account=account, excluded=excluded, gres_types=gres_types),
    ]


def squeue(users: Sequence[str], *, mark: str, names: Iterable[str] = (), job: str = "") -> list[str]:
    """List all jobs of these users, also ended ones while the controller remembers them. No user: our own jobs.

    `job`: only this number, which is much faster; squeue fails if the controller does not know it.

    `mark` is in every row: other users may put line ends, and so faked rows, into the names of their jobs.
    """
    whose = build_option("--user", ",".join(users)) if users else "--me"
    words = ["squeue", "--noheader", "--all", "--states=all", whose]  # also in hidden partitions
    named = ",".join(names)
    if named:
        words.append(build_option("--name", named))
    if job:
        words.append(build_option("--jobs", job))
    first, *following = SQUEUE_FIELDS
    return [*words, "-O", ",".join([f"{first}:|{mark}|", *(f"{field}:|" for field in following)])]


def squeue_depth() -> list[str]:
    """The length of the whole queue."""
    return ["squeue", "--noheader", "--states=PENDING,RUNNING", "-O", "State:|,JobArrayID:|"]


def sacct(jobs: Iterable[str]) -> list[str]:
    """What accounting knows of these jobs; `--duplicates`, since a number may be used twice."""
    wanted = build_option("--jobs", ",".join(jobs))
    return ["sacct", "-nP", "--allusers", "--duplicates", wanted, "-o", ",".join(SACCT_FIELDS)]


def sacct_by_name(names: Iterable[str], *, user: str, days: int) -> list[str]:
    whose, since = (
        build_option("--user", user) if user else "--allusers",
        build_option("--starttime", f"now-{days}days"),
    )
    return ["sacct", "-nP", whose, build_option("--name", ",".join(names)), since, "-o", ",".join(SACCT_FIELDS)]


def sdiag() -> list[str]:
    """Shows, among other things, how many messages slurmctld has for slurmdbd."""
    return ["sdiag"]


def scancel(natives: Iterable[str]) -> list[str]:
    """Tasks of one array become one word, `7_[0-99]`, which is one request to Slurm."""
    tasks: dict[str, list[int]] = {}
    for native in natives:
        job, _, task = native.partition("_")
        tasks.setdefault(job, []).extend([int(task)] if task else [])
    targets = (f"{job}_[{_spans(indexes)}]" if indexes else job for job, indexes in tasks.items())
    return ["scancel", *(check_word(JOB, job) for job in targets)]


def _spans(indexes: Iterable[int]) -> str:
    """`0-99,105`: without steps, which some versions of scancel do not take."""
    return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in IdSet.of(indexes).spans())


def show_job(native: str) -> list[str]:
    """One job or task with the devices that it has; the controller forgets it some minutes after its end."""
    return ["scontrol", "-o", "show", "job", "-d", check_word(JOB, native)]


def show_nodes() -> list[str]:
    return ["scontrol", "-o", "show", "nodes"]


def show_partitions() -> list[str]:
    return ["scontrol", "-o", "show", "partitions"]


def show_config() -> list[str]:
    return ["scontrol", "show", "config"]


def _comment(lease: Lease) -> str:
    """A comment for people who look at the queue. No code reads it."""
    return printable_line(f"{lease.name} ({lease.owner}, {lease.project})"[:COMMENT_MAX])


def _gres(tasks: int, nodes: int | None, devices: Sequence[Device], types: GresTypes) -> str:
    """The devices; `--gres` per node if the tasks per node are known, since every site supports it."""
    per_node = tasks // nodes if nodes is not None and tasks % nodes == 0 else 1 if tasks == 1 else 0
    words = [(device.kind, types.get(device, device.spelling), device.count * (per_node or 1)) for device in devices]
    texts = [(kind, f"{check_word(GPU_TYPE, type_)}:{count}" if type_ else str(count)) for kind, type_, count in words]
    if per_node:
        return build_option("--gres", ",".join(f"{kind}:{text}" for kind, text in texts))
    if any(device.kind != GPU for device in devices):
        raise PolicyRefused("Slurm gives devices other than GPUs to nodes: say `nodes`, with as many tasks on each.")
    return build_option("--gpus-per-task", ",".join(text for _, text in texts))


def _minutes(seconds: int) -> int:
    """Whole minutes, as Slurm counts."""
    return max(1, math.ceil(seconds / 60))
