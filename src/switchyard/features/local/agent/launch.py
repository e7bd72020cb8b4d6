"""Starts the supervisor of a local job and tells it what to run. backend.py follows it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.backends import Setting, marker_of
from switchyard.agent.backends.shared.containers import (
    ContainerAccount,
    ContainerFolders,
    ContainerJob,
    ContainerLimits,
    apptainer_command,
    apptainer_variables,
    container_command,
    removal_command,
    variables_text,
)
from switchyard.agent.log import line
from switchyard.agent.loop.need import memory_limit_bytes, spec_of
from switchyard.agent.private_files import job_umask
from switchyard.agent.site.accounts import LocalAccount
from switchyard.agent.site.environment import FILES_VARIABLE, job_variables
from switchyard.agent.site.images import rule_of
from switchyard.agent.site.inherited_variables import CONTAINER_VARIABLES
from switchyard.agent.site.job_accounts import JobAccounts, check_local_accounts, own_account_name
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import parse_amount, parse_bytes, parse_duration_s

INHERITED = ("PATH", "LANG", "TZ")
VARIABLES_FILE = "container.env"  # in the job's directory, which only the agent's account reads
INHERITED_OWN = (*INHERITED, "TMPDIR")  # only under the agent's account: another account may not enter TMPDIR
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"

log = logging.getLogger(__name__)


def load_job_accounts(setting: Setting) -> JobAccounts:
    """The rules for accounts of jobs. Logs what jobs share; raises if the site's map cannot be used here."""
    check_local_accounts(setting.site, setting.directory)
    accounts = JobAccounts(setting.site, is_root_allowed=setting.is_root_allowed)
    if (sharing := accounts.sharing()) is not None:
        log.warning(line(sharing.event, what=sharing.detail, next=sharing.advice))
    return accounts


def account_for(lease: Lease, setting: Setting, accounts: JobAccounts) -> LocalAccount | None:
    """The account of a job; None: the agent's. Raises if the site does not allow the job."""
    why = setting.site.allow.refusal(user=lease.owner, project=lease.project, queue=lease.queue or None)
    if why:
        raise PolicyRefused(why)
    return accounts.account_of(lease)


NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class StartFiles:
    """`words`: of the start file, which say what to run. `variables`: the file of a container's variables; or none."""

    words: list[bytes]
    variables: bytes | None = None


def start_files(
    lease: Lease,
    home: Path,
    setting: Setting,
    account: LocalAccount | None,
    *,
    directory: Path,
    further: Iterable[str] = (),
    own: Mapping[str, str] = NO_VARIABLES,
) -> StartFiles:
    """What the supervisor gets. `directory`: of the job; `further`: words about the containment; `own`: its GPUs.

    Raises PolicyRefused if the site does not run the job's image.
    """
    spec = spec_of(lease)
    rule = None if spec.image is None else rule_of(spec.image, setting.site)
    variables = {**job_environment(lease, home, setting, account), **own}
    ids = [] if account is None else _account_words(account)
    limits = [f"data_bytes={memory_limit_bytes(spec)}"]
    content: bytes | None = None
    if rule is None or rule.run is ImageRun.HOST:
        if rule is not None and rule.path is not None:
            variables["PATH"] = f"{rule.path}:{variables['PATH']}"
        command, cwd = list(spec.command), spec.cwd or str(home)
        words = [*_run_words(command, variables, cwd), *ids, *limits]
    else:
        job = _container_job(lease, home, account, file=str(directory / VARIABLES_FILE))
        client, inner = _client_environment(setting), {**_job_variables(lease, home, setting, account), **own}
        if rule.run is ImageRun.APPTAINER:
            environment = {**client, **apptainer_variables(inner)}
            words = [
                *_run_words(apptainer_command(job, setting.site.containers), environment, str(home)),
                *ids,
                *limits,
            ]
        else:
            content = variables_text(rule.run.value, inner)
            command = container_command(rule.run.value, job, setting.site.containers)
            words = [*_run_words(command, client, str(home)), *_mount_words(job, mounts_folder(setting.directory))]
            words += [f"cleanup={word}" for word in removal_command(rule.run.value, job.name)]
    words.append(f"output_bytes={output_limit_bytes(spec, setting.site.local.output_bytes)}")
    if setting.are_jobs_bound:
        words.append("bound=1")
    if spec.resources.time_limit is not None:
        words.append(f"limit_s={parse_duration_s(spec.resources.time_limit)}")
    encoded = [os.fsencode(word) for word in (*words, *further)]
    if any(b"\0" in word for word in encoded):  # it would end the word and begin another, such as another account
        raise PolicyRefused("A NUL character stands in its command, its environment or its working directory.")
    return StartFiles(encoded, content)


