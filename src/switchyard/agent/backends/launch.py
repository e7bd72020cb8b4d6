"""How the supervisor of a local job is started, and what it is told to run. What becomes of it is local.py's."""

from __future__ import annotations

import contextlib
import logging
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from switchyard.agent.accounts import LocalAccount
from switchyard.agent.backends import Setting, confine, proctable, supervisor
from switchyard.agent.environment import job_variables
from switchyard.agent.job_accounts import JobAccounts, check_local_accounts, own_account_name
from switchyard.agent.log import line
from switchyard.agent.need import spec_of
from switchyard.agent.umask import job_umask
from switchyard.errors import PolicyRefused
from switchyard.model.poll import Lease
from switchyard.model.quantity import parse_bytes, parse_duration_s

INHERITED = ("PATH", "LANG", "TZ")
INHERITED_OWN = (*INHERITED, "TMPDIR")  # under the agent's own account: another account may not enter that folder
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"

log = logging.getLogger(__name__)


def load_job_accounts(setting: Setting) -> JobAccounts:
    """Who may run here, and under which account. Logs what jobs share; raises if the site's map cannot be followed."""
    check_local_accounts(setting.site, setting.directory)
    accounts = JobAccounts(setting.site, is_root_allowed=setting.is_root_allowed)
    if (sharing := accounts.sharing()) is not None:
        log.warning(line(sharing.event, what=sharing.detail, next=sharing.advice))
    return accounts


def account_for(lease: Lease, setting: Setting, accounts: JobAccounts) -> LocalAccount | None:
    """The account that a job runs under; none: the agent's own. Raises what the site does not take."""
    why = setting.site.allow.refusal(user=lease.owner, project=lease.project, queue=lease.queue or None)
    if why:
        raise PolicyRefused(why)
    return accounts.account_of(lease)


def start_file_words(
    lease: Lease, home: Path, setting: Setting, account: LocalAccount | None, further: Iterable[str] = ()
) -> list[bytes]:
    """What the supervisor is to run, as the words of its start file. `further`: how it is contained."""
    spec = spec_of(lease)
    words = [f"arg={arg}" for arg in spec.command]
    words += [f"env={key}={value}" for key, value in job_environment(lease, home, setting, account).items()]
    words.append(f"cwd={spec.cwd or home}")
    if account is not None:
        words += [f"uid={account.uid}", f"gid={account.gid}", f"groups={','.join(map(str, account.groups))}"]
    ask = spec.resources
    if ask.time_limit is not None:
        words.append(f"limit_s={parse_duration_s(ask.time_limit)}")
    memory = ask.asked.memory if ask.limits.memory is None else ask.limits.memory
    words.append(f"data_bytes={parse_bytes(memory) * ask.tasks}")
    made = [os.fsencode(word) for word in (*words, *further)]
    if any(b"\0" in word for word in made):  # it would end the word, and begin another one: another account, say
        raise PolicyRefused("A NUL character stands in its command, its environment or its working directory.")
    return made


def job_environment(lease: Lease, home: Path, setting: Setting, account: LocalAccount | None) -> dict[str, str]:
    """Named variables alone: whatever else the agent's own environment has is not the job's."""
    passed_on = INHERITED_OWN if account is None else INHERITED
    inherited = {key: setting.environment[key] for key in passed_on if key in setting.environment}
    name = own_account_name() if account is None else account.name
    login = {"HOME": str(home), "USER": name, "LOGNAME": name}
    return {"PATH": PATH_DEFAULT, **inherited, **login, **job_variables(lease, setting.cluster)}


def compile_supervisor(directory: Path) -> Path:
    """The supervisor compiled once: compiling it at each start would be a quarter of the way from spawn to exec."""
    folder, sources = directory / "supervisor", [Path(str(each.__file__)) for each in (supervisor, confine, proctable)]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for source in sources:
            py_compile.compile(str(source), cfile=str(folder / f"{source.stem}.pyc"), doraise=True)
    except (OSError, py_compile.PyCompileError):
        return sources[0]
    return folder / "supervisor.pyc"


def spawn_supervisor(program: Path, path: Path, setting: Setting, *, seal: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a supervisor for this directory. The number is a pipe: a byte when the command runs, then its end."""
    with contextlib.ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, write_end)
        seal_read, seal_write = os.pipe()
        stack.callback(os.close, seal_read)
        with os.fdopen(seal_write, "wb") as file:
            file.write(seal.encode())
        try:
            # Not the agent's own: it outlives the agent, and would hold its terminal or pipe.
            errors = os.open(
                path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
            stack.callback(os.close, errors)
            words = [sys.executable, "-I", "-S", str(program), str(path), str(write_end), str(seal_read)]
            process = subprocess.Popen(
                words,
                pass_fds=[write_end, seal_read],
                start_new_session=True,  # a signal to the agent's group or terminal does not reach it
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