def output_limit_bytes(spec: JobSpec, site_bytes: int) -> int:
    """The most bytes of stdout and stderr together: the site's bound, or the job's own limit of storage if lower."""
    storage = spec.resources.limits.ephemeral_storage
    own_bytes = 0 if storage is None else parse_bytes(storage) * spec.resources.tasks
    return min(own_bytes, site_bytes) if own_bytes > 0 else site_bytes


def _run_words(command: list[str], environment: dict[str, str], cwd: str) -> list[str]:
    return [
        *(f"arg={word}" for word in command),
        *(f"env={name}={value}" for name, value in environment.items()),
        f"cwd={cwd}",
    ]


def mounts_folder(directory: Path) -> Path:
    """Where folders of jobs are mounted for containers: a folder for each job."""
    return directory / "mounts"


def _mount_words(job: ContainerJob, place: Path) -> list[str]:
    if not job.folders.mounts:
        return []
    if ":" in str(place):
        raise PolicyRefused(f"No folder can be mounted for a container from {place}: it has a colon in its name.")
    words = [f"mount={inner}:{path}" for path, inner in job.folders.mounts.items()]
    return [*words, f"mount_from={job.folders.home}", f"mount_at={place / job.name}"]


def _account_words(account: LocalAccount) -> list[str]:
    return [f"uid={account.uid}", f"gid={account.gid}", f"groups={','.join(map(str, account.groups))}"]


def _container_job(lease: Lease, home: Path, account: LocalAccount | None, *, file: str) -> ContainerJob:
    """`file`: of the container's variables."""
    spec = spec_of(lease)
    ask = spec.resources
    cores = ask.asked.cores if ask.limits.cores is None else ask.limits.cores
    return ContainerJob(
        name=marker_of(lease),
        image=spec.image or "",
        command=tuple(spec.command),
        folders=ContainerFolders(
            home=str(home),
            workdir=spec.cwd or str(home),
            mounts={} if spec.files is None else spec.files.mounts,
        ),
        account=ContainerAccount(
            uid=os.geteuid() if account is None else account.uid,
            gid=os.getegid() if account is None else account.gid,
            groups=() if account is None else tuple(group for group in account.groups if group != account.gid),
            is_mapped=account is not None,
            is_rootless=os.geteuid() != 0,
        ),
        limits=ContainerLimits(
            # No more than the machine has: docker refuses that. A graph may claim more.
            cpus=min(float(parse_amount(cores)) * ask.tasks, float(os.cpu_count() or 1)),
            memory_bytes=memory_limit_bytes(spec),
            gpus=ask.asked.gpus,
        ),
        variables_file=file,
    )


def _client_environment(setting: Setting) -> dict[str, str]:
    """The environment of a runtime's client: the agent's own, and nothing that the job says."""
    names = (*INHERITED_OWN, *CONTAINER_VARIABLES, "HOME")
    return {"PATH": PATH_DEFAULT, **{name: value for name, value in setting.environment.items() if name in names}}


def job_environment(lease: Lease, home: Path, setting: Setting, account: LocalAccount | None) -> dict[str, str]:
    """The environment of a job on the host: named variables only, no others of the agent."""
    passed_on = INHERITED_OWN if account is None else INHERITED
    inherited = {key: setting.environment[key] for key in passed_on if key in setting.environment}
    return {"PATH": PATH_DEFAULT, **inherited, **_job_variables(lease, home, setting, account)}


def _job_variables(lease: Lease, home: Path, setting: Setting, account: LocalAccount | None) -> dict[str, str]:
    """What a job gets wherever it runs: its login, its rules, its own variables and its files."""
    name = own_account_name() if account is None else account.name
    login = {"HOME": str(home), "USER": name, "LOGNAME": name}
    files = {} if spec_of(lease).files is None else {FILES_VARIABLE: str(home)}
    return {**login, **job_variables(lease, setting.cluster), **files}


def spawn_supervisor(program: Path, path: Path, setting: Setting, *, seal: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a supervisor. Returns its process and its pipe: bytes for claim and start, closed when it ends."""
    with contextlib.ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, write_end)
        seal_read, seal_write = os.pipe()
        stack.callback(os.close, seal_read)
        with os.fdopen(seal_write, "wb") as file:
            file.write(seal.encode())
        try:
            # Not the agent's streams: the supervisor outlives the agent and would keep its terminal or pipe open.
            errors = os.open(
                path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
            stack.callback(os.close, errors)
            words = [sys.executable, "-I", "-S", str(program), str(path), str(write_end), str(seal_read)]
            process = subprocess.Popen(
                words,
                pass_fds=[write_end, seal_read],
                start_new_session=True,  # signals to the agent's group or terminal do not reach it
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=path,
                env=dict(setting.environment),
                umask=job_umask(),  # the job's
            )
        except OSError:
            os.close(read_end)
            raise
    return process, read_end
